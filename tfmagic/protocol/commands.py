"""Commands: what the supervisor sends to a task process. Imperative, frozen; `events` come back."""

import enum
import sys
from collections.abc import Mapping

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.comms import CommMessage
from tfmagic.protocol.payload import Message, Packed, Record
from tfmagic.system.advice import FrontEnd
from tfmagic.system.process_options import ProcessOptions


class Origin(Record, frozen=True):
    """Where a module comes from that a task could not import as the caller did.

    See `tfmagic.protocol.module_origins`.

    Attributes:
        file: Its file; "" for a package without code.
        search: Where the modules of a package are; None for a module that is no package.
        rewritten: Whether pytest has rewritten its asserts.
    """

    name: str
    file: str
    search: tuple[str, ...] | None = None
    rewritten: bool = False


class MainScript(Record, frozen=True):
    """A script that each task imports; see `tfmagic.serialization.main_script`.

    Attributes:
        argv: Its `sys.argv`.
        package: The package of a script that was started as ``python -m package.module``.
    """

    file: str
    argv: tuple[str, ...] = ()
    package: str = ""


class TaskBoot(Message, frozen=True):
    """The first message to a new task process: its identity and its set-up.

    Attributes:
        shape_tasks: All tasks of the cluster.
        leader: The task that acts as chief.
        loopback_only: Whether TensorFlow's servers listen on the loopback device only.
        starts_servers: Whether ps and worker tasks serve by themselves in a cluster with a ps.
        is_plain: Whether nothing is prepared for TensorFlow's strategies.
        authkey: Lets it reach the managers of the user's `multiprocessing`.
        script: Imported before the first call.
        front_end: Whose words messages take for a next step.
        is_interactive: Whether its cells come from a notebook or a prompt: TensorFlow logs as there.
        options: Those options of the cluster that the process obeys itself.
        is_relayed: Whether an agent passes messages on, and no file descriptor but those of values: the
            kernel can be on another machine.
    """

    task: TaskId
    attempt: int
    cluster: str
    shape_tasks: tuple[TaskId, ...]
    tf_config: str
    environ: Mapping[str, str]
    cwd: str
    sys_path: tuple[str, ...]
    stacks_path: str
    leader: TaskId
    heartbeat_ms: int
    keras_fix: bool
    loopback_only: bool = True
    starts_servers: bool = True
    is_plain: bool = False
    authkey: bytes = b""
    origins: tuple[Origin, ...] = ()
    script: MainScript | None = None
    front_end: FrontEnd = FrontEnd.NOTEBOOK
    is_interactive: bool = False
    is_relayed: bool = False
    options: ProcessOptions = ProcessOptions()

    def __repr__(self) -> str:
        """Return the task alone: tools that show the values of all frames would print the environment."""
        return f"TaskBoot({self.task}, {self.attempt})"


class Carried(Record, frozen=True):
    """What of the notebook a cell brings to a task that lacks it.

    Attributes:
        names: Packed dicts of variables to bind first, one after the other.
        sources: The (file name, text) of the notebook cells that their code is from.
        early_settings: A packed call that makes settings of the notebook before its variables are bound.
        settings: A packed call that makes others after that.
    """

    names: tuple[Packed, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    early_settings: Packed | None = None
    settings: Packed | None = None


class CellKind(enum.Enum):
    """What becomes of the task with a cell."""

    USUAL = "usual"  #: The task waits for the next one.
    ASIDE = "aside"  #: The same; a question of tfmagic's own, and not the last cell for errors and pictures.
    EXIT = "exit"  #: The process ends, and its exit code tells how the cell ended.


class Rejoin(Record, frozen=True):
    """The task leaves its cluster for that of `tf_config`, and returns how often its process has done so."""

    tf_config: str


class RunCell(Message, frozen=True):
    """Run a cell, or a call, in the task's namespace.

    Attributes:
        cell: A number that no other cell of this kernel has.
        source: Python source (magics already translated).
        carried: What comes before it, from the notebook.
        call: A packed (function, args, kwargs), used instead of `source`.
        pull: Names of variables to send back.
        tasks: The tasks that run the cell together.
        group: Cells of one group meet at barriers as if they were one.
        prompt: The notebook's number of the cell, or 0.
        kind: What becomes of the task with it.
        extras: What features send along, by their names.
    """

    cell: int
    source: str = ""
    filename: str = ""
    carried: Carried = Carried()
    call: Packed | None = None
    pull: tuple[str, ...] = ()
    want_value: bool = False
    show_value: bool = True
    tasks: tuple[TaskId, ...] = ()
    group: int = 0
    prompt: int = 0
    kind: CellKind | Rejoin = CellKind.USUAL
    extras: Mapping[str, bytes] = {}

    @property
    def packs(self) -> tuple[Packed | None, ...]:
        """All packed values that it carries."""
        return (*self.carried.names, self.call, self.carried.early_settings, self.carried.settings)

    @property
    def is_users(self) -> bool:
        """Whether it is a cell or a call of the user's: no push, pull or question of tfmagic's own."""
        return self.kind is not CellKind.ASIDE and (bool(self.source) or self.call is not None)


class EndTask(Message, frozen=True):
    """End between two cells, as a Python program ends; `cell` is greater than any other."""

    cell: int = sys.maxsize


class InterruptCell(Message, frozen=True):
    """Raise KeyboardInterrupt in this cell, even if it has not begun yet; never in another one."""

    cell: int


class CancelOps(Message, frozen=True):
    """Cancel the tf.functions that the cell runs, into which KeyboardInterrupt does not reach."""


class AbortCollectives(Message, frozen=True):
    """Make TensorFlow's collectives in this task raise, with `message`.

    Attributes:
        when_stuck_in: 0: at once. The number of a cell: as soon as the task waits inside TensorFlow in this
            cell without computing, since a peer has failed. A task that needs no collective any more is left
            alone.
    """

    message: str
    when_stuck_in: int = 0


class AnswerInput(Message, frozen=True):
    """Answer a question with what the user typed; or, with `error`, why the user cannot be asked."""

    number: int
    text: str = ""
    error: str = ""


class HandleComm(Message, frozen=True):
    """Let a widget of the task handle this message of the page, between two cells."""

    message: CommMessage


class ReleaseBarrier(Message, frozen=True):
    """Open a barrier that all have reached; the task came as number `place`, from 0 on."""

    barrier: str
    place: int = 0


class BreakBarrier(Message, frozen=True):
    """Break a barrier that a task will never reach; `reason` names the task and the cause."""

    barrier: str
    reason: str


class CloseLog(Message, frozen=True):
    """Note in the log that it has reached its limit, and drop what follows."""

    limit_bytes: int


class MoveLog(Message, frozen=True):
    """Write to new files in the run folder, which was deleted and made again, with what the old ones had."""


class WriteFlood(Message, frozen=True):
    """Write so many bytes to the error stream below Python, as runaway native code does."""

    size_bytes: int


Command = (
    TaskBoot
    | RunCell
    | EndTask
    | InterruptCell
    | CancelOps
    | AbortCollectives
    | AnswerInput
    | HandleComm
    | ReleaseBarrier
    | BreakBarrier
    | CloseLog
    | MoveLog
    | WriteFlood
)
