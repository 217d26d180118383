"""Write the cells of a cluster as a program, with the files that start it on other systems.

    the cells that have run ── program ──→ main.py, and data.npz or data.pickle beside it
    the notebook's names    ── notebook_names ──↗
    templates/              ── folder ──→ main.py and all other files

`methods` has `Cluster.export`, and `lines` its line command.
"""
