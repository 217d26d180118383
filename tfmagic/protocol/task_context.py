"""Who am I: what user code inside a task asks. The task program fills it in; outside it is empty."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tfmagic.errors import ClusterSpecError, TfmagicError
from tfmagic.protocol.cluster_spec import parse_task


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


Barrier = Callable[[float | None], int]  # seconds to wait → as which one this task came

BARRIER = "barrier"  # the name of `barrier` among those of the same tasks
TRAINERS_BARRIER = "restore of checkpoints"  # that of `meet_trainers`


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What code on a task reaches beyond its process.

    Attributes:
        barrier: Meets the tasks of the cell.
        trainers_barrier: Meets the chief and the workers among them.
        scratch: A folder, to be made, that the cluster deletes when the process has ended.
        want_writer: Connects a socket with the writer of a shared HDF5 file, given the file's path, the mode,
            and the number of the notebook's opening or 0; see `tfmagic.hdf5.shared_writer.client`.
        run_mark: Returns what all tasks that work on data have in common while they run one cell, call or
            script, and no other one has; "" where only some of them run it.
    """

    barrier: Barrier
    trainers_barrier: Barrier | None = None
    scratch: str | None = None
    want_writer: Callable[[str, str, int, int], None] | None = None
    run_mark: Callable[[], str] = lambda: ""


_current: TaskContext | None = None
_reach: TaskServices | None = None


def install(task: TaskContext, reach: TaskServices) -> None:
    """Called once by the task program."""
    global _current, _reach
    _current, _reach = task, reach


@contextlib.contextmanager
def acting_as(task: TaskContext, barrier: Barrier) -> Iterator[None]:
    """For a while, code of this process is that of a task."""
    global _current, _reach
    before = (_current, _reach)
    install(task, TaskServices(barrier))
    try:
        yield
    finally:
        _current, _reach = before


def is_task() -> bool:
    """Whether this process is a task of a cluster."""
    return _current is not None


def task_of_environment() -> TaskContext | None:
    """The task that TF_CONFIG names, for what also works outside of our clusters; None where it names none.

    Raises:
        ClusterSpecError: It is not of the form that TensorFlow reads.
    """
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        if "task" not in config:
            return None
        me = parse_task(f"{config['task']['type']}-{config['task']['index']}")
        cluster = {str(kind): list(addresses) for kind, addresses in config.get("cluster", {}).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ClusterSpecError(
            f"TF_CONFIG does not say which task this is ({type(error).__name__}: {error}); give task="
        ) from error
    return TaskContext(me.type, me.index, cluster, is_chief=me.type == "chief")


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
    if _reach is None:
        raise TfmagicError("barrier() is for code that runs on a task of a cluster")
    return _reach.barrier(timeout)


def meet_trainers() -> None:
    """Wait until the chief and every worker that runs this cell have come here; errors as of `barrier`."""
    if _reach is None or _reach.trainers_barrier is None:
        barrier()
    else:
        _reach.trainers_barrier(None)


def scratch_dir() -> str | None:
    """A folder, to be made, that the cluster deletes when this process has ended. None elsewhere."""
    return None if _reach is None else _reach.scratch


def run_mark() -> str:
    """Return the mark of what the tasks run together now; see `TaskServices`. "" elsewhere."""
    return "" if _reach is None else _reach.run_mark()


def wants_writers() -> Callable[[str, str, int, int], None] | None:
    """What connects this task with the writer of a shared file; see `TaskServices`. None elsewhere."""
    return None if _reach is None else _reach.want_writer
