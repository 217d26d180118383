"""Pickle and unpickle the user's objects: no other package does. Used in the notebook and in the tasks.

    capture      the notebook variables that a cell needs, packed for each task
    free_names   the names that a cell reads, from its source
    pickling     dill with our reducers: definitions, classes, tensorflow_values, keras_values, loggers,
                 causes, process_bound
    tracebacks   an exception with its chain and its frames; exceptions and frame_variables are its parts

Imports `tfmagic.protocol` and `tfmagic.system`. The supervisor never imports it.
"""
