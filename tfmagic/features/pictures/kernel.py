"""Record what the tasks of each run do, for its timeline."""

from tfmagic.clusters.cells.features import CellFeature
from tfmagic.clusters.launch.recorders import Recorder
from tfmagic.features.pictures.recorder import TimelineRecorder
from tfmagic.runs.folder import RunFolder


class Pictures(CellFeature):
    """The recorder of the timeline."""

    name = "pictures"

    def record(self, run: RunFolder) -> Recorder:
        """Return the recorder of a run."""
        return TimelineRecorder(run)


FEATURE = Pictures()
