"""The Python interface, and all that a running cluster needs: `tfmagic.Cluster` is in `cluster`.

Imports everything but `tfmagic.task` and the front ends.
"""
