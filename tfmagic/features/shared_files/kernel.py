"""The HDF5 files that the tasks of a cluster share, beside each cluster."""

from tfmagic.clusters.cells.features import CellFeature
from tfmagic.features.shared_files.sessions import SharedWriters


class SharedFiles(CellFeature):
    """Gives each cluster its `SharedWriters`."""

    name = "shared_files"

    def accompany(self) -> SharedWriters:
        """Return those of a new cluster."""
        return SharedWriters()


FEATURE = SharedFiles()
