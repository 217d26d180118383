"""The timeline of a run, from its folder: as a picture in a notebook, and as text."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tfmagic.features.pictures import lanes, perfetto_file, timeline_svg, timeline_text
from tfmagic.features.pictures.lanes import Timeline
from tfmagic.features.pictures.timeline_file import CellBegan, Mark, Record, read_timeline
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.kept import is_kept
from tfmagic.runs.kernels import host_elsewhere, kernel_lives
from tfmagic.runs.status_reader import read_snapshot

_SEEN = "the timeline ends when it was last seen alive."
_DIED = f"The kernel of this run died; {_SEEN}"


@dataclass(frozen=True, slots=True)
class Source:
    """What a timeline was made of; `full` has all spans, however short."""

    run: RunFolder
    records: Sequence[Record]
    full: Timeline


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """A timeline that shows itself as a picture in a notebook, and as text elsewhere."""

    timeline: Timeline
    _source: Source = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """The timeline as text: a row for each task, and a list of events."""
        return timeline_text.draw(self.timeline)

    @property
    def svg(self) -> str:
        """The picture as SVG."""
        return timeline_svg.draw(self.timeline).svg

    def write_perfetto(self, file: str | os.PathLike[str]) -> None:
        """Write a trace for https://ui.perfetto.dev, in Chrome's JSON trace format.

        It has a process for each task: its states, cells and lines, arrows from the task that others waited
        for, and tracked values. A former trace of a timeline is replaced.

        Raises:
            TfmagicError: The file is there and is no such trace, or it cannot be written.
        """
        source = self._source
        perfetto_file.write(Path(file).expanduser(), source.full, source.records, source.run)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return timeline_svg.bundle(self.timeline, self.text)


def of_run(
    run: RunFolder,
    name: str,
    *,
    prompt: int | None = None,
    whole: bool = False,
    lives: bool | None = None,
    has_sources: bool = True,
) -> RunTimeline:
    """Return the timeline of a run, as `lanes.build`; `lives` by default as its folder tells.

    Args:
        has_sources: Show the lines of cells.
    """
    records = read_timeline(run)
    if not has_sources:
        records = [_without_source(record) for record in records]
    has_stopped = bool(records) and isinstance(records[-1], Mark) and records[-1].what == "stop"
    if lives is None:
        lives = not has_stopped and (kernel_lives(run) or is_kept(run.folder))
    snapshot = None if lives else read_snapshot(run.folder)
    written = snapshot.written if snapshot is not None else 0.0  # when the kernel was last seen alive
    until = time.time() if lives else max(written, records[-1].t if records else 0.0)
    note = "" if lives or has_stopped or not records else _DIED
    if note and (host := host_elsewhere(run)):
        note = f"The kernel of this run belongs to another machine ({host}); {_SEEN}"
    full = lanes.build(records, name, until=until, prompt=prompt, whole=whole, note=note)
    return RunTimeline(lanes.coarsen(full, lanes.MOST_SPANS), Source(run, records, full))


def _without_source(record: Record) -> Record:
    if isinstance(record, CellBegan) and record.source:  # a call has none
        return msgspec.structs.replace(record, source="…")
    return record
