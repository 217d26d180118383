"""Tracked values over time, for the trace of a timeline."""

from collections.abc import Iterator

from tfmagic.features.track.names import NAME, Points
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.feature_records import timed_records
from tfmagic.runs.folder import RunFolder


def read(run: RunFolder, task: TaskId) -> Iterator[tuple[float, str, float]]:
    """Yield time, name and value; of the points that came together, the last one."""
    batch: Points
    for at, batch in timed_records(run, task, NAME):
        for name, rows in batch.items():
            yield at, name, rows[-1][1]
