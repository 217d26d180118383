"""The messages between a kernel and its launcher; `tfmagic.task.launcher` has the drawing.

Commands are imperative, reports are in the past tense, as in `tfmagic.protocol.commands` and `events`.
"""

from collections.abc import Mapping

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.payload import Handle, Message, Record


class OpenSession(Message, frozen=True):
    """Serve a new cluster, on a channel of its own."""

    channel: Handle


class HostPlace(Record, frozen=True):
    """A simulated host, as a task process enters it.

    Attributes:
        namespaces: Its user namespace, if it has one, its network, and its host name.
        hosts_file: Its /etc/hosts.
    """

    namespaces: tuple[Handle, ...]
    hosts_file: str


class ForkTask(Message, frozen=True):
    """Start a task process with this control channel and log, on a simulated host if `where` is one."""

    task: TaskId
    attempt: int
    channel: Handle
    log: Handle
    environ: Mapping[str, str]
    fresh: bool
    where: HostPlace | None = None


class LauncherReady(Message, frozen=True):
    """TensorFlow is imported; tasks start in milliseconds from now on, if nothing is an obstacle to forks.

    Attributes:
        left_out: A line for each private part of TensorFlow and Keras that is not as tfmagic expects it.
    """

    tensorflow: str
    seconds: float
    obstacle: str = ""
    left_out: tuple[str, ...] = ()


class LauncherFailed(Message, frozen=True):
    """TensorFlow could not be imported."""

    text: str


class TaskForked(Message, frozen=True):
    """A task process was started; `pidfd` signals and watches it without races."""

    task: TaskId
    attempt: int
    pid: int
    pidfd: Handle
    fresh: bool
    obstacle: str = ""


class TaskReaped(Message, frozen=True):
    """A task process ended and its children with it."""

    task: TaskId
    attempt: int
    exit_code: int
    peak_bytes: int


class ForkFailed(Message, frozen=True):
    """No process could be started for the task, and why."""

    task: TaskId
    attempt: int
    reason: str


class SessionFailed(Message, frozen=True):
    """The launcher ends the tasks of this cluster, after an error of its own."""

    reason: str


LauncherReport = LauncherReady | LauncherFailed  # what the launcher sends on its root channel
SessionEvent = TaskForked | TaskReaped | ForkFailed | SessionFailed  # and on the channel of a cluster
