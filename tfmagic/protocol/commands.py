"""Commands: what a task process is told to do. Imperative, frozen; `events` are what comes back."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.payload import Message, Packed, Record


class Origin(Record, frozen=True):
    """Where a module comes from that a task could not import as the caller did; see
    `tfmagic.protocol.module_origins`.

    `file` is "" for a package without code; `search` is where a package's modules are, None where it is
    none; `rewritten` whether its asserts show values.
    """

    name: str
    file: str
    search: tuple[str, ...] | None = None
    rewritten: bool = False


class MainScript(Record, frozen=True):
    """A script that each task imports; see `tfmagic.serialization.main_script`.

    `argv` is what it finds in `sys.argv`; `package` the one of a script that was started as
    ``python -m package.module``.
    """

    file: str
    argv: tuple[str, ...] = ()
    package: str = ""


class TaskBoot(Message, frozen=True):
    """First message to a new task process: who it is and how it is set up.

    `starts_servers`: ps and worker tasks serve by themselves, where there is a ps. `is_plain`: nothing is
    done for TensorFlow's strategies. `in_notebook`: magics are what messages advise. `authkey` lets it reach
    the managers of the user's `multiprocessing`. `script` is imported before the first call.
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
    loopback_only: bool = True  # TensorFlow's servers; False where tasks live on several machines
    starts_servers: bool = True
    is_plain: bool = False
    authkey: bytes = b""
    origins: tuple[Origin, ...] = ()
    script: MainScript | None = None
    in_notebook: bool = True


class RunCell(Message, frozen=True):
    """Run a cell, or a call, in the task's namespace.

    `source` is Python (magics already translated); `names` are packed dicts of variables to bind
    first, one after the other; `sources` the (file name, text) of the notebook cells that their code
    is from; `call` is a packed (function, args, kwargs) that is used instead of `source`; `pull` names
    to send back; `tasks` are those that run the cell together. With `debug` the task opens a debugger
    on its last failure instead; with `tf_config` it leaves the cluster that it knew for this one, and
    returns how often it has done so in its process. With `exits` the process ends with the cell, and its
    exit code says how. Cells of one `group` meet at barriers as if they were one. `prompt` is the
    notebook's number of the cell, or 0.
    """

    cell: int
    source: str = ""
    filename: str = ""
    names: tuple[Packed, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    call: Packed | None = None
    pull: tuple[str, ...] = ()
    want_value: bool = False
    show_value: bool = True
    tasks: tuple[TaskId, ...] = ()
    debug: bool = False
    tf_config: str = ""
    exits: bool = False
    group: int = 0
    prompt: int = 0


class EndTask(Message, frozen=True):
    """End between two cells, as a Python program ends; `cell` is later than any."""

    cell: int = sys.maxsize


class InterruptCell(Message, frozen=True):
    """Raise KeyboardInterrupt in this cell; also if it has not begun yet, never in another one."""

    cell: int


class CancelOps(Message, frozen=True):
    """Cancel the tf.functions that the cell runs: KeyboardInterrupt does not reach into them."""


class AbortCollectives(Message, frozen=True):
    """Make TensorFlow's collectives in this task raise, with `message`.

    Now; or, with the number of a cell, as soon as the task waits inside TensorFlow in this cell without
    computing, since the peer that it waits for has failed. A task that needs no collective any more is
    then left alone.
    """

    message: str
    when_stuck_in: int = 0


class AnswerInput(Message, frozen=True):
    """What the user typed; or, with `error`, why nobody can type."""

    number: int
    text: str = ""
    error: str = ""


class ReleaseBarrier(Message, frozen=True):
    """Everybody is there; `place` says as which one the task came, from 0 on."""

    barrier: str
    place: int = 0


class BreakBarrier(Message, frozen=True):
    """Somebody will never come; `reason` says who and why."""

    barrier: str
    reason: str


class CloseLog(Message, frozen=True):
    """The log reached its limit: note it there, and drop what follows."""

    limit_bytes: int


class WriteFlood(Message, frozen=True):
    """Write this much to the error stream below Python, as native code that runs wild does."""

    size_bytes: int


Command = (
    TaskBoot
    | RunCell
    | EndTask
    | InterruptCell
    | CancelOps
    | AbortCollectives
    | AnswerInput
    | ReleaseBarrier
    | BreakBarrier
    | CloseLog
    | WriteFlood
)
