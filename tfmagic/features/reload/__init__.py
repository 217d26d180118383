"""Modules of the user's that have changed since tasks imported them.

    kernel: a line that names them ──→ lines: %tfcluster reload ──→ methods: Cluster.reload ══ on_tasks, enums

What tasks have imported, and which of these files have changed, is known where cells are sent.
"""
