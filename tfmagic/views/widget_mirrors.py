"""Mirrors: what stands in the kernel for the widgets of tasks.

A mirror of a widget is a widget of the kernel with the same id and state. So `ipywidgets` gives it to a page
that is loaded again, and to programs that save the state of widgets.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import comm
from ipywidgets import HBox, Label, VBox, Widget  # type: ignore[import-untyped]

from tfmagic.protocol.comms import CommMessage

_TARGET = "jupyter.widget"
_TRAITS = [f"_{part}_{trait}" for part in ("model", "view") for trait in ("name", "module", "module_version")]
_SHOWS_ONLY = {"IntProgress", "FloatProgress", "HTML", "HTMLMath", "Label", "Image", "Video", "Audio"}
_BOXES = {"HBox", "VBox", "Box", "GridBox"}
_REFERENCE = "IPY_MODEL_"

Answer = Callable[[CommMessage], object]


class TaskWidget(Widget):  # untyped
    """The mirror of a widget."""

    def __init__(self, model_id: str, state: dict[str, Any]):
        self.held = state
        for name in _TRAITS:
            if name in state:
                self.set_trait(name, state[name])
        super().__init__(model_id=model_id)

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Return the state as the task has sent it, and the page has changed it."""
        return dict(self.held)


class _Mirror:
    """One comm: its end in the kernel, and the widget, if it is one's."""

    def __init__(self, message: CommMessage, answer: Answer, release: Callable[[], object]):
        self._answer, self._release = answer, release
        data = json.loads(message.data)
        self.widget: TaskWidget | None = None
        if message.target == _TARGET:
            self.widget = TaskWidget(message.comm, _with_buffers(data, message.buffers))
            self.comm = self.widget.comm
        else:
            self.comm = comm.create_comm(
                target_name=message.target,
                target_module=message.target_module,
                data=data,
                metadata=json.loads(message.metadata),
                buffers=list(message.buffers),
                comm_id=message.comm,
            )
        self.comm.on_msg(self._on_message)
        self.comm.on_close(self._on_close)

    def send(self, message: CommMessage) -> None:
        """Send a message of the task to the page."""
        data = json.loads(message.data)
        if self.widget is not None and message.sets:
            self.widget.held.update(_with_buffers(json.loads(message.data), message.buffers))
        self.comm.send(data, json.loads(message.metadata), list(message.buffers))

    def close(self) -> None:
        if self.widget is not None:
            self.widget.close()
        else:
            self.comm.close()

    def _on_message(self, request: Mapping[str, Any]) -> None:
        """Send a message of the page to the task. The task can be busy, so changes are confirmed here."""
        data = request["content"]["data"]
        buffers = tuple(memoryview(buffer).tobytes() for buffer in request.get("buffers") or ())
        method = data.get("method")
        if self.widget is not None and method == "request_state":
            self.widget.send_state()
        else:
            if self.widget is not None and method == "update":
                self.widget.held.update(_with_buffers(json.loads(json.dumps(data)), buffers))
                self.comm.send({**data, "method": "echo_update"}, buffers=list(buffers))
            sent = CommMessage("comm_msg", self.comm.comm_id, json.dumps(data).encode(), buffers=buffers)
            self._answer(sent)
        self._release()

    def _on_close(self, request: Any) -> None:
        self._answer(CommMessage("comm_close", self.comm.comm_id))


class Mirrors:
    """The mirrors of a kernel. Its main thread alone uses them."""

    def __init__(self, kernel: Any):
        self._kernel = kernel
        self._mirrors: dict[str, _Mirror] = {}
        # each with its rows by the id of their widget, and what is called at its end
        self._panels: list[tuple[VBox, dict[str, HBox], Callable[[], object]]] = []

    def receive(self, message: CommMessage, answer: Answer, is_busy: Callable[[], bool]) -> None:
        """Do what the message of a task says."""
        mirror = self._mirrors.get(message.comm)
        if message.kind == "comm_open":
            self._mirrors[message.comm] = _Mirror(message, answer, lambda: self._release(is_busy()))
        elif mirror is not None and message.kind == "comm_msg":
            mirror.send(message)
        elif mirror is not None:
            del self._mirrors[message.comm]
            self._remove_row(message.comm)
            mirror.close()

    def control_panel(
        self, views: Sequence[tuple[str, str]], on_end: Callable[[], object]
    ) -> Mapping[str, Any] | None:
        """Return a display of the widgets among `views` that take input; None if there are none."""
        found = [(task, model) for task, model in views if self._takes_input(model)]
        rows = {model: HBox([Label(task), self._mirrors[model].widget]) for task, model in found}
        if not rows:
            return None
        box = VBox(list(rows.values()))
        self._panels.append((box, rows, on_end))
        data = dict(box._repr_mimebundle_())
        tasks = ", ".join(dict.fromkeys(task for task, model in views if model in rows))
        data["text/plain"] = f"the widgets of {tasks}, live while these tasks run"
        return data

    def _takes_input(self, model: str) -> bool:
        mirror = self._mirrors.get(model)
        if mirror is None or mirror.widget is None:
            return False
        state = mirror.widget.held
        kind = str(state.get("_model_name")).removesuffix("Model")
        if kind in _BOXES:
            children: Iterable[Any] = state.get("children") or ()
            return any(self._takes_input(str(child).removeprefix(_REFERENCE)) for child in children)
        return kind not in _SHOWS_ONLY

    def _remove_row(self, model: str) -> None:
        for panel in [panel for panel in self._panels if model in panel[1]]:
            box, rows, on_end = panel
            row = rows.pop(model)
            box.children = list(rows.values())
            # `ipywidgets` gives a page that is loaded again nothing at all if a child of one widget is closed
            _close(row, row.children[0])
            if not rows:
                self._panels.remove(panel)
                _close(box)
                on_end()

    def _release(self, is_busy: bool) -> None:
        """Report that a message of the page was handled, for which `ipywidgets` waits there.

        A kernel does so itself, but not for messages that it handles while a cell awaits something.
        """
        with contextlib.suppress(AttributeError):  # another kernel than ipykernel
            for state in ("idle", "busy") if is_busy else ("idle",):
                self._kernel.send_response(self._kernel.iopub_socket, "status", {"execution_state": state})


def _close(*widgets: Any) -> None:
    """Close widgets of ours, with what `ipywidgets` has made for them."""
    for widget in widgets:
        for part in (widget, widget.layout, getattr(widget, "style", None)):
            if part is not None:
                part.close()


def _with_buffers(data: dict[str, Any], buffers: Sequence[bytes]) -> dict[str, Any]:
    """Return the state in the data of a message, with its binary values in place."""
    state: dict[str, Any] = data["state"]
    for path, buffer in zip(data.get("buffer_paths") or (), buffers, strict=False):
        place: Any = state
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = buffer
    return state
