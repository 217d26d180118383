"""The one loop that leads a cluster, and the pure rules that it follows.

Imports `tfmagic.protocol`, `tfmagic.system`, `tfmagic.runs` and the seam of `tfmagic.backends`. Never
`tfmagic.serialization`: the supervisor unpickles nothing.
"""
