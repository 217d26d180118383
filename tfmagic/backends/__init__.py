"""Where task processes live: the seam (`protocol`), and one module for each engine.

Imports `tfmagic.protocol`, `tfmagic.system` and `tfmagic.runs`; never `tfmagic.task`, whose program it
starts.
"""
