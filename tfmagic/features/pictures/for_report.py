"""What a report shows of a run: map, timeline and events, in tfmagic's own words."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from tfmagic.features.pictures import run_timeline
from tfmagic.features.pictures.cluster_map import map_of_rows
from tfmagic.features.pictures.lanes import NoRecords, Timeline
from tfmagic.features.pictures.timeline_svg import draw
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.status_reader import Snapshot, row_of


class Part(NamedTuple):
    """A part of a report: titles with SVG, and events as seconds, task and text."""

    pictures: list[tuple[str, str]]
    events: list[tuple[str, str, str]]


def of_run(
    run: RunFolder, snapshot: Snapshot, own_words: Callable[[str], str], own_values: Callable[[Any], Any]
) -> Part:
    """Return the part about a run; the callables keep of texts and records what tfmagic has written."""
    found = Part([], [])
    if rows := [row_of(task) for task in snapshot.tasks]:
        title = own_words(f"{snapshot.shape}, when it was last seen")
        found.pictures.append(("Map", map_of_rows(title, rows).svg))
    try:
        whole = run_timeline.of_run(run, f"run {run}", whole=True, has_sources=False).timeline
    except NoRecords:
        return found
    # of a failure only its type, which comes first
    events = [replace(event, text=": ".join(event.text.split(": ")[:2])) for event in whole.events]
    timeline: Timeline = own_values(replace(whole, title="The whole run", events=tuple(events)))
    found.pictures.append(("Timeline", draw(timeline).svg))
    found.events.extend((f"{event.at:.1f}", event.task, event.text) for event in timeline.events)
    return found
