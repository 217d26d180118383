"""Which view shows a cell: by the wish of the line, the front end, and the settings."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

from IPython.core.error import UsageError

from tfmagic.clusters.settings import TFCluster
from tfmagic.views.facts import find_news
from tfmagic.views.panel import HtmlView, LiveDisplay, Look, PanelView, Publisher
from tfmagic.views.protocol import View, ViewContext
from tfmagic.views.text import TextView

_REFRESH_S = 1.0  # of html without a widget: the scroll position is lost each time

Choice = Callable[[ViewContext], View] | Literal["quiet"]


def check_view(name: str, shell: Any) -> None:
    """Refuse a view that this front end cannot show.

    Raises:
        UsageError: Says which one it can.
    """
    if name in ("widget", "html") and not hasattr(shell, "kernel"):
        raise UsageError(f"--view {name} needs a notebook; use --view text here, or leave it out")


def choose_view(name: str, shell: Any, place: str = "") -> Choice:
    """The view for a cell of this shell.

    Args:
        name: auto, widget, html, text or quiet.
        place: The id of a display whose place a panel takes.
    """
    if name == "quiet":
        return "quiet"
    is_notebook = hasattr(shell, "kernel")
    if name == "text" or not is_notebook:
        return lambda stage: _text_view(stage, shell)
    if name == "html":
        return lambda stage: HtmlView(stage, publisher(shell), _REFRESH_S, _look(), place)
    if name == "auto" and not _is_watched(shell):
        return lambda stage: HtmlView(stage, publisher(shell), None, _look(), place)
    return lambda stage: _widget_view(stage, shell, place)


def publisher(shell: Any) -> Publisher:
    """What puts bundles on the notebook's page."""

    def publish(data: Mapping[str, Any], *, display_id: str, update: bool = False) -> None:
        shell.display_pub.publish(
            data=dict(data), metadata={}, transient={"display_id": display_id}, update=update
        )

    return publish


def _widget_view(stage: ViewContext, shell: Any, place: str) -> View:
    return PanelView(stage, publisher(shell), _make_widget, _look(), place)


def _make_widget() -> LiveDisplay:
    from tfmagic.views.widget import WidgetDisplay  # ipywidgets costs 0.2 s, which a quick cell need not pay

    return WidgetDisplay()


def _text_view(stage: ViewContext, shell: Any) -> View:
    is_notebook = hasattr(shell, "kernel")

    def show_rich(
        data: dict[str, Any], metadata: dict[str, Any], transient: dict[str, Any], update: bool
    ) -> None:
        shell.display_pub.publish(data=data, metadata=metadata, transient=transient, update=update)

    is_terminal = not is_notebook and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return TextView(
        stage.folder,
        stage.starts.items(),
        stage.run.displays,
        show_rich=show_rich if is_notebook else None,
        terminal=is_terminal,
        has_begun=stage.has_begun,
        news=functools.partial(find_news, stage),
    )


def _look() -> Look:
    config = TFCluster.instance()
    return Look(config.fold_noise, config.fold_equal, config.saved_bytes)


def _is_watched(shell: Any) -> bool:
    """Whether somebody may look and click while the cell runs.

    Programs that run notebooks (nbclient, papermill, nbconvert) take no input; front ends do.
    """
    try:
        content = shell.kernel.get_parent("shell").get("content", {})
    except (AttributeError, TypeError):  # an older kernel
        return True
    return bool(content.get("allow_stdin", True))
