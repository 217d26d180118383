"""The method `Cluster.debug`."""

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.cells import waiting
from tfmagic.clusters.cells.cell_plan import CellPlan, Options
from tfmagic.errors import ClusterSpecError
from tfmagic.protocol.cluster_spec import select


class Debugging(ClusterBase):
    """The method that opens the debugger."""

    def debug(self, task: str) -> None:
        """Open pdb on the last failure of a task, in the task, with its live frames.

        Raises:
            ClusterSpecError: There is no such task, or the name means several.
            TfmagicError: No cell has failed in its process.
        """
        chosen = select(task, self.tasks)
        if len(chosen) != 1:
            raise ClusterSpecError(f"a debugger looks at one task; {task!r} means {len(chosen)}")
        plan = CellPlan(extras={"debug": b""}, options=Options(on=task))
        with self._lock:
            job = self._running_cluster().cells.begin(plan)
        waiting.finish(job)
