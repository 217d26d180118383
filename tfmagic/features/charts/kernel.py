"""Tell the tasks of a cell whether `fit` draws charts."""

from tfmagic.clusters.cells.cell_plan import CellPlan
from tfmagic.clusters.cells.features import CellFeature, Setting


class Charts(CellFeature):
    """The setting ``TFCluster.track_fit``."""

    name = "charts"

    def plan(self, plan: CellPlan, setting: Setting) -> bytes | None:
        """Tell the tasks if it is off."""
        return None if setting("track_fit") else b"off"


FEATURE = Charts()
