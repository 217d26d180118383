"""``%tfcluster doctor`` and ``tfmagic doctor``: is this environment fit for a cluster?"""
