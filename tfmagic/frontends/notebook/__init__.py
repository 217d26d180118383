"""The magics ``%%tfcluster`` and ``%tfcluster``: a line or a cell becomes calls of a cluster."""
