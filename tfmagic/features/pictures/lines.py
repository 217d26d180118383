"""``%tfcluster map`` and ``%tfcluster timeline``."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.display import display

from tfmagic.clusters.api.lines import flag, line_command, option
from tfmagic.clusters.launch.arguments import parse_count
from tfmagic.errors import TfmagicError
from tfmagic.features.pictures import run_timeline
from tfmagic.features.pictures.cluster_map import ClusterMap
from tfmagic.features.pictures.lanes import NoRecords
from tfmagic.features.pictures.perfetto_file import HOW_TO_OPEN
from tfmagic.features.pictures.run_timeline import RunTimeline
from tfmagic.frontends.notebook.line_reports import find_run
from tfmagic.frontends.notebook.view_choice import can_update, publisher

if TYPE_CHECKING:
    from tfmagic.clusters.cluster import Cluster
    from tfmagic.frontends.notebook.magic import NotebookClusters
    from tfmagic.views.saved_cell import Publisher

_REDRAW_S = 1.0  # between two pictures of a live map, at least
_LOOK_S = 0.1  # between two looks at whether a cell runs


@line_command(
    "map",
    "draw who is who, and what talks to what:  map , or  map worker-1  for its TF_CONFIG",
    option("task", "TASK", "explain the TF_CONFIG of this task, field by field", nargs="?", default=""),
    flag("--live", "also draw it again while the next cell runs"),
    after="attach",
)
def _map(magics: NotebookClusters, name: str, task: str, live: bool) -> None:
    cluster = magics.running(name)
    found = cluster.draw_map(task)
    is_live = not task and (cluster.busy or live)
    if is_live and can_update(magics.shell):
        LiveMap(cluster, publisher(magics.shell), found, waits=live).start()
    else:
        display(found)


@line_command(
    "timeline",
    "draw what each task did and when, in the last cell:  timeline [--all] [--run RUN] [--perfetto FILE]",
    option("--cell", "N", "number of another cell in the notebook", type=parse_count),
    flag("--all", "the whole run, since the start of the cluster", dest="whole"),
    option(
        "--run", "RUN", "a past run, also one whose kernel died; attach --all lists them", dest="run_name"
    ),
    option("--perfetto", "FILE", "write a trace for https://ui.perfetto.dev instead"),
    after="map",
)
def _timeline(
    magics: NotebookClusters,
    name: str,
    cell: int | None,
    whole: bool,
    run_name: str | None,
    perfetto: str | None,
) -> None:
    found = _find_timeline(magics, name, cell, whole, run_name)
    if perfetto is None:
        display(found)
        return
    found.write_perfetto(perfetto)
    print(f"tfmagic: wrote {Path(perfetto).expanduser()}; {HOW_TO_OPEN}")


def _find_timeline(
    magics: NotebookClusters, name: str, cell: int | None, whole: bool, run_name: str | None
) -> RunTimeline:
    cluster = magics.clusters.get(name)
    if cluster is not None and not run_name:
        return cluster.timeline(cell, whole=whole)
    run = find_run(magics, name, run_name)
    try:
        return run_timeline.of_run(run, f"run {run}", prompt=cell, whole=whole)
    except NoRecords as error:
        raise UsageError(str(error)) from None


class LiveMap:
    """A map on the page that is drawn again when something has changed, until the cells that run have ended.

    It has a thread of its own, since a cell can block the main thread.

    Args:
        waits: Where no cell runs, wait for the next one.
    """

    def __init__(self, cluster: Cluster, publish: Publisher, first: ClusterMap, waits: bool):
        self._cluster, self._publish, self._shown, self._waits = cluster, publish, first, waits
        self._display_id = f"tfmagic-map-{uuid.uuid4().hex}"
        self._context = contextvars.copy_context()  # the request of the page, to which it belongs
        self._thread = threading.Thread(target=self._serve, name="tfmagic-map", daemon=True)

    def start(self) -> None:
        """Show the map, and keep it up to date."""
        self._publish(self._shown.bundle(), display_id=self._display_id)
        self._thread.start()

    def _serve(self) -> None:
        has_run, drawn_at = False, time.monotonic()
        while self._cluster.running:
            is_busy = self._cluster.busy
            is_over = not is_busy and (has_run or not self._waits)
            if is_over or time.monotonic() - drawn_at >= _REDRAW_S:
                drawn_at = time.monotonic()
                self._draw()
            if is_over:
                return
            has_run = has_run or is_busy
            time.sleep(_LOOK_S)

    def _draw(self) -> None:
        """Draw the map again if it shows something else than before."""
        with contextlib.suppress(TfmagicError):  # the cluster was stopped at this moment
            found = self._cluster.draw_map()
            if found.facts != self._shown.facts:
                self._shown = found
                bundle = found.bundle()
                self._context.run(self._publish, bundle, display_id=self._display_id, update=True)
