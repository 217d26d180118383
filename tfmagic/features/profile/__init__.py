"""``%%tfcluster --profile``: where the time of a cell went on each task, by TensorFlow's profiler."""
