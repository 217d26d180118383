"""The method `Cluster.debug`."""

import msgspec

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.cells import waiting
from tfmagic.clusters.cells.cell_plan import CellPlan, Options
from tfmagic.errors import ClusterSpecError
from tfmagic.features.debug.records import EditorAsked, Listening, encode, loopback
from tfmagic.features.debug.words import how_to_attach
from tfmagic.protocol.cluster_spec import TaskId, select


class Debugging(ClusterBase):
    """The method that opens the debugger."""

    def debug(self, task: str, *, editor: bool = False) -> None:
        """Open pdb on the last failure of a task, in the task, with its live frames.

        Args:
            task: The name of the task.
            editor: Let an editor attach to the task instead, and print how: VS Code, or another client of the
                debug adapter protocol (DAP) on this machine. The task listens on loopback until it gets a new
                process. If its last cell has failed, wait for the editor, which stops at the failure.

        Raises:
            ClusterSpecError: There is no such task, or the name means several.
            TfmagicError: No cell has failed in its process; or debugpy is missing there, or it is on another
                machine.
        """
        chosen = select(task, self.tasks)
        if len(chosen) != 1:
            raise ClusterSpecError(f"a debugger looks at one task; {task!r} means {len(chosen)}")
        if not editor:
            self._run_in(chosen[0], b"")
            return
        asked = EditorAsked(loopback())
        found = self._run_in(chosen[0], encode(asked))
        assert isinstance(found, Listening)
        print(how_to_attach(chosen[0].name, found))
        if found.failure:
            self._run_in(chosen[0], encode(msgspec.structs.replace(asked, looks=True)))

    def _run_in(self, task: TaskId, asked: bytes) -> object:
        """Open a debugger in a task; return what the task reports."""
        plan = CellPlan(extras={"debug": asked}, options=Options(on=task.name))
        with self._lock:
            job = self._running_cluster().cells.begin(plan)
        waiting.finish(job)
        return job.found["debug"]
