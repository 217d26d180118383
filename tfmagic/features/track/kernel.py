"""Tell the tasks of a cell whether `fit` tracks its loss and metrics."""

from tfmagic.clusters.cells.cell_plan import CellPlan
from tfmagic.clusters.cells.features import CellFeature, Setting
from tfmagic.features.track.names import NAME


class Track(CellFeature):
    """The setting ``TFCluster.track_fit``."""

    name = NAME

    def plan(self, plan: CellPlan, setting: Setting) -> bytes | None:
        """Tell the tasks if it is off."""
        return None if setting("track_fit") else b"off"


FEATURE = Track()
