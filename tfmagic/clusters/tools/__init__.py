"""Tools beside the cells: faults, timeline and status of tasks."""
