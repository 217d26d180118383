"""The user's objects across processes: the only place that pickles and unpickles them.

    capture      which notebook variables a cell needs, packed for each task
    free_names   which names a cell reads, from its source
    pickling     dill with our reducers, which are in definitions, classes, tensorflow_values and refusals
    tracebacks   an exception with its chain and its frames; exceptions and frame_variables are its parts

Imports `tfmagic.protocol` and `tfmagic.system`. The supervisor never imports it.
"""
