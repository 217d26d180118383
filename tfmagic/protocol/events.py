"""Events: what happened, in a task, in the operating system, or by the user. Past tense, frozen.

The supervisor folds them into the state of its cluster. Commands (`tfmagic.protocol.commands`) go the other
way. Both carry the user's data only as `Packed` bytes (`tfmagic.protocol.payload`).

There is no "cell started": a channel keeps its order and a task runs one cell at a time, so a cell runs from
the moment when it was sent. That saves a third of the messages of an empty cell.
"""

from collections.abc import Mapping

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import AnswerInput, RunCell
from tfmagic.protocol.comms import CommMessage
from tfmagic.protocol.payload import Handle, Message, Packed, PackedError, Record
from tfmagic.protocol.reasons import Cause as Cause
from tfmagic.protocol.reasons import Wait as Wait

FIRST_STRATEGY = "first strategy"  # where tasks meet that have made no collective strategy before


class _OfTask(Message, frozen=True):
    """The base class of what happens to a task: to its process number `attempt`."""

    task: TaskId
    attempt: int


class _OfCell(_OfTask, frozen=True):
    """The base class of what happens in a task's cell."""

    cell: int


# ---- events of a task ---------------------------------------------------------------------------


class TaskReady(_OfTask, frozen=True):
    """The task is set up and takes cells."""

    pid: int
    host: str


class Displayed(_OfCell, frozen=True):
    """Something rich was displayed when the log was `offset` bytes long.

    `bundle` is JSON of {"data", "metadata", "transient", "update", "clear"}; `is_update` is its "update".
    """

    offset: int
    bundle: bytes
    is_update: bool = False


class FeatureRecorded(_OfCell, frozen=True):
    """A feature of the task adds a record, JSON in ASCII, to what the run keeps of the cell."""

    feature: str
    record: bytes


class HintGiven(_OfCell, frozen=True):
    """The task has found what neither TensorFlow nor Keras reports; `explain` knows the name."""

    name: str
    advice: str


class CommsSent(_OfTask, frozen=True):
    """Widgets of the task sent these messages to the page, in this order."""

    messages: tuple[CommMessage, ...]


class LineReached(_OfCell, frozen=True):
    """A look found the cell at this line of this file; most lines are never seen.

    Attributes:
        inside, wait: The call in which it has been for a while, such as ``time.sleep``, and its kind of wait.
        caught: Whether KeyboardInterrupt was raised in the cell, which goes on.
    """

    filename: str
    line: int
    inside: str = ""
    wait: Wait = Wait.NONE
    caught: bool = False


class BarrierReached(_OfTask, frozen=True):
    """The task waits at a barrier that all of `members` must reach; its cell and its name identify it.

    Attributes:
        timeout_s: How long it waits, in seconds; None: as long as they can still come.
        cell: The number of the cell, or of its group if it has one.
    """

    barrier: str
    members: tuple[TaskId, ...]
    timeout_s: float | None = None
    cell: int = 0


class InputWanted(_OfCell, frozen=True):
    """The cell called `input()` when the log was `offset` bytes long; `hidden` is for passwords."""

    offset: int
    number: int
    prompt: str
    hidden: bool = False


class SocketSent(_OfCell, frozen=True):
    """The cell of `members` and `group` sent a socket; on another machine, the request has an address."""

    group: int
    members: tuple[TaskId, ...]
    request: str
    handle: Handle | None = None


class FailedPull(Record, frozen=True):
    """Why a variable could not be sent back; `is_missing` if the task has no such variable."""

    reason: str
    is_missing: bool = False


class CellReturned(_OfCell, frozen=True):
    """The cell ended normally when the log was `log_end` bytes long.

    Attributes:
        value: The value of the last expression, if the cell wants it.
        value_error: Why the value could not be packed.
        pulled, failed_pulls: The variables that were asked for, and those that could not be sent.
        owned: The names that the task's own cells have assigned; None if unchanged since the last report.
        lost_bytes: How much of the output could not be written, since the disk is full.
        lost_where: The host and folder of that disk; "" if it is the notebook's.
        steps: How often the cell called the tf.function that it called most often.
        extras: What features report, by their names.
        goes_on: Whether code of the user's still runs in a thread.
    """

    seconds: float
    log_end: int
    value: Packed | None = None
    value_error: str = ""
    pulled: Mapping[str, Packed] = {}
    failed_pulls: Mapping[str, FailedPull] = {}
    owned: tuple[str, ...] | None = None
    lost_bytes: int = 0
    lost_where: str = ""
    steps: int = 0
    extras: Mapping[str, bytes] = {}
    goes_on: bool = False


class CellRaised(_OfCell, frozen=True):
    """The cell raised.

    Attributes:
        interrupted: Whether the exception was a KeyboardInterrupt.
        bound: False if the variables of the cell could not be unpickled.
        raised_at: When, on the monotonic clock of the kernel's machine, in seconds: it orders failures.
        stopped: Whether the strategies that the task has made cannot go on since this cell.
        lost_peers: Whether its TensorFlow takes living peers for dead, and does so until it is reset.
        extras: As of `CellReturned`.
    """

    seconds: float
    log_end: int
    error: PackedError
    interrupted: bool = False
    owned: tuple[str, ...] | None = None
    lost_bytes: int = 0
    lost_where: str = ""
    bound: bool = True
    raised_at: float = 0.0
    stopped: bool = False
    lost_peers: bool = False
    extras: Mapping[str, bytes] = {}


