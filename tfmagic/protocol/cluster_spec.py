"""Task ids, the shapes and addresses of clusters, TF_CONFIG, and selectors of tasks. Pure data.

Every other package uses this module; it imports nothing of tfmagic but the errors.
"""

import functools
import json
import operator
import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from tfmagic.errors import ClusterSpecError
from tfmagic.system.advice import did_you_mean
from tfmagic.system.arguments import is_flag

TASK_TYPES = ("chief", "worker", "ps", "evaluator")
"""The task types of TF_CONFIG, in the order in which results and displays list them."""

_MOST_TASKS = (
    65_000  # a machine has 65,535 ports, and each task needs one; the doctor knows how many are free
)
_NAME = re.compile(r"\w[\w.+-]{0,99}")

_LOOPBACK = ("localhost:", "127.", "[::1]:")


class TaskId(NamedTuple):
    """One task of a cluster: its type and its index within that type.

    A named tuple, not a dataclass: it is a dictionary key a hundred times in every cell.
    """

    type: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed here

    @property
    @functools.lru_cache(maxsize=4096)  # noqa: B019  # of values as small as their names
    def name(self) -> str:
        """The task's name, ``TYPE-INDEX``, in prefixes, results, errors and selectors."""
        return f"{self.type}-{self.index}"

    def __str__(self) -> str:
        return self.name

    def __lt__(self, other: tuple[object, ...]) -> bool:
        assert isinstance(other, TaskId)
        return self.sort_key < other.sort_key

    @property
    def sort_key(self) -> tuple[int, int]:
        """The key of the order chief, worker, ps, evaluator, any other type, then by index."""
        place = TASK_TYPES.index(self.type) if self.type in TASK_TYPES else len(TASK_TYPES)
        return (place, self.index)


def parse_task(name: str) -> TaskId:
    """Return the task called `name`, such as ``worker-1``.

    Raises:
        ClusterSpecError: The text is not of the form ``TYPE-INDEX``.
    """
    match = re.fullmatch(r"([a-z]+)-(\d+)", name)
    if not match or match[1] not in TASK_TYPES:
        raise ClusterSpecError(
            f"{name!r} is not a task; a task is called TYPE-INDEX with one of the types "
            f"{', '.join(TASK_TYPES)}, such as worker-0"
        )
    return TaskId(match[1], int(match[2]))


def check_name(name: object) -> str:
    """Return `name` if it can name a cluster: in folders, in html and on magic lines.

    Raises:
        ClusterSpecError: It is not made of letters, digits, ``.``, ``+``, ``-`` and ``_``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ClusterSpecError(
            f"{name!r} cannot name a cluster: use up to 100 letters, digits, - and _, with a letter first"
        )
    return name


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The number of tasks of each type.

    Attributes:
        adds_chief: Whether a cluster with parameter servers gets a chief that coordinates it.

    Raises:
        ClusterSpecError: Negative counts, more than one chief or evaluator, no task to run a cell,
            or parameter servers without workers.
    """

    workers: int = 2
    ps: int = 0
    chief: bool = False
    evaluator: bool = False
    adds_chief: bool = True

    def __post_init__(self) -> None:
        for name, count in (("workers", self.workers), ("ps", self.ps)):
            if isinstance(count, bool) or not hasattr(type(count), "__index__"):
                raise ClusterSpecError(f"{name} is a number of tasks, not {count!r}")
            object.__setattr__(self, name, operator.index(count))  # an int, also of one of numpy's
            if count < 0:
                raise ClusterSpecError(f"{name} is a number of tasks and cannot be {count}; use 0 or more")
            if count > _MOST_TASKS:
                raise ClusterSpecError(
                    f"{name} cannot be {count}: a cluster has at most {_MOST_TASKS} tasks, since each needs "
                    "a port of its own, of which a machine has 65,535"
                )
        for name, flag in (("chief", self.chief), ("evaluator", self.evaluator)):
            if not is_flag(flag) or flag not in (True, False):
                raise ClusterSpecError(
                    f"a cluster has at most one {name}; pass {name}=True or False, not {flag!r}"
                )
        if self.ps and not self.workers:
            raise ClusterSpecError(
                "a cluster with ps tasks needs at least one worker to compute; add workers"
            )
        if self.ps and not self.chief and self.adds_chief:  # the coordinator is the chief
            object.__setattr__(self, "chief", True)
        if not self.chief and not self.workers:
            raise ClusterSpecError("a cluster needs at least one chief or worker task; add workers")

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """Every task, in the order of `TASK_TYPES`."""
        return _tasks_of((int(self.chief), self.workers, self.ps, int(self.evaluator)))

    @property
    def leader(self) -> TaskId:
        """The task that acts as chief: ``chief-0`` or, where there is none, ``worker-0``."""
        return self.tasks[0]

    @property
    def cell_tasks(self) -> tuple[TaskId, ...]:
        """The tasks that run a cell by default.

        With parameter servers that is the coordinator alone; else chief and workers. An evaluator runs a
        cell only if ``--on`` names it.
        """
        if self.ps and self.chief:
            return (TaskId("chief", 0),)
        return tuple(t for t in self.tasks if t.type in ("chief", "worker"))

    def __str__(self) -> str:
        workers = "workers" if self.workers > 1 else "worker"
        counts = {"chief": self.chief, workers: self.workers, "ps": self.ps, "evaluator": self.evaluator}
        return ", ".join(f"{int(count)} {word}" for word, count in counts.items() if count)


