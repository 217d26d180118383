"""What users call: `tfmagic.track`, and `tracked` of results. `tfmagic` imports it: it loads no more."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

NAME = "track"  # under which it travels
Points = dict[str, list[tuple[float, float]]]
"""Steps and values, by name."""

_take: Callable[[float | None, Mapping[str, Any]], None] | None = None


def give_to(take: Callable[[float | None, Mapping[str, Any]], None]) -> None:
    """Give what this process tracks to a function. A task calls it once."""
    global _take
    _take = take


def track(step: float | None = None, **values: Any) -> None:
    """Draw values as they change: a small chart for each name, with a line for each task.

    All points are in `TaskResults.tracked`. Outside of a task it does nothing, so that the same code runs.

    Args:
        step: The place on the x axis; by default one more than the last of that name in this cell.
        **values: Numbers, or scalars of numpy or TensorFlow, by name.

    Raises:
        TypeError: A value is no number.
    """
    if _take is not None:
        _take(step, values)


track.autograph_info__ = {}  # type: ignore[attr-defined]  # inside a tf.function, it is called and not translated


class TrackedValues:
    """What results have of it."""

    def _recorded(self, feature: str) -> Mapping[str, Iterator[Any]]:
        """Return what a feature has recorded, by task name."""
        raise NotImplementedError

    @property
    def tracked(self) -> Any:
        """What the tasks gave to `tfmagic.track`, read from disk at each access.

        Rows of task, name, step and value: a DataFrame where pandas is installed, else dicts.
        """
        rows = [
            {"task": task, "name": name, "step": step, "value": value}
            for task, batches in self._recorded(NAME).items()
            for batch in batches
            for name, points in batch.items()
            for step, value in points
        ]
        if find_spec("pandas") is None:
            return rows
        return import_module("pandas").DataFrame(rows, columns=["task", "name", "step", "value"])
