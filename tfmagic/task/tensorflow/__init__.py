"""Patches of TensorFlow and Keras in a task, mostly of private API. Each module names its measurements."""
