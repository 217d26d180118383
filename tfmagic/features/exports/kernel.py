"""The cells of each cluster that have ended: what an export can write."""

import weakref

import msgspec

from tfmagic.clusters.cells.features import CellFeature, Context, Reports
from tfmagic.clusters.cells.job import Job
from tfmagic.protocol.events import CellReturned
from tfmagic.supervisor.supervisor import Supervisor


class RanCell(msgspec.Struct, frozen=True):
    """A cell that has ended on a cluster.

    Attributes:
        number: A number that no other cell of this kernel has.
        prompt: The notebook's number of the cell, or 0.
        source: Its Python source (magics already translated).
        tasks: The names of the tasks that have run it.
    """

    number: int
    prompt: int
    source: str
    show_value: bool
    tasks: tuple[str, ...]
    succeeded: bool


class Exported(CellFeature):
    """Notes the cells of the user, in the order in which they end."""

    name = "exports"

    def __init__(self) -> None:
        self._ran = weakref.WeakKeyDictionary[Supervisor, list[RanCell]]()

    def ran_on(self, supervisor: Supervisor) -> list[RanCell]:
        """Return the cells of a cluster since it was started or restarted."""
        return self._ran.setdefault(supervisor, [])

    def end(self, job: Job, reports: Reports, context: Context) -> None:
        """Note a cell."""
        command, outcome = job.command, job.outcome
        if not command.is_users or not command.source.strip() or outcome is None:
            return
        good = all(isinstance(report, CellReturned) for report in reports.values())
        succeeded = good and not outcome.presses and not outcome.timed_out
        tasks = tuple(task.name for task in job.tasks)
        self.ran_on(context.supervisor).append(
            RanCell(command.cell, command.prompt, command.source, command.show_value, tasks, succeeded)
        )

    def renewed(self, context: Context) -> None:
        """Forget all cells."""
        self.ran_on(context.supervisor).clear()


FEATURE = Exported()
