"""The half of a task: measures code, and reports its lines and the warnings of a test's body."""

from msgspec.structs import replace

from tfmagic.features.testing import on_tasks
from tfmagic.features.testing.coverage import Measurement
from tfmagic.features.testing.reports import NAME, decode_measure, encode
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.task.cell_parts import Attempt, CellPart


class TestReports(CellPart):
    """Reports what a cell leaves for tests."""

    def __init__(self) -> None:
        self._measurement = Measurement()

    def begin(self, cell: RunCell) -> None:
        """Measure, if the process that sent the cell is measured."""
        if wanted := cell.extras.get(NAME):
            self._measurement.start(decode_measure(wanted))

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """Report, if there is something."""
        if self._measurement.runs or on_tasks.SEEN:
            report = replace(self._measurement.stop(), warnings=tuple(on_tasks.SEEN))
            on_tasks.SEEN.clear()
            attempt.extras[NAME] = encode(report)


def make(boot: TaskBoot) -> CellPart:
    """Return the part of a task."""
    return TestReports()
