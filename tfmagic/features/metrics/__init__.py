"""The clusters of this user as Prometheus metrics, on Jupyter Server's own page."""
