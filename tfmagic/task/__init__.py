"""The program of a task process, and of the launcher that forks it.

Imports `tfmagic.protocol`, `tfmagic.serialization`, `tfmagic.system`, `tfmagic.runs`, and the parts of
`tfmagic.hdf5`, `tfmagic.logdir` and `tfmagic.tfrecord` that tasks need. Never imports `tfmagic.backends`,
`tfmagic.supervisor` or `tfmagic.clusters`.
"""
