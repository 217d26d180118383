"""`SharedWriter`: one HDF5 file to which all tasks append, and which a process of its own writes.

    task, notebook             kernel                                  writer process
    client ── connection ──────────────────── rows ─────────────────→ writer_process ── datasets ──→ file
         └── open request ──→ sessions ── starts it, hands over sockets ──┘

`messages` has what they send to each other.
"""
