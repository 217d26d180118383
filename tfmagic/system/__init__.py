"""What tfmagic asks the operating system: processes, memory, files, time limits, its own folder.

Every package can call it. It knows nothing of clusters, and imports no other package of tfmagic.
"""
