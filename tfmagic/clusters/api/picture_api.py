"""The pictures of a cluster: `Cluster.draw_map` and `Cluster.timeline`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tfmagic.clusters.launch.checks import check
from tfmagic.errors import ClusterSpecError, TfmagicError
from tfmagic.protocol.cluster_spec import select
from tfmagic.views.pictures import run_timeline
from tfmagic.views.pictures.cluster_map import ClusterMap, make_map
from tfmagic.views.pictures.lanes import NoRecords
from tfmagic.views.pictures.run_timeline import RunTimeline

if TYPE_CHECKING:
    from tfmagic.clusters.running_cluster import RunningCluster


class Pictures:
    """The methods of a cluster that draw it."""

    name: str
    _latest: RunningCluster | None

    def draw_map(self, task: str = "") -> ClusterMap:
        """Return a map of the tasks: who is who, and what talks to what. A notebook shows it as a picture.

        Args:
            task: One task, to explain its TF_CONFIG field by field instead.

        Raises:
            ClusterSpecError: There is no such task, or the name means several.
            TfmagicError: The cluster has never been started.
        """
        running = self._latest
        if running is None:
            raise TfmagicError(f"cluster {self.name!r} has never been started")
        chosen = select(check("task", task), running.tasks) if task else ()
        if len(chosen) > 1:
            raise ClusterSpecError(f"a map explains one task; {task!r} means {len(chosen)}")
        supervisor = running.supervisor
        title = f"cluster {self.name}: {running.shape}, at {time.strftime('%H:%M:%S')}"
        only = chosen[0].name if chosen else ""
        return make_map(title, running.spec, supervisor.state, supervisor.policy(), time.monotonic(), only)

    def timeline(self, cell: int | None = None, *, whole: bool = False) -> RunTimeline:
        """Return what each task did and when, in the last cell. A notebook shows it as a picture.

        Args:
            cell: The notebook's number of another cell.
            whole: Take the whole run, since the start of the cluster.

        Raises:
            TfmagicError: There is no such cell, or the cluster has never been started.
        """
        running = self._latest
        if running is None:
            raise TfmagicError(f"cluster {self.name!r} has never been started")
        cell, whole = check("cell", cell), check("whole", whole)
        running.timeline.flush()
        try:
            name, lives = f"cluster {self.name}", running.processes.running
            return run_timeline.of_run(running.run, name, prompt=cell, whole=whole, lives=lives)
        except NoRecords as error:
            raise TfmagicError(str(error)) from None
