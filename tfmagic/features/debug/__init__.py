"""``%tfcluster debug`` and `breakpoint()`: Python's debugger in a task, with live frames."""
