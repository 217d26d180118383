"""`tfmagic.Cluster` (in `cluster`), its parts, and one-shot tasks.

May import everything but `tfmagic.task` and the front ends.
"""
