"""The magics: a line or a cell becomes calls of a cluster."""
