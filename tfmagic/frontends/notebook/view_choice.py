"""The choice of the view that shows a cell: by the option ``--view``, the front end, and the settings."""

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from IPython.core.error import UsageError

from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.protocol.comms import WIDGET_VIEW
from tfmagic.views.facts import find_left, find_news
from tfmagic.views.hints import CellHints
from tfmagic.views.logged import LoggedView
from tfmagic.views.panel import HtmlView, LiveDisplay, PanelView
from tfmagic.views.protocol import View, ViewContext
from tfmagic.views.recorded_text import RecordedText
from tfmagic.views.saved_cell import Look, Publisher
from tfmagic.views.text import QuietView, TextView

_REFRESH_S = 1.0  # of html without a widget; each refresh loses the scroll position

Choice = Callable[[ViewContext], View]


def check_view(name: str, shell: Any) -> None:
    """Raise `UsageError` for a view that this front end cannot show."""
    if name in ("widget", "html") and not can_update(shell):
        raise UsageError(f"--view {name} needs a notebook; use --view text here, or leave it out")


def choose_view(name: str, shell: Any, display_id: str = "", detached: bool = False) -> Choice:
    """Return the function that makes the view of a cell.

    Args:
        name: auto, widget, html, text or quiet.
        display_id: Of a display that a panel replaces; "" for a new one.
        detached: Whether the cell goes on after the request that has started it.
    """
    if name == "quiet":
        return _quiet_view
    if name == "auto" and detached and _drops_late_comms():
        name = "html"
    if name == "text" or not can_update(shell):
        return lambda context: _text_view(context, shell)
    config = TFCluster.instance()
    look = Look(config.fold_noise, config.fold_equal, config.saved_bytes)
    if name == "html":
        return lambda context: HtmlView(context, publisher(shell), _REFRESH_S, look, display_id)
    if name == "auto" and not is_watched(shell):
        return lambda context: _logged_view(context, shell, look, display_id)
    return lambda context: PanelView(context, publisher(shell), _new_widget, look, display_id)


def can_update(shell: Any) -> bool:
    """Check whether the front end can change what it has displayed.

    Notebooks can, and programs that run them. A terminal cannot, nor can the consoles of Jupyter, which print
    each display once. A request does not name its front end, but consoles are written with `jupyter_client`,
    whose message ids begin with the session, and ask the user for input.
    """
    request = request_of(shell)
    if request is None:
        return False
    header, is_cell = request.get("header", {}), "cellId" in request.get("metadata", {})
    is_client = str(header.get("msg_id", "")).startswith(f"{header.get('session')}_")
    return is_cell or not is_client or not _accepts_input(request)


def has_page(shell: Any) -> bool:
    """Check whether a user looks at a page that can change: everything else reads text."""
    return can_update(shell) and is_watched(shell)


def _drops_late_comms() -> bool:
    """Check whether messages of widgets are lost between two cells, as on Colab's page."""
    return "google.colab" in sys.modules  # Colab's kernel has imported it


def publisher(shell: Any) -> Publisher:
    """Return a function that puts bundles on the notebook's page."""

    def publish(
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        display_id: str,
        update: bool = False,
    ) -> None:
        shell.display_pub.publish(
            data=dict(data),
            metadata=dict(metadata or {}),
            transient={"display_id": display_id},
            update=update,
        )

    return publish


def _new_widget() -> LiveDisplay:
    from tfmagic.views.widget import WidgetDisplay  # ipywidgets costs 0.2 s, which a quick cell need not pay

    return WidgetDisplay()


def _logged_view(context: ViewContext, shell: Any, look: Look, display_id: str) -> View:
    """Return the form at the end; before it lines, where nothing but them is lost when the form comes."""
    form = HtmlView(context, publisher(shell), None, look, display_id)
    request = request_of(shell) or {}
    code = str(request.get("content", {}).get("code", "")).lstrip()
    if not code.startswith("%%tfcluster"):  # a cell with more output than that of its tasks
        return form
    starts, news = context.run.starts.items(), functools.partial(find_news, context)

    def make_lines(write: Callable[[str], object]) -> TextView:
        displays, cell = context.run.displays, context.run.request.cell
        hints = _hints_of(context)
        return TextView(
            context.folder,
            starts,
            displays,
            write,
            has_begun=context.has_begun,
            news=news,
            cell=cell,
            hints=hints,
        )

    clear = functools.partial(shell.display_pub.clear_output, wait=True)
    # a Jupyter server that runs cells (jupyter-server-documents) can add an update as one more output, as
    # euporie does
    is_euporie = str(request.get("header", {}).get("username", "")).startswith("euporie-")
    updates = not os.environ.get("JPY_SESSION_NAME") and not is_euporie
    return LoggedView(context.folder, make_lines, form, clear, updates)


def _text_view(context: ViewContext, shell: Any) -> View:
    is_notebook, publish = hasattr(shell, "kernel"), shell.display_pub.publish
    updates = can_update(shell)

    def show_rich(data: Any, metadata: Any, transient: Any, is_update: bool) -> None:
        if WIDGET_VIEW in data and context.widgets is not None:
            context.widgets.flush(everything=True)  # the page must know a widget before it can show it
            data = data if data["text/plain"] else {"text/plain": ""}  # the cell has closed it
        publish(data, metadata, transient=transient, update=is_update)

    is_terminal = not is_notebook and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    view = TextView(
        context.folder,
        context.run.starts.items(),
        context.run.displays,
        show_rich=show_rich if is_notebook else None,
        terminal=is_terminal,
        updates=updates,
        has_begun=context.has_begun,
        news=functools.partial(find_news, context),
        cell=context.run.request.cell,
        has_records=lambda: context.run.has_records,
        hints=_hints_of(context),
    )
    return RecordedText(view, context)


def _hints_of(context: ViewContext) -> CellHints:
    return CellHints(context.folder, context.run.request.cell, lambda: context.run.has_hints)


def _quiet_view(context: ViewContext) -> View:
    news = functools.partial(find_left, context)
    return RecordedText(QuietView(context.run.displays, news, context.run.starts.items()), context)


def is_watched(shell: Any) -> bool:
    """Check whether a user can look and click while the cell runs.

    Front ends accept input; programs that run notebooks (nbclient, papermill, nbconvert) do not.
    """
    return _accepts_input(request_of(shell) or {})


def request_of(shell: Any) -> Mapping[str, Any] | None:
    """Return the request that runs the present cell; None in a terminal."""
    if not hasattr(shell, "kernel"):
        return None
    try:
        return shell.kernel.get_parent("shell") or {}
    except (AttributeError, TypeError):  # an older kernel
        return {}


def _accepts_input(request: Mapping[str, Any]) -> bool:
    return bool(request.get("content", {}).get("allow_stdin", True))
