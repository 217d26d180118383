"""Write a timeline as a file for Perfetto: the trace, the process of its notebook, and counters.

records ─→ lanes ─→ perfetto_trace ─┐
run.json, status.json ──────────────┼─→ FILE
counters of features ───────────────┘
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfmagic.errors import TfmagicError
from tfmagic.features.pictures.lanes import Timeline
from tfmagic.features.pictures.perfetto_trace import Point, describe_processes, events_of
from tfmagic.features.pictures.timeline_file import Record
from tfmagic.protocol.cluster_spec import parse_task
from tfmagic.runs.folder import RunFolder, read_meta
from tfmagic.system import files
from tfmagic.system.features import halves

HOW_TO_OPEN = "open it at https://ui.perfetto.dev, which reads it in the browser and sends it nowhere"
_MARK = '{"otherData": {"writer": "tfmagic timeline"'  # how each of these files begins


def write(path: Path, timeline: Timeline, records: Sequence[Record], run: RunFolder) -> None:
    """Write a trace, which only this user can read, since it has the text of cells.

    Raises:
        TfmagicError: The file is there and is no trace of a timeline, or it cannot be written.
    """
    try:
        is_there = os.path.lexists(path)
        if is_there and not files.read_bytes(path, 200).decode("utf-8", "replace").startswith(_MARK):
            raise TfmagicError(
                f"{path} is not a trace of a timeline, and is left as it is; name another file"
            )
        files.replace_text(path, _text_of(timeline, records, run), 0o600)
    except OSError as error:
        raise TfmagicError(f"{path} cannot be written ({error.strerror or error})") from error


def _text_of(timeline: Timeline, records: Sequence[Record], run: RunFolder) -> str:
    names = {"": _notebook(run), **describe_processes(records)}
    events = events_of(timeline, records, names, _points(run, timeline))
    facts = {"title": timeline.title, "run": str(run), "began": timeline.began, "note": timeline.note}
    more = json.dumps(facts)[1:-1]
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in events)
    return f'{_MARK}, {more}}},\n"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def _notebook(run: RunFolder) -> str:
    """Return the pid and the host of the notebook's kernel, or of the program that started the cluster."""
    meta = read_meta(run.folder)
    return ", ".join(
        f"{before}{meta[key]}" for key, before in (("pid", "pid "), ("host", "")) if meta.get(key)
    )


def _points(run: RunFolder, timeline: Timeline) -> Iterator[Point]:
    """Yield what features have recorded of the tasks in the timeline."""
    for lane in timeline.lanes:
        for half in halves("counters"):
            for at, name, value in half.read(run, parse_task(lane.task)):
                yield Point(at, lane.task, name, value)
