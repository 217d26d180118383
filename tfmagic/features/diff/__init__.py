"""``%tfcluster diff`` and `Cluster.diff`: are the tasks doing the same thing?"""
