"""Widgets of a task: their comms lead to the notebook's page, and their last state is kept as text.

    widget → TaskComm.publish_msg ──→ CommSender, 20 times a second ──→ CommsSent
    HandleComm ──→ main thread, between two cells, as in a kernel ──→ the widget's callbacks

`ipywidgets`, `anywidget` and others make their comms with the package `comm`, whose hooks a kernel sets; here
this module sets them. Nothing else is imported or started before a cell makes a widget.

A notebook without its kernel cannot show a widget. So the text of each display of a widget follows the
widget's state: at the end of a cell or callback, and now and then before.
"""

import contextlib
import html
import itertools
import json
import numbers
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import comm
from comm.base_comm import BaseComm, CommManager

from tfmagic.protocol.channel import Channel
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.comms import WIDGET_VIEW, CommMessage, Kind, updated_names
from tfmagic.task import streams
from tfmagic.task.cell_parts import Attempt, CellPart
from tfmagic.task.comm_sender import CommSender
from tfmagic.task.output_widget import OutputCapture

_TEXT_S, _TEXT_LIMIT_S = 1.0, 16.0  # between two texts of a widget during a cell; doubled each time
_TEXT_CHARACTERS = 500
_SHOWN = 200  # so many displays are kept up to date
_BAR_COLUMNS = 20
_TAGS = re.compile(r"<[^>]*>")
_REFERENCE = "IPY_MODEL_"


class TaskComm(BaseComm):  # untyped
    """A comm between a widget of this task and the page."""

    widgets: ClassVar["Widgets"]

    def __init__(
        self,
        target_name: str = "comm",
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        comm_id: str | None = None,
        **more: Any,
    ):
        if comm_id:  # chosen by the cell: the same on every task
            comm_id = f"{comm_id}-{self.widgets.mark}"
        super().__init__(target_name, data, metadata, buffers, comm_id, **more)

    @property
    def kernel(self) -> Any:
        """What an `Output` widget asks for the present request."""
        return self.widgets.capture

    @property
    def owner(self) -> Any:
        """The widget, as far as it is known."""
        return getattr(getattr(self, "_msg_callback", None), "__self__", None)

    def publish_msg(
        self, msg_type: Any, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
    ) -> None:
        """Send a message to the page, which waits for nothing."""
        self.widgets.send(self, msg_type, data or {}, metadata or {}, buffers or (), keys)


@dataclass(slots=True)
class _Shown:
    """A display of a widget, its place, and the text that was sent last."""

    model: str
    cell: int
    offset: int
    content: dict[str, Any]
    text: str


