"""The method `Cluster.debug`."""

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.cells import waiting
from tfmagic.clusters.cells.cell_plan import CellPlan, Options
from tfmagic.errors import ClusterSpecError
from tfmagic.features.debug.records import EditorAsked, encode, loopback
from tfmagic.features.debug.words import how_to_attach
from tfmagic.protocol.cluster_spec import select


class Debugging(ClusterBase):
    """The method that opens the debugger."""

    def debug(self, task: str, *, editor: bool = False) -> None:
        """Open pdb on the last failure of a task, in the task, with its live frames.

        Args:
            task: The name of the task.
            editor: Let an editor attach to the task instead, and print how: VS Code, or another client of the
                debug adapter protocol (DAP) on this machine. The task listens on loopback until it gets a new
                process.

        Raises:
            ClusterSpecError: There is no such task, or the name means several.
            TfmagicError: No cell has failed in its process; or debugpy is missing there, or it is on another
                machine.
        """
        chosen = select(task, self.tasks)
        if len(chosen) != 1:
            raise ClusterSpecError(f"a debugger looks at one task; {task!r} means {len(chosen)}")
        asked = encode(EditorAsked(loopback())) if editor else b""
        plan = CellPlan(extras={"debug": asked}, options=Options(on=task))
        with self._lock:
            job = self._running_cluster().cells.begin(plan)
        waiting.finish(job)
        if editor:
            print(how_to_attach(chosen[0].name, job.found["debug"]))
