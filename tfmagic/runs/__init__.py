"""The run folder: the only place that knows its layout and file names, and that writes and reads its files.

Imports `tfmagic.protocol` and `tfmagic.system`.
"""
