"""Faults on purpose: ``%tfcluster kill``, ``pause``, ``chaos`` and so on, and `Cluster.faults`."""
