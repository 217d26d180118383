"""Front ends, replayed: what each one asks a kernel, and what it makes of the answers in its notebook.

A `FrontEnd` follows the messaging protocol to the letter. A client of tests/front_ends/clients derives from it
and overrides what it does otherwise, as its source says.
"""

from __future__ import annotations

import itertools
import json
import re
import time
import uuid
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any, ClassVar

from kernels import Kernel

OUTPUTS = ("stream", "display_data", "execute_result", "error")
Output = dict[str, Any]
Content = dict[str, Any]


class FrontEnd:
    """A client with an open notebook.

    Attributes:
        request: The content of its requests, without the code.
        metadata: Their metadata.
        in_session: Whether its kernel belongs to a session of a Jupyter server.
        of_library: Whether `jupyter_client` makes the ids of its messages.
        answers_comms: Whether it has a page on which the live panel runs.
        cells: The outputs of each cell.
    """

    request: ClassVar[Content] = {
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": True,
        "stop_on_error": True,
    }
    metadata: ClassVar[Content] = {}
    in_session = False
    of_library = False
    answers_comms = False

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.cells: list[list[Output]] = []
        self.clears_next = False

    def run(self, code: str, seen: Callable[[str], object]) -> list[Output]:
        """Run a new cell; `seen` gets each message as text. Return what the notebook has of the cell."""
        cell: list[Output] = []
        self.cells.append(cell)
        self.clears_next = False
        session = self.kernel.client.session
        message = session.msg("execute_request", {**self.request, "code": code}, metadata=self.metadata)
        if not self.of_library:
            message["msg_id"] = message["header"]["msg_id"] = str(uuid.uuid4())
        self.kernel.client.shell_channel.send(message)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = self.kernel.client.get_iopub_msg(timeout=deadline - time.monotonic())
            kind, content = answer["msg_type"], answer["content"]
            if answer["parent_header"].get("msg_id") == message["msg_id"]:
                if kind == "status" and content["execution_state"] == "idle":
                    return self.shown(cell)
                self.receive(cell, kind, content)
                if kind != "execute_input":
                    seen(json.dumps(content, default=str))
            elif kind == "update_display_data":
                self.update(cell, content)
        raise TimeoutError(cell)

    def receive(self, cell: list[Output], kind: str, content: Content) -> None:
        """Handle a message that answers the request of a cell."""
        if kind in OUTPUTS:
            if self.clears_next:
                self.clear(cell)
            self.append(cell, {"output_type": kind, **content})
        elif kind == "update_display_data":
            self.update(cell, content)
        elif kind == "clear_output":
            self.clears_next = content["wait"]
            if not self.clears_next:
                self.clear(cell)
        elif kind.startswith("comm_") and self.answers_comms:
            self.follow_comm(kind, content)

    def append(self, cell: list[Output], output: Output) -> None:
        """Add an output. Text of a stream goes on in the last output, if that is the same stream."""
        if output["output_type"] == "stream" and cell and cell[-1].get("name") == output["name"]:
            cell[-1]["text"] += output["text"]
        else:
            cell.append(output)

    def clear(self, cell: list[Output]) -> None:
        self.clears_next = False
        cell.clear()

    def update(self, cell: list[Output], content: Content) -> None:
        """Replace a display, in whichever cell it is."""
        for output in (output for outputs in self.cells for output in outputs):
            if display_id(output) == display_id(content):
                output |= {"data": content["data"], "metadata": content["metadata"]}

    def follow_comm(self, kind: str, content: Content) -> None:
        """Do what the panel does on a page (tfmagic/views/assets/panel.js): say hello, go at the end."""
        if kind == "comm_open" and "_esm" in content["data"].get("state", {}):
            hello = {"method": "custom", "content": {"kind": "hello", "page": 0.5}}
            self.kernel.send_comm("comm_msg", comm_id=content["comm_id"], data=hello)

    def shown(self, cell: list[Output]) -> list[Output]:
        """Return what the user gets when the cell has ended."""
        return cell