class Widgets(CellPart):
    """The comms of a task. `send` is called by any thread; `handle` and what concerns cells by the main one.

    Args:
        display: Sends a display to the notebook, given its cell and its offset in the log.
    """

    def __init__(self, boot: TaskBoot, channel: Channel, display: Callable[[dict[str, Any], int, int], None]):
        self._display = display
        self.mark = f"{os.path.basename(os.path.dirname(boot.stacks_path))}-{boot.task}-{boot.attempt}"
        self._pid = os.getpid()
        self._sender = CommSender(boot, channel, self._after_sending)
        self._states: dict[str, dict[str, Any]] = {}  # by comm, for the text
        self._shown: deque[_Shown] = deque(maxlen=_SHOWN)
        self._cell, self._numbers = 0, itertools.count()
        self._text_at, self._text_s = 0.0, _TEXT_S
        self._has_closed = False
        self.capture = OutputCapture()
        TaskComm.widgets = self
        manager = CommManager()
        self._manager: Callable[[], CommManager] = lambda: manager

    def begin(self, cell: RunCell) -> None:
        """Set the hooks of `comm`, which an import of `ipykernel` replaces."""
        comm.create_comm, comm.get_comm_manager = TaskComm, self._manager
        self._cell = cell.cell
        self._text_at, self._text_s = 0.0, _TEXT_S

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """End the cell as `flush` does."""
        self.flush()

    def flush(self) -> None:
        """Send what waits, and the text of each widget that has changed."""
        if self._sender.is_used:
            self.capture.end()
            self._sender.flush()
            self._update_texts()

    # -- to the page --

    def send(
        self, of: TaskComm, kind: Kind, data: Any, metadata: Any, buffers: Iterable[Any], keys: Any
    ) -> None:
        """Queue a message. Raises TypeError or ValueError if the data are no JSON."""
        if os.getpid() != self._pid:
            return  # a child of the cell's has no page
        if isinstance(state := data.get("state") if isinstance(data, dict) else None, dict):
            known = self._states.setdefault(of.comm_id, {})
            if tuple(state) == ("msg_id",) and known.get("_model_name") == "OutputModel":
                self.capture.turn(of.owner, bool(state["msg_id"]))
                return
            known.update(state)
            if data.get("method") == "echo_update":
                return  # the kernel has done so
        if kind == "comm_close" and self._states.pop(of.comm_id, None) is not None:
            self._has_closed = True
        message = CommMessage(
            kind,
            of.comm_id,
            _encode(data),
            _encode(metadata),
            tuple(memoryview(buffer).tobytes() for buffer in buffers),
            updated_names(data),
            str(keys.get("target_name") or ""),
            None if (module := keys.get("target_module")) is None else str(module),
        )
        self._sender.put(message)

    def _after_sending(self) -> None:
        if self._has_closed:
            self._drop_closed()
        if self._text_at and time.monotonic() >= self._text_at:
            self._text_s = min(2 * self._text_s, _TEXT_LIMIT_S)
            self._text_at = time.monotonic() + self._text_s
            self._update_texts()

    # -- from the page --

    def handle(self, message: CommMessage) -> None:
        """Let the widget handle a message of the page. An exception of a callback is printed to the log."""
        content = {"comm_id": message.comm, "data": json.loads(message.data)}
        request = {
            "header": {"msg_type": message.kind},
            "parent_header": {},
            "metadata": json.loads(message.metadata),
            "content": content,
            "buffers": [memoryview(buffer) for buffer in message.buffers],
        }
        getattr(self._manager(), message.kind)(None, None, request)  # logs what a callback raises
        self.flush()

    # -- as text --

    def note_display(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the bundle to display; {} if an `Output` widget shows it.

        A widget gets a display id, under which its text is updated, also where it is the cell's value.
        """
        if self.capture.is_active:
            self.capture.show(content)
            return {}
        if self._sender.is_used:
            self._sender.flush()  # the page knows the widget before it is told to show it
        view = content["data"].get(WIDGET_VIEW)
        model = str(view.get("model_id")) if isinstance(view, dict) else ""
        if model not in self._states:
            return content
        transient = {"display_id": f"widget-{next(self._numbers)}", **content["transient"]}
        content = {**content, "transient": transient, "value": False}
        if not content["update"]:
            text = self._describe(model)
            if str(type(self._owner_of(model)).__module__).startswith("ipywidgets"):  # else its own is better
                content["data"]["text/plain"] = text
            self._shown.append(_Shown(model, self._cell, streams.log_offset(), content, text))
            self._text_at = self._text_at or time.monotonic() + self._text_s
        return content

    def _update_texts(self) -> None:
        self._drop_closed()
        for shown in list(self._shown):
            self._update(shown, self._describe(shown.model))

    def _drop_closed(self) -> None:
        """Update the displays of widgets that the cell has closed: nothing is left of them."""
        self._has_closed = False
        for shown in [shown for shown in self._shown if shown.model not in self._states]:
            with contextlib.suppress(ValueError):  # the other thread has done so
                self._shown.remove(shown)
            self._update(shown, "")

    def _update(self, shown: _Shown, text: str) -> None:
        if text != shown.text:
            shown.text = text
            data = {**shown.content["data"], "text/plain": text}
            self._display({**shown.content, "data": data, "update": True}, shown.cell, shown.offset)

    def _owner_of(self, model: str) -> Any:
        return getattr(self._manager().comms.get(model), "owner", None)

    def _describe(self, model: str) -> str:
        with contextlib.suppress(Exception):  # a `repr` of the user's, or a state of another shape
            text = self._text_of(model) or repr(self._owner_of(model))  # "" is for closed ones
            return text[:_TEXT_CHARACTERS]
        return "a widget"

    def _text_of(self, model: str) -> str:
        """Return a text like ``50%|█████     | 5/10``, or the widget's own `repr`.

        A box of tqdm has no `repr` any more when its loop is over.
        """
        state = self._states.get(model, {})
        kind = str(state.get("_model_name", "")).removesuffix("Model")
        children = state.get("children")
        if isinstance(children, list | tuple) and children:
            texts = [self._text_of(str(child).removeprefix(_REFERENCE)) for child in children]
            return (" " if kind == "HBox" else "\n").join(filter(None, texts))
        value: Any = state.get("value")
        if kind in ("FloatProgress", "IntProgress"):
            low, high = state["min"], state["max"]
            share = min(max((value - low) / (high - low), 0), 1) if high > low else 0
            done = round(share * _BAR_COLUMNS)
            text = f"|{'█' * done}{' ' * (_BAR_COLUMNS - done)}|"
            return f"{state['description']} {text}" if state.get("description") else text
        if kind in ("HTML", "HTMLMath", "Label"):
            return html.unescape(_TAGS.sub("", str(value))).replace("\u2007", " ").strip()
        if kind == "Output":
            outputs = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in state["outputs"]]
            return "".join(text if text.endswith("\n") else f"{text}\n" for text in outputs).rstrip()
        owner = self._owner_of(model)
        return repr(owner) if owner is not None else kind or "a widget"


def _encode(data: Any) -> bytes:
    return json.dumps(data, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Convert a value for JSON, as ipykernel does."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes | memoryview):
        import base64

        return base64.b64encode(value).decode()
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"a widget cannot send a {type(value).__name__} to the page: {value!r:.80}")
