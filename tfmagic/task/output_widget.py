"""The `Output` widget of a task: what is printed and displayed inside ``with output:`` goes into it.

In a kernel the page sorts output into the widget, by the id of the request. In a task Python's streams and
displays lead into the widget's `outputs` meanwhile; what C++ and child processes write stays in the log.
"""

import io
import json
import sys
import time
from typing import Any

from tfmagic.task.shell import encode_bundle

_SYNC_S = 0.1
_LIMIT_CHARACTERS = 200_000  # of a widget: the last ones are kept


class _Stream(io.TextIOBase):
    def __init__(self, capture: "OutputCapture", name: str):
        self._capture, self._name = capture, name

    def write(self, text: str) -> int:
        self._capture.add({"output_type": "stream", "name": self._name, "text": text})
        return len(text)

    def writable(self) -> bool:
        return True


class OutputCapture:
    """Where output goes. `Output` takes it for the kernel of its comm, and asks it for a request."""

    def __init__(self) -> None:
        self._widgets: list[Any] = []  # the innermost last
        self._former: tuple[Any, Any] = (None, None)
        self._outputs: list[dict[str, Any]] = []  # of the innermost
        self._cleared: set[str] = set()  # by model: their next output replaces what they have
        self._sync_at = 0.0

    @property
    def is_active(self) -> bool:
        return bool(self._widgets)

    def get_parent(self) -> dict[str, Any]:
        """Return a request with an id: `Output` sends it to the page when it begins to capture."""
        return {"header": {"msg_id": "task"}}

    def turn(self, widget: Any, is_on: bool) -> None:
        """Begin or end to capture into a widget."""
        if self.is_active:
            self._sync()
        else:
            self._former = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = _Stream(self, "stdout"), _Stream(self, "stderr")
        if is_on:
            self._widgets.append(widget)
        elif widget in self._widgets:
            self._widgets.remove(widget)
        if self._widgets:
            self._outputs = list(self._widgets[-1].outputs)
        else:
            sys.stdout, sys.stderr = self._former

    def end(self) -> None:
        """Capture no more: the cell is over."""
        while self._widgets:
            self.turn(self._widgets[-1], False)

    def show(self, content: dict[str, Any]) -> None:
        """Put a display into the widget, or clear the widget."""
        if content.get("clear"):
            self._cleared.add(self._widgets[-1].model_id)  # also after the block: `clear_output` has its own
            if not content.get("wait"):
                self.add(None)
        elif content["data"]:
            shown = json.loads(encode_bundle({key: content[key] for key in ("data", "metadata")}))
            self.add({"output_type": "display_data", **shown})

    def add(self, output: dict[str, Any] | None) -> None:
        """Append an output."""
        if (model := self._widgets[-1].model_id) in self._cleared:
            self._cleared.remove(model)
            self._outputs = []
        last = self._outputs[-1] if self._outputs else {}
        if output is not None and output.get("name") and output["name"] == last.get("name"):
            text = (last["text"] + output["text"])[-_LIMIT_CHARACTERS:]
            self._outputs[-1] = {**last, "text": text}
        elif output is not None:
            self._outputs.append(output)
        if time.monotonic() >= self._sync_at:
            self._sync()

    def _sync(self) -> None:
        self._sync_at = time.monotonic() + _SYNC_S
        self._widgets[-1].outputs = tuple(self._outputs)
