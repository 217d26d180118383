"""What tfmagic asks the operating system: processes and who they are, memory, open files, its own folder.

Knows nothing of clusters, and imports nothing else of tfmagic's.
"""
