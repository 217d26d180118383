"""The two sides: a plain kernel, and a kernel whose cells run on a task of a cluster.

Both are real kernels in processes of their own, driven as a front end drives them. An observation of a cell
has its printed text, its displays, the value of its last expression and its error. At the end of a program,
the names that it left behind are compared, too.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import fingerprints
from corpus import Cell, Program
from kernels import Kernel, plain

HERE = Path(__file__).parent
_PREFIX = re.compile(r"^\[worker-0\]:    ?", re.MULTILINE)
_LONE_PREFIX = re.compile(r"(^|\n)\[worker-0\]:\n$")
_NATIVE_LOG = re.compile(
    r"^([IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d \d\d:|WARNING: All log messages before absl).*\n", re.MULTILINE
)
_OF_IPYTHON = (
    re.compile(  # its frame in a traceback as text, warnings that appear once, what follows from TF_CONFIG
        r"^[ |]*File .*/interactiveshell\.py.*\n[ |]*exec\(.*\n"
        r"|^INFO:tensorflow:.*TF_CONFIG will be ignored.*\n"
        r"|^WARNING:tensorflow:\d+ out of the last .*\n|^WARNING: AutoGraph .*\n"
        r"|^.*UserWarning: To exit: use .*\n.*\n|^CPU times: .*\n"
        r"|^\w+: worker-0 \S+ \(step \d+\)\n",  # what fit has tracked
        re.MULTILINE,
    )
)
_CALL = re.compile(r"^(?:File|Cell In) .*, in (.*)$|('Could not get source.*)", re.MULTILINE)
_TIMES = re.compile(r"\b\d+(?:\.\d+)?\s?(?:ns|us|µs|μs|ms|s|it/s|s/it)(?=\b|/)")
_ENVIRON = {"TF_CPP_MIN_LOG_LEVEL": "3", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
_TAKE_VALUE = (
    "[globals().pop('_same_value')['worker-0'], globals().update(_same_value={'worker-0': None})][0]"
)
_CELL_S = 120.0
_HANGS_S = 40  # time limit of a cell on a task: then the difference shows its stacks


@dataclass(slots=True)
class Observation:
    """The observed behaviour of a cell.

    Attributes:
        printed: The text in order: streams, and values and displays that are only text.
        errors_too: Whether a part of the text is from the error stream, whose order to the rest is unknown.
        displayed: The data of each display that is more than text, by mime type.
        value: The description of its last expression's value.
        error: The descriptions of the error and its causes.
        cell_lines: The lines of cells that the rendered traceback names.
        calls: The calls that the rendered traceback names, with their parameters.
    """

    printed: str = ""
    errors_too: bool = False
    displayed: list[dict[str, str]] = field(default_factory=list)
    value: str = ""
    error: list[dict[str, Any]] = field(default_factory=list)
    cell_lines: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Behaviour:
    """The behaviour of a program: one observation for each cell, and the names that it left behind."""

    cells: list[Observation] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)


class Side:
    """A kernel that runs programs, each in a fresh namespace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with _environment():
            self.kernel = Kernel(cwd=str(folder))
        self._ask("__import__('fingerprints').normalize('')")

    def close(self) -> None:
        self.kernel.close()

    def run(self, program: Program) -> Behaviour:
        """Run a program. Cells after a failed cell run, too, as in a notebook."""
        self.clear(program)
        found = Behaviour()
        for cell in program.cells:
            found.cells.append(self._observe(cell))
        found.names = json.loads(self._names(program))
        return found

    def clear(self, program: Program) -> None:
        """Give the kernel a fresh namespace."""
        problem = self._ask("__import__('fingerprints').restart_session(get_ipython())")
        assert not problem, problem

    def _observe(self, cell: Cell) -> Observation:
        message = self.kernel.client.execute(self._code(cell), allow_stdin=False)
        outputs = self.kernel.outputs(message, timeout=_CELL_S)
        count = self.kernel.reply(message)["execution_count"]
        seen = Observation()
        for kind, content in outputs:
            self._add(seen, kind, content)
        seen.printed = tidy(seen.printed)
        if any(kind == "error" for kind, _ in outputs):
            seen.error = self._last_error()
        else:
            seen.value = self._value(cell, count)
        return seen

    def _add(self, seen: Observation, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            seen.errors_too |= content["name"] == "stderr"
            seen.printed += content["text"]
        elif kind in ("display_data", "execute_result", "update_display_data"):
            seen.printed = self._end_line(seen.printed)
            if set(content["data"]) <= {"text/plain"}:
                seen.printed += content["data"].get("text/plain", "") + "\n"
            else:
                texts = {mime: str(d).removeprefix("[worker-0]: ") for mime, d in content["data"].items()}
                data = {mime: fingerprints.normalize(text) for mime, text in texts.items()}
                seen.displayed.append({"kind": kind.replace("execute_result", "display_data")} | data)
        elif kind == "error":
            text = plain("\n".join(content["traceback"]))
            shown = re.findall(r"Cell In ?\[\d+\](?: \(\d+\))?, line (\d+)", text)
            seen.calls = [call for call, _ in groupby(_CALL.findall(text))]
            seen.cell_lines = [line for line, _ in groupby(shown) if line != "1"]  # a recursion is one line

    def _end_line(self, text: str) -> str:
        return text if not text or text.endswith("\n") else text + "\n"

    def _code(self, cell: Cell) -> str:
        """Return the cell with a line above it, as on the other side."""
        return cell.source if cell.source.startswith("%%") else f"#\n{cell.source}"

    def _value(self, cell: Cell, count: int) -> str:
        return self._ask(f"__import__('fingerprints').describe(get_ipython().user_ns['Out'].get({count}))")

    def _names(self, program: Program) -> str:
        return self._ask("__import__('fingerprints').describe_names(get_ipython().user_ns)")

    def _last_error(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            self._ask("__import__('fingerprints').describe_last_error()")
        )
        return found

    def _do(self, code: str) -> None:
        """Run a cell that must not fail and that leaves no trace in the history."""
        message = self.kernel.client.execute(code, store_history=False, allow_stdin=False)
        outputs = self.kernel.outputs(message, timeout=_CELL_S)
        assert not any(kind == "error" for kind, _ in outputs), outputs

    def _ask(self, expression: str) -> str:
        """Return the value of an expression whose value is a text; "" for None."""
        client = self.kernel.client
        message = client.execute("", silent=True, store_history=False, user_expressions={"it": expression})
        self.kernel.outputs(message)
        answer = self.kernel.reply(message)["user_expressions"]["it"]
        if answer["status"] != "ok":
            return f"{answer['ename']}: {answer['evalue']}"
        return str(ast.literal_eval(answer["data"]["text/plain"]) or "")


class BareSide(Side):
    """The plain kernel."""

    def _code(self, cell: Cell) -> str:
        return super()._code(cell if cell.otherwise is None else Cell(cell.otherwise))


class TaskSide(Side):
    """The kernel with tfmagic and one worker."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._do("%load_ext tfmagic")
        self._do("%tfcluster start --workers 1")

    def clear(self, program: Program) -> None:
        super().clear(program)  # the program before has cleared the task
        if program.uses_notebook:  # the kernel keeps a record of the values that it sent to a process
            self._do("%tfcluster restart")

    def _add(self, seen: Observation, kind: str, content: dict[str, Any]) -> None:
        if kind in ("display_data", "update_display_data"):
            head, _, name = content["data"].get("text/plain", "").partition("[worker-0]: ")
            if name and not head:  # a picture: the line above it has its name, too
                seen.printed = seen.printed.removesuffix(f"[worker-0]:    {name}\n")
            seen.printed = _LONE_PREFIX.sub(r"\1", seen.printed)
        super()._add(seen, kind, content)

    def _code(self, cell: Cell) -> str:
        if cell.in_notebook:
            return super()._code(cell)
        return f"%%tfcluster --view text --timeout {_HANGS_S} --out _same_value\n{cell.source}"

    def _value(self, cell: Cell, count: int) -> str:
        if cell.in_notebook:
            return super()._value(cell, count)
        value = "globals().get('_same_value', {'worker-0': None})['worker-0']"  # an empty cell binds nothing
        return self._ask(f"__import__('fingerprints').describe({value})")

    def _last_error(self) -> list[dict[str, Any]]:
        found = super()._last_error()
        for error in found:
            if error["lines"][:1] == [[1, "<module>"]]:  # the line of the magic
                del error["lines"][0]
        return found

    def _names(self, program: Program) -> str:
        self._on_task("__import__('fingerprints').take_names(globals())")
        on_task = json.loads(self._ask(_TAKE_VALUE))
        if not program.uses_notebook:
            return json.dumps(on_task)
        return json.dumps(json.loads(super()._names(program)) | on_task)

    def _on_task(self, expression: str) -> None:
        self._do(f"%%tfcluster --view quiet --out _same_value\n{expression}")


@contextmanager
def _environment() -> Iterator[None]:
    """Set the environment of a kernel. Without pytest's variable, ipykernel shows the output of children."""
    before = dict(os.environ)
    os.environ.update(_ENVIRON, PYTHONPATH=str(HERE))
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def tidy(text: str) -> str:
    """Return text as a terminal shows it, without the parts that differ by run."""
    text = _OF_IPYTHON.sub("", _NATIVE_LOG.sub("", _PREFIX.sub("", text)))
    rows = [_row(line).rstrip() for line in plain(text).split("\n")]
    text = _TIMES.sub("…", fingerprints.normalize("\n".join(rows)))
    return text if not text or text.endswith("\n") else text + "\n"


def _row(line: str) -> str:
    """Return a line after its carriage returns, backspaces and tabs."""
    cells: list[str] = []
    at = 0
    for character in line:
        if character == "\r":
            at = 0
        elif character == "\b":
            at = max(at - 1, 0)
        elif character == "\t":
            cells[at:] = [" "] * (8 - at % 8)
            at = len(cells)
        else:
            cells[at : at + 1] = [character]
            at += 1
    return "".join(cells)
