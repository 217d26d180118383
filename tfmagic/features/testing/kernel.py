"""The half of the kernel: takes what tasks report for tests with the end of each call."""

from tfmagic.clusters.cells.cell_plan import CellPlan
from tfmagic.clusters.cells.features import CellFeature, Context, Reports, Setting
from tfmagic.clusters.cells.job import Job
from tfmagic.features.testing import coverage
from tfmagic.features.testing.reports import NAME, SeenWarning, decode_report, encode
from tfmagic.protocol.cluster_spec import TaskId


class Testing(CellFeature):
    """Keeps the warnings of the last body that tasks have run, for the plugin of pytest."""

    name = NAME

    def __init__(self) -> None:
        self._seen: dict[SeenWarning, list[TaskId]] = {}

    def plan(self, plan: CellPlan, setting: Setting) -> bytes | None:
        """Let the tasks measure their code, if this process is measured."""
        wanted = coverage.wanted()
        return None if wanted is None else encode(wanted)

    def end(self, job: Job, reports: Reports, context: Context) -> None:
        """Take the reports."""
        for task, end in reports.items():
            if sent := self.sent(end):
                report = decode_report(sent)
                coverage.add(report)
                for warning in report.warnings:
                    self._seen.setdefault(warning, []).append(task)

    def take_warnings(self) -> dict[SeenWarning, list[TaskId]]:
        """Return the warnings since the last call, with the tasks of each."""
        found, self._seen = self._seen, {}
        return found


FEATURE = Testing()
