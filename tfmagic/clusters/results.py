"""The results of a cell or a call, by task."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tfmagic.protocol.cluster_spec import TASK_TYPES, TaskId
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import read_output
from tfmagic.views import tables

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemoteValue:
    """Stands for a value that cannot travel to this process, and stayed on its task."""

    task: str
    reason: str
    advice: str = "Return plain data, such as numbers, strings or numpy arrays."

    def __repr__(self) -> str:
        return f"<a value on {self.task}: {self.reason}>"


class TaskResults(Mapping[str, T], Generic[T]):
    """The value of each task by task name, ordered chief, worker, ps, evaluator.

    Attributes:
        seconds: The run time, by task name.
        output: The text that the task wrote, by task name; read from its log at each access.
    """

    def __init__(
        self,
        values: Mapping[TaskId, T],
        seconds: Mapping[TaskId, float],
        spans: Mapping[TaskId, tuple[int, int]],
        run: RunFolder,
    ):
        ordered = sorted(values)
        self._values = {task.name: values[task] for task in ordered}
        self.seconds = {task.name: seconds[task] for task in ordered}
        self._spans = {task.name: (run.log_path(task), *spans[task]) for task in ordered}

    @property
    def output(self) -> dict[str, str]:
        return {name: read_output(*span) for name, span in self._spans.items()}

    def of(self, task_type: str) -> list[T]:
        """Return the values of the tasks of one type, by index.

        Raises:
            KeyError: It is no task type.
        """
        if task_type not in TASK_TYPES:
            raise KeyError(f"{task_type!r} is no task type; they are {', '.join(TASK_TYPES)}")
        return [v for name, v in self._values.items() if name.rpartition("-")[0] == task_type]

    def __getitem__(self, name: str) -> T:
        try:
            return self._values[name]
        except KeyError:
            known = ", ".join(self._values)
            hint = f"; use .of({name!r}) for the tasks of a type" if name in TASK_TYPES else ""
            raise KeyError(f"no result of {name!r}; there are results of {known}{hint}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        body = ", ".join(f"{name!r}: {_short(value)}" for name, value in self._values.items())
        return f"TaskResults({{{body}}})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        rows = [(name, f"{self.seconds[name]:.3f}", _short(v)) for name, v in self._values.items()]
        return table_bundle(("task", "seconds", "value"), rows)


def table_bundle(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> dict[str, str]:
    """Return a table as text, and as html that every front end shows, also in an untrusted notebook."""
    cells = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{html.escape(str(c))}</td>' for c in row) + "</tr>"
        for row in rows
    )
    head = "".join(f'<th style="text-align:left">{html.escape(c)}</th>' for c in header)
    return {
        "text/plain": tables.to_text(header, rows),
        "text/html": f"<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>",
    }


def _short(value: Any, limit: int = 200) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
