"""The half of a task: reports the warnings of a test's body with the end of its call."""

from tfmagic.features.testing import on_tasks
from tfmagic.features.testing.reports import NAME, TaskReport, encode
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.task.cell_parts import Attempt, CellPart


class TestReports(CellPart):
    """Reports what a cell leaves for tests."""

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """Report, if there is something."""
        if on_tasks.SEEN:
            attempt.extras[NAME] = encode(TaskReport(tuple(on_tasks.SEEN)))
            on_tasks.SEEN.clear()


def make(boot: TaskBoot) -> CellPart:
    """Return the part of a task."""
    return TestReports()
