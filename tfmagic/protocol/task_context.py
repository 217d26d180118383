"""What user code can ask about the task that runs it: its identity, and barriers.

The task program fills this in; in other processes it is empty.
"""

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
        """The task's name, ``TYPE-INDEX``."""
        return f"{self.type}-{self.index}"

    @property
    def num_tasks(self) -> int:
        """The number of tasks in the cluster spec."""
        return sum(map(len, self.cluster_spec.values()))


Barrier = Callable[..., int]  # seconds to wait, its name or none → the number of tasks that came before

BARRIER = "barrier"  # the name of `barrier` among those of the same tasks
TRAINERS_BARRIER = "restore of checkpoints"  # that of `meet_trainers`


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What code on a task can use beyond its process.

    Attributes:
        barrier: Meets the tasks of the cell.
        trainers_barrier: Meets the chief and the workers among them.
        scratch: A folder, to be made, that the cluster deletes when the process has ended.
        send_socket: Sends a request, and a socket or None, to a listener in the kernel. Raises
            `ProtocolError` for a socket where that is on another machine.
        record: Adds a record of a cell: the name of a feature, the number of the cell, JSON in ASCII.
        cluster: The name of the task's cluster.
        run_mark: Returns a text that the tasks share while they run one cell, call or script, and that no
            other run has; "" if only some of the tasks that work on data run it.
    """

    barrier: Barrier
    trainers_barrier: Barrier | None = None
    scratch: str | None = None
    send_socket: Callable[[str, int | None], None] | None = None
    run_mark: Callable[[], str] = lambda: ""
    record: Callable[[str, int, bytes], None] | None = None
    cluster: str = ""


def _refuse(timeout: float | None) -> int:
    raise TfmagicError("barrier() is for code that runs on a task of a cluster")


_current: TaskContext | None = None
_services = TaskServices(_refuse)


def install(task: TaskContext, services: TaskServices) -> None:
    """Make this process the task. The task program calls it once."""
    global _current, _services
    _current, _services = task, services


@contextlib.contextmanager
def acting_as(task: TaskContext, barrier: Barrier) -> Iterator[None]:
    """Let the code of this process be a task's inside a ``with`` block."""
    global _current, _services
    before = (_current, _services)
    install(task, TaskServices(barrier))
    try:
        yield
    finally:
        _current, _services = before


def services() -> TaskServices:
    """Return the services of this task; elsewhere only a barrier that raises."""
    return _services


def is_task() -> bool:
    """Check whether this process is a task of a cluster."""
    return _current is not None


def task_of_environment() -> TaskContext | None:
    """Return the task that TF_CONFIG names, for code that also works outside of tfmagic; None without one.

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
    leads = me.type == "chief" or (me.name == "worker-0" and "chief" not in cluster)
    return TaskContext(me.type, me.index, cluster, is_chief=leads)


def current_task() -> TaskContext:
    """Return the task that runs this code.

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


def meet(timeout: float | None = None, name: str = BARRIER) -> int:
    """Wait as `barrier`, and return how many tasks came before this one. Messages show the barrier's name."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise TypeError(f"a barrier's timeout is a number of seconds or None, not {timeout!r}")
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"a barrier's timeout is 0 seconds or more, not {timeout}")
    return _services.barrier(timeout) if name == BARRIER else _services.barrier(timeout, name)


def meet_trainers() -> None:
    """Wait until the chief and every worker that runs this cell have come here; raise as `barrier`."""
    (_services.trainers_barrier or meet)(None)
