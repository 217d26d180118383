"""The messages between a kernel, the driver process of its engine, and the agents on the hosts.

A frame is an encoded message with its handles (`tfmagic.protocol.channel.encode`). The driver passes frames
on without reading them; only the contents of handles, which are memory files, travel by the engine's ways.
"""

from collections.abc import Mapping

import msgspec

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import HostSilent, TaskEvent, TaskExited, TaskLost, TaskStarted
from tfmagic.protocol.payload import Handle, Message, Record
from tfmagic.system.advice import FrontEnd
from tfmagic.system.usage import Usage

EPOCH = 1 << 40  # orders and batches of an epoch: see `tfmagic.backends.remote.agent`
# instead of the number of a batch: for a driver of an earlier epoch; after the agent's lease has run out
TAKEN_OVER, LEASE_OVER = -1, -2
# longer than Ray's patience with a node (65 s by default): a break that Ray forgives costs no task
LEASE_S = 90.0

# ---- requests of the kernel, answered one by one ------------------------------------------------


class HostRequest(Record, frozen=True):
    """What a cluster asks of an engine.

    Attributes:
        address: Of the engine's head, or ``auto``.
        placement: pack, spread, or strict-spread.
        cpus, gpus, resources: Of each task. Only tasks that compute get GPUs.
        keep_s: How long the tasks go on without a kernel, in seconds; 0: they end with it.
        trusts_network: Use an engine with other machines that lets in everybody who reaches it.
    """

    address: str = "auto"
    placement: str = "spread"
    cpus: float = 1
    gpus: float = 0
    resources: Mapping[str, float] = {}
    keep_s: float = 0.0
    trusts_network: bool = False


class AgentSetup(Record, frozen=True):
    """What each agent is given.

    Attributes:
        run: The name of the run.
        environ: Variables that TensorFlow reads when it is loaded, as the kernel has them.
        lease_s: Without a sign of the kernel for so long, in seconds, an agent ends its tasks and itself.
        keep_s: The same for a cluster that outlives its kernel; 0 for others.
        kept_as: The name by which the engine finds such a cluster; "" for others.
        task_env: The environment that the user gave its tasks.
        max_log_bytes: Limit of a task's log while no kernel is attached.
        early: Variables that only TensorFlow's import sees; None removes one.
        front_end: Whose words messages take for a next step.
    """

    run: str
    cluster: str
    legacy_keras: bool = False
    environ: Mapping[str, str] = {}
    lease_s: float = LEASE_S
    keep_s: float = 0.0
    kept_as: str = ""
    task_env: Mapping[str, str] = {}
    max_log_bytes: int = 1 << 30
    early: Mapping[str, str | None] = {}
    front_end: FrontEnd = FrontEnd.NOTEBOOK

    @property
    def known_as(self) -> str:
        """The name by which the engine shows what belongs to the cluster."""
        return f"tfmagic:{self.kept_as or self.run}"


def read_setup(packed: bytes) -> AgentSetup:
    """Return the setup that was encoded on its way to or from an agent."""
    return msgspec.msgpack.decode(packed, type=AgentSetup)


class OpenHosts(Message, frozen=True):
    """Connect to the engine, and start an agent on each host that has room for tasks.

    Attributes:
        gpu_tasks: The tasks that get GPUs.
        run_folder: Where the driver writes what the tasks on the hosts have written.
        suspect_s: After so many seconds without an answer, a host is reported as silent.
        resumes: Take over the agents of the cluster that is kept, and start none.
        opened: The numbers of its cells whose results no kernel has taken.
    """

    request: HostRequest
    tasks: tuple[TaskId, ...]
    gpu_tasks: tuple[TaskId, ...]
    run_folder: str
    setup: AgentSetup
    timeout_s: float
    suspect_s: float
    resumes: bool = False
    opened: tuple[int, ...] = ()


class PlaceWanted(Message, frozen=True):
    """The engine has no place for all tasks, in words; the driver goes on waiting."""

    text: str


class Connected(Message, frozen=True):
    """A step on the way to the engine is done: the driver runs, the head answers, we are in."""


class HostFacts(Record, frozen=True):
    """A host: its address, its tasks, and the versions of what is installed there.

    Attributes:
        kept: Frames, each with a `KeptTask`, of a cluster that was taken over.
    """

    address: str
    tasks: tuple[TaskId, ...]
    versions: Mapping[str, str]
    kept: tuple[bytes, ...] = ()


class HostsOpened(Message, frozen=True):
    """Every task has its place; or the agents were taken over. `setup` is that of the agents."""

    hosts: tuple[HostFacts, ...]
    setup: AgentSetup


class ReserveAddresses(Message, frozen=True):
    """Hold a port for each task on its host."""

    tasks: tuple[TaskId, ...]


class AddressesReserved(Message, frozen=True):
    """The addresses (``host:port``) in the order of the tasks."""

    addresses: tuple[str, ...]


class CloseHosts(Message, frozen=True):
    """End the tasks on all hosts and give their places back.

    Attributes:
        keep_s: How long driver and agents wait for the next cluster then, in seconds.
    """

    keep_s: float


