"""The hints of cells, on disk: a line {"cell": n, "name", "advice", "tasks"} in ``hints.jsonl`` for each.

    a task (HintGiven), or a feature in the kernel ──→ append_hint ──→ read_hints: views, reports, exceptions

A hint is no output of the user's code, and no log has it. A task gives one as soon as it finds the reason, so
that it is here whatever happens to the cell, the task or the kernel afterwards.
"""

import json
from collections.abc import Iterable, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tfmagic.protocol.cluster_spec import parse_task
from tfmagic.runs.folder import RunFolder, append_text, file_size
from tfmagic.system import files
from tfmagic.system.advice import Step

_MOST_NAMES = 4
_MOST_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Hint:
    """What to do about something that neither TensorFlow nor Keras explains."""

    name: str = ""  #: Short, for `explain` and for programs; "" where there is no more to explain.
    advice: str = ""
    tasks: tuple[str, ...] = ()  #: The tasks that it is about; () where the advice names them.

    @property
    def names(self) -> str:
        """The tasks, as people read them."""
        more = len(self.tasks) - _MOST_NAMES
        return ", ".join(self.tasks[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

    @property
    def more(self) -> str:
        """The step that explains more, or ""."""
        return str(Step("explain", self.name)) if self.name else ""

    @property
    def note(self) -> str:
        """The hint as a line: a note of an exception, for example; "" where there is none."""
        behind = "; ".join(filter(None, [self.names, self.more]))
        return f"hint: {self.advice}{f' ({behind})' if behind else ''}" if self.advice else ""


def hints_path(run: RunFolder) -> Path:
    return run.folder / "hints.jsonl"


def append_hint(run: RunFolder, cell: int, hint: Hint) -> None:
    """Keep a hint of a cell."""
    path = hints_path(run)
    line = json.dumps({"cell": cell, "name": hint.name, "advice": hint.advice, "tasks": hint.tasks})
    if file_size(path) < _MOST_BYTES:
        append_text(path, line + "\n")


def read_hints(run: RunFolder, cell: int | None = None) -> list[Hint]:
    """Return the hints of a cell, or of a whole run, in the order in which they came; equal ones once."""
    found = []
    for line in files.text_of(hints_path(run)).splitlines():
        with suppress(ValueError, TypeError, KeyError):  # a crash cut the line short
            content = json.loads(line)
            if cell in (None, content["cell"]):
                tasks = tuple(parse_task(name).name for name in content["tasks"])
                found.append(Hint(content["name"], content["advice"], tasks))
    return fold_hints(found)


def count_hints(hints: Sized) -> str:
    """Return "1 hint", "2 hints", or "" for none."""
    count = len(hints)
    return f"{count} hint{'s' * (count > 1)}" if count else ""


def fold_hints(hints: Iterable[Hint]) -> list[Hint]:
    """Return each hint once, with all tasks that have it, in their order."""
    folded: dict[tuple[str, str], Hint] = {}
    for hint in hints:
        key = hint.name, hint.advice
        before = folded.get(key, replace(hint, tasks=()))
        folded[key] = replace(hint, tasks=tuple(sorted({*before.tasks, *hint.tasks}, key=parse_task)))
    return list(folded.values())
