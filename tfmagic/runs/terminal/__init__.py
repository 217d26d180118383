"""What a terminal makes of a task's output: lines, styles, and progress bars that move in place."""