class HostsClosed(Message, frozen=True):
    """No report follows."""


class RequestFailed(Message, frozen=True):
    """A request could not be met, and why."""

    reason: str


DriverRequest = OpenHosts | ReserveAddresses | CloseHosts
DriverReply = PlaceWanted | Connected | HostsOpened | AddressesReserved | HostsClosed | RequestFailed


# ---- between kernel and driver, at any time -----------------------------------------------------


class Deliver(Message, frozen=True):
    """Pass an order on to the hosts of these tasks, to each host once.

    Attributes:
        frame: A command of the tasks, as their processes read it; or, without `to_task`, a `HostOrder`.
        cell: The number of the cell that it begins, or 0.
        launches: It goes to a new host if that of the task is lost.
    """

    tasks: list[TaskId]
    frame: bytes
    handles: tuple[Handle, ...] = ()
    to_task: bool = False
    cell: int = 0
    launches: bool = False


class Orders(Message, frozen=True):
    """Orders that leave together: a content that several of them have is put into the engine once."""

    orders: tuple[Deliver, ...]


class OrderFailed(Message, frozen=True):
    """An order with values was not passed on: that of a cell, or, with 0, that to launch a task."""

    tasks: tuple[TaskId, ...]
    cell: int
    reason: str


class FrameArrived(Message, frozen=True):
    """A frame of an agent, with `HostReports`.

    Attributes:
        ahead_s: How far the clock of this machine (monotonic, in seconds) is ahead of the host's.
        lost: How many bytes of output could not be written here, by the tasks' names.
        missing: Why handles of the frame are not among `handles`, by their places.
    """

    frame: bytes
    handles: tuple[Handle, ...] = ()
    ahead_s: float = 0.0
    lost: Mapping[str, int] = {}
    missing: Mapping[int, str] = {}


class HostLost(Message, frozen=True):
    """The agent of these tasks has ended, and they end with it."""

    tasks: tuple[TaskId, ...]
    reason: str


class TakenOver(Message, frozen=True):
    """Another kernel has attached to the cluster, and serves it from now on."""


DriverReport = FrameArrived | OrderFailed | HostLost | HostSilent | TakenOver


# ---- in frames: orders to an agent, and its reports ---------------------------------------------


class PrepareLaunch(Message, frozen=True):
    """Keep what the processes that are started next have in common: environment, import path, modules.

    Attributes:
        number: A random number, by which `LaunchTask` names it.
        boot: Without what `LaunchTask` has.
        modules: The notebook's own modules: see `tfmagic.backends.remote.own_modules`.
        before, after: The folders in which they are, in the order of the import path.
    """

    number: int
    boot: TaskBoot
    modules: Handle | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class LaunchTask(Message, frozen=True):
    """Start a process of a task.

    Attributes:
        prepared: The number of the `PrepareLaunch` that came before.
        tf_config: The end of TF_CONFIG, after what all tasks have.
        log_bytes: The length of the task's log in the kernel, which the host's log continues.
    """

    task: TaskId
    attempt: int
    prepared: int
    tf_config: str
    log_bytes: int


class ReadAgain(Message, frozen=True):
    """Report the task's files from their beginning: the kernel has lost its copies."""

    task: TaskId


class SignalTask(Message, frozen=True):
    """Signal the task's present process."""

    task: TaskId
    number: int


class WatchClosely(Message, frozen=True):
    """From now on, sample the costly values (runnable time) of these tasks only."""

    tasks: tuple[TaskId, ...]


class TasksUsed(Message, frozen=True):
    """What the processes of tasks use, by the tasks' names."""

    usage: Mapping[str, Usage]


class KeptCell(Record, frozen=True):
    """A cell that a task was sent before this kernel attached.

    Attributes:
        command: Without the values that went with it.
        attempt: The process that got it.
        age_s: The time since then, in seconds.
        log_start: The length of the task's log then, in bytes.
        end: How this process ended, if it did so before the cell.
    """

    command: RunCell
    attempt: int
    age_s: float
    log_start: int
    end: TaskExited | TaskLost | None = None


class KeptTask(Message, frozen=True):
    """A task of a cluster to which a kernel attaches.

    Attributes:
        attempt: Of the present process, or of the last one if that has ended.
        host: The address of its machine; "" until it is ready.
        is_busy: Whether it runs a cell.
        owned: The names that its cells have assigned.
        joined: The tasks with which it has made a collective strategy.
        end: How its last process ended. It is reported again.
    """

    task: TaskId
    attempt: int = 0
    pid: int = 0
    host: str = ""
    fresh: bool = False
    is_busy: bool = False
    owned: tuple[str, ...] = ()
    joined: tuple[TaskId, ...] = ()
    end: TaskExited | TaskLost | None = None
    cells: tuple[KeptCell, ...] = ()
    obstacle: str = ""


HostOrder = PrepareLaunch | LaunchTask | ReadAgain | SignalTask | WatchClosely
HostReport = TaskEvent | TaskStarted | TaskExited | TaskLost | TasksUsed


class HostReports(Message, frozen=True):
    """What has happened on a host since its last answer: of all its tasks, in this order."""

    reports: tuple[HostReport, ...]
