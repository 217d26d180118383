"""``%tfcluster report`` and ``tfmagic report``: one html file about a run, for a bug report."""
