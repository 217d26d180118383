"""What a task reports of an editor's debugger, which `Cluster.debug` shows."""

from tfmagic.clusters.cells.features import CellFeature, Context, Reports
from tfmagic.clusters.cells.job import Job
from tfmagic.features.debug.records import Listening, decode_listening


class Debugger(CellFeature):
    """The answer of a task that listens."""

    name = "debug"

    def end(self, job: Job, reports: Reports, context: Context) -> Listening | None:
        """Return where the task listens."""
        sent = next(filter(None, map(self.sent, reports.values())), b"")
        return decode_listening(sent) if sent else None


FEATURE = Debugger()
