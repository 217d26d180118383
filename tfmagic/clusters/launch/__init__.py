"""The start of a cluster: settings and arguments, the backend that fits them, and clusters that were kept."""
