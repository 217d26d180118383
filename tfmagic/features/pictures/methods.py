"""The methods `Cluster.draw_map` and `Cluster.timeline`."""

import time

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.launch.checks import check
from tfmagic.errors import ClusterSpecError, TfmagicError
from tfmagic.features.pictures import run_timeline
from tfmagic.features.pictures.cluster_map import ClusterMap, make_map
from tfmagic.features.pictures.lanes import NoRecords
from tfmagic.features.pictures.run_timeline import RunTimeline
from tfmagic.protocol.cluster_spec import select


class Pictures(ClusterBase):
    """The methods of a cluster that draw it."""

    def draw_map(self, task: str = "") -> ClusterMap:
        """Return a map of the tasks: who is who, and what talks to what. A notebook shows it as a picture.

        Args:
            task: One task, to explain its TF_CONFIG field by field instead.

        Raises:
            ClusterSpecError: There is no such task, or the name means several.
            TfmagicError: The cluster has never been started.
        """
        running = self._started()
        chosen = select(task, running.tasks) if (task := check("task", task)) else ()
        if len(chosen) > 1:
            raise ClusterSpecError(f"a map explains one task; {task!r} means {len(chosen)}")
        supervisor = running.supervisor
        title = f"cluster {self.name}: {running.shape}, at {time.strftime('%H:%M:%S')}"
        only = chosen[0].name if chosen else ""
        return make_map(title, running.spec, supervisor.state, supervisor.policy(), time.monotonic(), only)

    def timeline(self, cell: int | None = None, *, whole: bool = False) -> RunTimeline:
        """Return the timeline of the last cell. A notebook shows it as a picture.

        Args:
            cell: The notebook's number of another cell.
            whole: Take the whole run, since the start of the cluster.

        Raises:
            TfmagicError: There is no such cell, or the cluster has never been started.
        """
        running = self._started()
        cell, whole = check("cell", cell), check("whole", whole)
        for recorder in running.recorders:
            recorder.flush()
        try:
            name, lives = f"cluster {self.name}", running.processes.running
            return run_timeline.of_run(running.run, name, prompt=cell, whole=whole, lives=lives)
        except NoRecords as error:
            raise TfmagicError(str(error)) from None
