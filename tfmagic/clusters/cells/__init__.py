"""A cell: its command for each task, the wait for it, its results, and the values that travel."""