@functools.lru_cache(maxsize=64)  # a property that is read for each task of a large cluster
def _tasks_of(counts: tuple[int, ...]) -> tuple[TaskId, ...]:
    return tuple(TaskId(t, i) for t, n in zip(TASK_TYPES, counts, strict=True) for i in range(n))


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A shape with an address (``host:port``) for each task."""

    shape: ClusterShape
    addresses: Mapping[TaskId, str]
    _encoded: dict[bool, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_local(self) -> bool:
        """Whether every address is on the loopback device."""
        return all(address.startswith(_LOOPBACK) for address in self.addresses.values())

    def tf_config(self, task: TaskId) -> str:
        """Return TF_CONFIG of `task`, as JSON.

        Only the evaluator's own has the evaluator: a chief that finds one in its cluster spec waits for ever
        for a server that the evaluator does not run (tf.distribute, measured on 2.21).
        """
        if (has_evaluator := task.type == "evaluator") not in self._encoded:  # the same for all others
            cluster: dict[str, list[str]] = {}
            for other in self.shape.tasks:
                if other.type != "evaluator" or has_evaluator:
                    cluster.setdefault(other.type, []).append(self.addresses[other])
            self._encoded[has_evaluator] = json.dumps(cluster)
        own = json.dumps({"type": task.type, "index": task.index})
        return f'{{"cluster": {self._encoded[has_evaluator]}, "task": {own}}}'


@dataclass(frozen=True, slots=True)
class GivenSpec:
    """A cluster spec that the user gives: a shape and its addresses, which stay as they are.

    Every task gets the same cluster spec in its TF_CONFIG, an evaluator included.

    Attributes:
        cluster: Addresses by task type. A task can be outside of it.
    """

    cluster: Mapping[str, Sequence[str]]
    rpc_layer: str = ""

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """Every task that the spec names."""
        return tuple(sorted(TaskId(t, i) for t, found in self.cluster.items() for i in range(len(found))))

    @property
    def leader(self) -> TaskId:
        """The task that acts as chief."""
        return self.tasks[0]

    @property
    def cell_tasks(self) -> tuple[TaskId, ...]:
        """All tasks."""
        return self.tasks

    @property
    def addresses(self) -> Mapping[TaskId, str]:
        return {task: self.cluster[task.type][task.index] for task in self.tasks}

    @property
    def is_local(self) -> bool:
        """Whether every address is on the loopback device."""
        return all(address.startswith(_LOOPBACK) for address in self.addresses.values())

    def tf_config(self, task: TaskId) -> str:
        """Return TF_CONFIG of `task`, as JSON."""
        layer = {"rpc_layer": self.rpc_layer} if self.rpc_layer else {}
        me = {"type": task.type, "index": task.index}
        return json.dumps({"cluster": dict(self.cluster), "task": me, **layer})

    def __str__(self) -> str:
        return ", ".join(f"{len(found)} {task_type}" for task_type, found in self.cluster.items() if found)


Selector = str | Sequence[str] | None
"""A choice of tasks: a text for `select`, or several such texts; None for the tasks that run cells."""

Shape = ClusterShape | GivenSpec
Spec = ClusterSpec | GivenSpec


def select(selector: str | Sequence[str], tasks: Iterable[TaskId]) -> tuple[TaskId, ...]:
    """Return the tasks that `selector` names, in the cluster's order and each once.

    Args:
        selector: Comma-separated ``all``, a type, a task, or a Python slice of the tasks of a type, such as
            ``worker-0:3`` or ``worker-::2``; or a list of those; or tasks themselves.
        tasks: The tasks of the cluster.

    Raises:
        ClusterSpecError: The selector is empty, malformed, or names a task that is not there.
    """
    present = tuple(tasks)
    parts = [part.strip() for text in _texts_of(selector) for part in text.split(",") if part.strip()]
    if not parts:
        raise ClusterSpecError(f"the selector {selector!r} names no task; {_known(present)}")
    chosen = {task for part in parts for task in _select_part(part, present)}
    return tuple(task for task in present if task in chosen)


def _texts_of(selector: object) -> list[str]:
    """Return the texts of a selector, which can be a list."""
    if isinstance(selector, str | TaskId):
        return [str(selector)]
    if isinstance(selector, Sequence | Set) and all(isinstance(item, str | TaskId) for item in selector):
        return [str(item) for item in selector]
    raise ClusterSpecError(
        f"tasks are named by text, such as 'worker-0' or ['worker-0', 'worker-1'], not by {selector!r}"
    )


def _select_part(part: str, present: tuple[TaskId, ...]) -> list[TaskId]:
    if part == "all":
        return list(present)
    if part in TASK_TYPES:
        found = [t for t in present if t.type == part]
    elif match := re.fullmatch(r"([a-z]+)-(?:(\d+)|(\d*):(\d*)(?::([1-9]\d*)?)?)", part):
        kind, index, *ends = match.groups()
        step = slice(*(int(end) if end else None for end in ends))
        chosen = {int(index)} if index else range(sys.maxsize)[step]
        found = [t for t in present if t.type == kind and t.index in chosen]
    elif ":" in part:
        raise ClusterSpecError(
            f"{part!r} is no slice of tasks: worker-FROM:TO:STEP has numbers from 0 (each can be left out), "
            f"and a step from 1; {_known(present)}"
        )
    else:
        found = []
    if not found:
        is_name = part.partition("-")[0] in {t.type for t in present}
        names = map(str, present) if "-" in part else {t.type: None for t in present}
        question = "" if is_name else did_you_mean(part, ["all", *names])
        raise ClusterSpecError(f"there is no task {part!r} in this cluster; {_known(present)}{question}")
    return found


def _known(tasks: tuple[TaskId, ...]) -> str:
    return "it has " + ", ".join(t.name for t in tasks)
