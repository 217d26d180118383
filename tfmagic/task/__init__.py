"""The program of a task process, and of the launcher that forks it.

Imports `tfmagic.protocol`, `tfmagic.serialization`, `tfmagic.system` and `tfmagic.runs`, and what
`tfmagic.hdf5`, `tfmagic.logdir` and `tfmagic.tfrecord` have for tasks; never backends, supervisor or
clusters.
"""
