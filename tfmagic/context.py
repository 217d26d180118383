"""Who am I: what user code inside a task asks. The task program fills it in; outside it is empty."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tfmagic.errors import TfmagicError


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The task that runs this code.

    Attributes:
        type: Task type: chief, worker, ps or evaluator.
        index: Index within the type.
        cluster_spec: Addresses (``host:port``) by task type, as in this task's TF_CONFIG.
        is_chief: Whether this task does the chief's work: the chief or, without one, worker-0.
    """

    type: str
    index: int
    cluster_spec: Mapping[str, list[str]]
    is_chief: bool

    @property
    def name(self) -> str:
        """``TYPE-INDEX``."""
        return f"{self.type}-{self.index}"

    @property
    def num_tasks(self) -> int:
        """How many tasks the cluster spec has."""
        return sum(map(len, self.cluster_spec.values()))


_current: TaskContext | None = None
_barrier: Callable[[float | None], int] | None = None


BARRIER = "barrier"  # the name of `barrier` among those of the same tasks


def install(context: TaskContext, barrier: Callable[[float | None], int]) -> None:
    """Called once by the task program."""
    global _current, _barrier
    _current, _barrier = context, barrier


@contextlib.contextmanager
def acting_as(task: TaskContext, barrier: Callable[[float | None], int]) -> Iterator[None]:
    """For a while, code of this process is that of a task."""
    global _current, _barrier
    before = (_current, _barrier)
    install(task, barrier)
    try:
        yield
    finally:
        _current, _barrier = before


def is_task() -> bool:
    """Whether this process is a task of a cluster."""
    return _current is not None


def current_task() -> TaskContext:
    """The task that runs this code.

    Raises:
        TfmagicError: This process is no task of a cluster.
    """
    if _current is None:
        raise TfmagicError(
            "current_task() is for code that runs on a task; call it inside a %%tfcluster cell or "
            "a function given to Cluster.run"
        )
    return _current


def barrier(timeout: float | None = None) -> None:
    """Wait until every task that runs this cell has come here.

    Args:
        timeout: Seconds to wait at the most; None waits as long as the others are alive.

    Raises:
        threading.BrokenBarrierError: At once when a task of the cell ends or fails, or after
            `timeout`; the message names it.
        TypeError, ValueError: `timeout` is no number of seconds.
        TfmagicError: This process is no task of a cluster.
    """
    meet(timeout)


def meet(timeout: float | None = None) -> int:
    """As `barrier`; as which of the tasks this one came, from 0 on."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise TypeError(f"a barrier's timeout is a number of seconds or None, not {timeout!r}")
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"a barrier's timeout is 0 seconds or more, not {timeout}")
    if _barrier is None:
        raise TfmagicError("barrier() is for code that runs on a task of a cluster")
    return _barrier(timeout)
