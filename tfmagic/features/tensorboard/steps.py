"""The step of a message about traces of TensorFlow's profiler."""

STEPS = {"show traces": "tensorboard"}
