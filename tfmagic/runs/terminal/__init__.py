"""A small terminal emulator: a task's output as the rows, styles and progress bars that a terminal shows."""