def display_id(content: Content) -> str | None:
    return content.get("transient", {}).get("display_id")


# ---- documents, without what differs from run to run ----

_PREFIX = r"\[[a-z]+-\d+\]:"
_CHANGES = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"/\S+/runs/\S+", "RUN"),
    (r"\b\d{8}-\d{6}-[\w-]+(\.\d+)?", "RUN"),
    (r"\d\d:\d\d:\d\d", "TIME"),
    (r"\b\d+(\.\d+)? s\b", "N s"),
    (r"starting tasks", "starting, importing TensorFlow"),
    (r"(?m)^tfmagic: worker.* in time\.sleep .*\n", ""),  # on a busy machine
    (r"\[\d\d:\d\d<[^\]]*\]", "[RATE]"),
    (r"pid \d+, [\w.-]+", "pid N, HOST"),
    (r"\bIn\[\d+\]", "In[N]"),
    (r"cell \[\d+\]", "cell [N]"),
    (r"--cell \d+", "--cell N"),
)


class _Text(HTMLParser):
    """The text that a reader of html sees; an image is its description."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hides = 0

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self._hides += tag == "style"
        if (
            tag == "img" and dict(attributes).get("class") != "tfm-spark"
        ):  # the CPU of a cell that took seconds
            self.parts.append(f"[image: {dict(attributes).get('alt', '')}]")
        if tag in ("div", "details", "summary", "pre", "tr", "p", "table"):
            self.parts.append("\n")
        if tag in ("td", "th"):
            self.parts.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        self._hides -= tag == "style"

    def handle_data(self, data: str) -> None:
        if not self._hides:
            self.parts.append(data)


def normalise(outputs: list[Output]) -> list[Any]:
    """Return outputs as they are compared: text as lines, html as its text, no picture, and nothing without content.

    Of a panel that is over, an empty output stays in some clients, which shows nothing.
    """
    return [_normalise(output) for output in outputs if output.get("data", True)]


def _normalise(output: Output) -> Any:
    kind = output["output_type"]
    if kind == "stream":
        return {output["name"]: lines(output["text"])}
    if kind == "error":
        return {"error": lines("\n".join(output["traceback"]))}
    return {kind: {mime: _part(mime, part) for mime, part in sorted(output["data"].items())}}


def _part(mime: str, part: Any) -> Any:
    if mime == "text/html":
        parser = _Text()
        parser.feed(part)
        return [line for line in lines("".join(parser.parts)) if line]
    return lines(part) if mime.startswith("text/") else "..."


def lines(text: str) -> list[str]:
    """Return lines, those of a task together: while a cell runs, tasks print in any order."""
    for pattern, replacement in _CHANGES:
        text = re.sub(pattern, replacement, text)
    found = [line.rstrip() for line in text.strip("\n").split("\n")]
    tasks = itertools.groupby(found, key=lambda line: bool(re.match(_PREFIX, line)))
    return [line for is_task, part in tasks for line in (sorted(part, key=_task_of) if is_task else part)]


def _task_of(line: str) -> str:
    return line.partition(":")[0]


def for_agent(outputs: list[Output]) -> list[Output]:
    """Return what jupyter-mcp-server hands to an agent: texts and pictures; how text is cut into pieces may differ."""
    made: list[Output] = []
    for output in outputs:
        data = output.get("data", {})
        if "image/png" in data:
            made.append({"output_type": "display_data", "data": {"image/png": ""}})
            continue
        text = (
            output.get("text") or "\n".join(output.get("traceback", [])) or data.get("text/plain", str(data))
        )
        if made and "text" in made[-1]:
            made[-1]["text"] = made[-1]["text"].rstrip("\n") + "\n" + text
        else:
            made.append({"output_type": "stream", "name": "agent", "text": text})
    return made
