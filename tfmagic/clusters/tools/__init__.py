"""Tools beside the cells: faults, timeline, status of tasks, TensorBoard."""
