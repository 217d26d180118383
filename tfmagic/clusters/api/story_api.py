"""What a cluster has done lately, in words and on disk: `Cluster.story`."""

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.protocol.cluster_spec import select
from tfmagic.supervisor import story_words


class Stories(ClusterBase):
    """The methods that tell what the loop of a cluster does."""

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
        """Write what the run folder does not have yet, for a report."""
        running = self._started()
        for recorder in running.recorders:
            recorder.flush()
        running.story_file.write()
