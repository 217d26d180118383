"""The last value of each task: equal values share a row of the table task → value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Bundle = tuple[dict[str, Any], dict[str, Any]]  # data and metadata by mime type


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A value and the tasks that have it, of `count` tasks; it is the row number `place`."""

    tasks: tuple[str, ...]
    data: dict[str, Any]
    metadata: dict[str, Any]
    count: int
    place: int = 0

    @property
    def names(self) -> str:
        return "all tasks" if len(self.tasks) == self.count > 2 else ", ".join(self.tasks)

    @property
    def text(self) -> str:
        return str(self.data.get("text/plain", ""))

    def encode(self) -> Any:
        return {"names": self.names, "data": self.data, "metadata": self.metadata}


def fold_values(values: Mapping[str, Sequence[Bundle]]) -> list[ValueRow]:
    """Return a row for each different value, in the order of the tasks."""
    rows: list[ValueRow] = []
    for task, shown in values.items():
        for data, metadata in shown:
            for place, row in enumerate(rows):
                if row.data == data and task not in row.tasks:
                    rows[place] = replace(row, tasks=(*row.tasks, task))
                    break
            else:
                rows.append(ValueRow((task,), data, metadata, len(values), len(rows)))
    return rows
