"""The choice of the view that shows a cell: by the option ``--view``, the front end, and the settings."""

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

_REFRESH_S = 1.0  # of html without a widget; each refresh loses the scroll position

Choice = Callable[[ViewContext], View] | Literal["quiet"]


def check_view(name: str, shell: Any) -> None:
    """Raise `UsageError` for a view that this front end cannot show."""
    if name in ("widget", "html") and not hasattr(shell, "kernel"):
        raise UsageError(f"--view {name} needs a notebook; use --view text here, or leave it out")


def choose_view(name: str, shell: Any, display_id: str = "") -> Choice:
    """Return what makes the view of a cell.

    Args:
        name: auto, widget, html, text or quiet.
        display_id: Of a display that a panel replaces; "" for a new one.
    """
    if name == "quiet":
        return "quiet"
    if name == "text" or not hasattr(shell, "kernel"):
        return lambda context: _text_view(context, shell)
    config = TFCluster.instance()
    look = Look(config.fold_noise, config.fold_equal, config.saved_bytes)
    if name == "html" or (name == "auto" and not _is_watched(shell)):
        refresh_s = _REFRESH_S if name == "html" else None
        return lambda context: HtmlView(context, publisher(shell), refresh_s, look, display_id)
    return lambda context: PanelView(context, publisher(shell), _new_widget, look, display_id)


def publisher(shell: Any) -> Publisher:
    """Return a function that puts bundles on the notebook's page."""

    def publish(data: Mapping[str, Any], *, display_id: str, update: bool = False) -> None:
        shell.display_pub.publish(
            data=dict(data), metadata={}, transient={"display_id": display_id}, update=update
        )

    return publish


def _new_widget() -> LiveDisplay:
    from tfmagic.views.widget import WidgetDisplay  # ipywidgets costs 0.2 s, which a quick cell need not pay

    return WidgetDisplay()


def _text_view(context: ViewContext, shell: Any) -> View:
    is_notebook, publish = hasattr(shell, "kernel"), shell.display_pub.publish
    is_terminal = not is_notebook and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return TextView(
        context.folder,
        context.run.starts.items(),
        context.run.displays,
        show_rich=(lambda d, m, t, u: publish(d, m, transient=t, update=u)) if is_notebook else None,
        terminal=is_terminal,
        has_begun=context.has_begun,
        news=functools.partial(find_news, context),
    )


def _is_watched(shell: Any) -> bool:
    """Check whether a user can look and click while the cell runs.

    Front ends accept input; programs that run notebooks (nbclient, papermill, nbconvert) do not.
    """
    try:
        content = shell.kernel.get_parent("shell").get("content", {})
    except (AttributeError, TypeError):  # an older kernel
        return True
    return bool(content.get("allow_stdin", True))
