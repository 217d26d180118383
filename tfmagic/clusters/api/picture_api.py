"""What shows a cluster: `Cluster.draw_map`, `Cluster.timeline`, `Cluster.story`."""

import time

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.launch.checks import check
from tfmagic.errors import ClusterSpecError, TfmagicError
from tfmagic.protocol.cluster_spec import select
from tfmagic.supervisor import story_words
from tfmagic.views.pictures import run_timeline
from tfmagic.views.pictures.cluster_map import ClusterMap, make_map
from tfmagic.views.pictures.lanes import NoRecords
from tfmagic.views.pictures.run_timeline import RunTimeline


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
        running.timeline.flush()
        try:
            name, lives = f"cluster {self.name}", running.processes.running
            return run_timeline.of_run(running.run, name, prompt=cell, whole=whole, lives=lives)
        except NoRecords as error:
            raise TfmagicError(str(error)) from None

    def story(self, *tasks: str) -> list[str]:
        """Return what the loop of the cluster has seen and decided lately, a line each; also after a stop.

        Args:
            tasks: Names or other selectors; by default all tasks.

        Raises:
            TfmagicError: The cluster has never been started.
        """
        running = self._started()
        told, chosen = running.story.told(), select(tasks, running.tasks) if tasks else ()
        return story_words.lines(told.entries, told.clock, chosen)

    def write_records(self) -> None:
        """Write what the run folder does not have yet, for a report: timeline and story."""
        running = self._started()
        running.timeline.flush()
        running.story_file.write()
