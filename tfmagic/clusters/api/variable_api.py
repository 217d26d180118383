"""Move variables to and from the tasks: methods of `Cluster`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.cells import scatter_gather, waiting
from tfmagic.clusters.cells.cell_plan import CellPlan, Options
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.launch.checks import check
from tfmagic.protocol.cluster_spec import Selector


class Variables(ClusterBase):
    """The methods for variables of tasks."""

    def push(self, values: Mapping[str, Any] | None = None, *, on: Selector = "all", **more: Any) -> None:
        """Bind variables on the tasks.

        Raises:
            CaptureError: A value cannot travel; nothing was sent.
            TypeError, ValueError: A name is none of a variable.
        """
        waiting.finish(self.begin_push({**(check("values", values) or {}), **more}, on))

    def begin_push(self, values: Mapping[str, Any], on: Selector) -> Job:
        """Begin to bind variables on the tasks. `waiting.finish` must be called next. Raise as `push`."""
        names = tuple(check("variable", name, "push(): a name") for name in values)
        return self.begin_cell(CellPlan(push=names, values=values, options=Options(on=on, view="quiet")))

    def pull(
        self, *names: str | Sequence[str], on: Selector = None, copy: bool = True
    ) -> dict[str, dict[str, Any]]:
        """Fetch variables: {name: {task name: value}}. Tensors come as numpy arrays.

        Args:
            *names: Names of variables, or one list or tuple of them.
            copy: False gives large arrays as read-only views of the memory in which they came. By default
                they can be written: the system copies each page that is.

        Raises:
            NameError: A task does not have one of them.
            CaptureError: A value cannot travel.
            TypeError: A name is no text.
        """
        return waiting.finish(self.begin_pull(names, on, check("copy", copy))).pulled

    def begin_pull(self, names: Sequence[Any], on: Selector = None, copies: bool = True) -> Job:
        """Begin to fetch variables. `waiting.finish` must be called next. Arguments as those of `pull`."""
        (given,) = names if len(names) == 1 and isinstance(names[0], list | tuple) else (names,)
        pull: tuple[str, ...] = check("names", given, "what pull() takes")
        with self._lock:
            plan = CellPlan(pull=pull, options=Options(on=on, view="quiet", copies=copies))
            return self._running_cluster().cells.begin(plan)

    def scatter(self, name: str, values: Any, *, on: Selector = None) -> None:
        """Bind a variable on each task to its part of a list, tuple, numpy array or pandas object.

        The parts are consecutive, in the order of the tasks, and differ by one item at most. A task has an
        empty part if there are more tasks than items.

        Args:
            on: Selector of tasks; by default those that run a cell.

        Raises:
            CaptureError: A part cannot travel; nothing was sent.
            TypeError: `values` cannot be divided in order.
        """
        name = check("variable", name, "name")
        how = Options(on=on, view="quiet")
        plan = CellPlan(push=(name,), values={name: values}, is_divided=True, options=how)
        waiting.finish(self.begin_cell(plan))

    def gather(self, name: str, *, on: Selector = None) -> Any:
        """Return the tasks' parts of a variable as one object, in the order of the tasks.

        Raises:
            NameError: A task does not have the variable.
            CaptureError: A part cannot travel.
            TypeError: The parts cannot be joined: a number, a dict, a list and an array.
        """
        name = check("name", name)
        return scatter_gather.join(name, self.pull(name, on=on)[name])