def not_sent(task: TaskId, attempt: int, cell: int, log_end: int, error: str) -> CellRaised:
    """Return the end of a cell that has not reached its task; `error` is a kind and a text."""
    kind, _, message = error.partition(": ")
    packed = PackedError(kind, message, f"{error}\n", None, f"{task}, to which it was not sent")
    return CellRaised(task, attempt, cell, 0.0, log_end, packed, bound=False)


TaskEvent = (
    TaskReady
    | Displayed
    | FeatureRecorded
    | HintGiven
    | CommsSent
    | LineReached
    | BarrierReached
    | InputWanted
    | SocketSent
    | CellReturned
    | CellRaised
)


# ---- events of the operating system -------------------------------------------------------------


class TaskStarted(_OfTask, frozen=True):
    """The task has a process.

    Attributes:
        fresh: Whether it imports TensorFlow by itself, instead of being forked with it.
        obstacle: Why a fork was not safe; "" if it was, or if nobody asked for one.
    """

    pid: int
    fresh: bool
    obstacle: str = ""


class TaskExited(_OfTask, frozen=True):
    """The task process ended; the last event of this attempt.

    Attributes:
        exit_code: Negative for the number of a signal.
        log_end: The length of its log then, in bytes; None if unknown. What follows is of a new process.
        reason: Why tfmagic itself has ended it, in the backend or in the task; else "".
        cause: The request that has ended it; the supervisor knows it.
    """

    exit_code: int
    peak_bytes: int = 0
    log_end: int | None = None
    reason: str = ""
    cause: Cause = Cause.NONE


class TaskLost(_OfTask, frozen=True):
    """The task ended in an unknown way (its launcher is gone); the last event of this attempt."""

    reason: str


class HostSilent(Message, frozen=True):
    """The host of these tasks does not answer; or, without `silent`, it answers again."""

    tasks: tuple[TaskId, ...]
    host: str
    silent: bool = True


class HostCutOff(Message, frozen=True):
    """The host of these tasks was cut off from the others on purpose; or, without `cut`, joined again."""

    tasks: tuple[TaskId, ...]
    cut: bool = True


class TasksSlowed(Message, frozen=True):
    """These tasks, and no others, are slowed down on purpose, each by its factor."""

    factors: Mapping[TaskId, float]


class ProcessSample(Message, frozen=True):
    """What a look from outside shows of a task's process.

    Attributes:
        cpu_s: Its processor time; None if it could not be read.
        stopped: Whether it is stopped, as by SIGSTOP or by a debugger.
        wanted_s: The time for which its threads, and those of its child processes, computed or waited for a
            core; None for most tasks, since it is costly to read.
    """

    cpu_s: float | None
    log_bytes: int
    stopped: bool = False
    wanted_s: float | None = None


class TasksObserved(Message, frozen=True):
    """A look at task processes from outside was taken; a look need not see all of them."""

    samples: Mapping[TaskId, ProcessSample]


# ---- requests of the user -----------------------------------------------------------------------


class LaunchRequested(Message, frozen=True):
    """The user wants a new process for each of these tasks; a running one is killed first."""

    tasks: tuple[TaskId, ...]


class CellRequested(Message, frozen=True):
    """The user wants to run a cell; it ends when every task has ended its part.

    Each task runs its cells in the order of request. A cell is `attended` if a thread waits for its end.
    """

    cell: int
    commands: Mapping[TaskId, RunCell]
    timeout_s: float | None = None
    keep_going: bool = False
    attended: bool = False


class GroupChanged(Message, frozen=True):
    """The tasks `gone` of a group of cells will never come to its barriers, and why."""

    group: int
    gone: Mapping[TaskId, str]


class InterruptPressed(Message, frozen=True):
    """The user pressed Ctrl-C, for these tasks or this cell if given.

    One press kills no task; a second one, or one that `insists`, kills what is left.
    """

    tasks: tuple[TaskId, ...] = ()
    cell: int = 0  # every one
    insists: bool = False


class InputAnswered(Message, frozen=True):
    """The user has answered the question of a task."""

    task: TaskId
    answer: AnswerInput


class CommAnswered(_OfTask, frozen=True):
    """The page sent a message to a widget of this process."""

    message: CommMessage


class SignalAsked(Message, frozen=True):
    """The task's present process is to be signalled, by the user or the fault lab if there is a `cause`."""

    task: TaskId
    number: int
    cause: Cause = Cause.NONE


class FloodAsked(Message, frozen=True):
    """The user wants this task to write so many bytes, to see what happens."""

    task: TaskId
    size_bytes: int


class StopRequested(Message, frozen=True):
    """The user wants to end every task."""


Event = (
    TaskEvent
    | TaskStarted
    | TaskExited
    | TaskLost
    | HostSilent
    | HostCutOff
    | TasksSlowed
    | TasksObserved
    | LaunchRequested
    | CellRequested
    | GroupChanged
    | InterruptPressed
    | InputAnswered
    | CommAnswered
    | SignalAsked
    | FloodAsked
    | StopRequested
)
