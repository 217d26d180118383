"""The state of a cluster, the policy, and the actions of the supervisor, as plain frozen data.

The functions over it are in `tfmagic.supervisor.lifecycle`, `escalation`, `restarts`, `barriers` and
`stalls`.
"""

import enum
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace as replace  # of a dataclass it takes ten times as long

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Command
from tfmagic.protocol.events import (
    BarrierReached,
    Cause,
    CellRaised,
    CellRequested,
    CellReturned,
    LineReached,
    TaskExited,
    TaskLost,
)

# three numbers that Linux will not change; the signal module's enums cost more than they tell
SIGKILL, SIGUSR1, SIGCONT = 9, 10, 18
GENTLE_STAGES = 3  # of the escalation: those that cost a task no variables


class Phase(enum.Enum):
    """The phase of a task process."""

    PLANNED = "planned"
    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    ENDING = "ending"  # SIGKILL is on its way, or it ends by itself
    DEAD = "dead"
    STOPPED = "stopped"


LOST = 0  # instead of an attempt: TensorFlow takes that process for dead
COMING = (Phase.PLANNED, Phase.STARTING, Phase.ENDING)
ALIVE = (Phase.STARTING, Phase.READY, Phase.RUNNING, Phase.ENDING)


class TaskState(msgspec.Struct, frozen=True):
    """One task: its present process, and how its last one ended.

    Attributes:
        fresh: Whether the process imported TensorFlow by itself, instead of being forked with it.
        obstacle: Why a fork was not safe, if that is the reason; else "".
        end: How the last process ended.
        replace: Whether the present process is being ended to get a new one.
        since: When the task came into its phase; a planned process starts then.
        restarts: How many processes the policy has given it.
        stalls: How often it was found to be stalled.
        joined: The attempts of the tasks with which its process has made a collective strategy, or `LOST`.
            TensorFlow accepts no other process of theirs.
        kill_at: When a process that ends by itself is killed.
        signals: The signals that were sent to the present process, and why.
        silent_host: Its host, if that does not answer; else "".
        cut_off: Whether its host is cut off from the others on purpose.
    """

    phase: Phase = Phase.PLANNED
    attempt: int = 0
    pid: int = 0
    host: str = ""
    fresh: bool = False
    obstacle: str = ""
    end: TaskExited | TaskLost | None = None
    replace: bool = False
    since: float = 0.0
    restarts: int = 0
    stalls: int = 0
    joined: Mapping[TaskId, int] = {}
    kill_at: float | None = None
    signals: Mapping[int, Cause] = {}
    silent_host: str = ""
    cut_off: bool = False

    @property
    def next_attempt(self) -> int:
        """The process that a cell requested now will reach: one that is planned has the next number."""
        return self.attempt + (self.phase is Phase.PLANNED)

    @property
    def death(self) -> TaskExited | TaskLost | None:
        """How its last process ended, if it has none now."""
        return self.end if self.phase is Phase.DEAD else None

    @property
    def place(self) -> str:
        """Its host, as people read it."""
        return f"{self.host} (cut off)" if self.cut_off else self.host


Outcome = CellReturned | CellRaised | TaskExited | TaskLost


class Escalation(msgspec.Struct, frozen=True):
    """The way to an end of tasks that have no outcome: why, which, since when, and the stages taken.

    `since` moves back if the user skips stages. `again` if it began anew: code caught KeyboardInterrupt.
    """

    reason: str
    since: float
    tasks: tuple[TaskId, ...]
    stage: int = 0
    again: bool = False


class WaitingAt(msgspec.Struct, frozen=True):
    """A task at a barrier, and the time at which it gives up, or None."""

    reached: BarrierReached
    until: float | None


class LastProgress(msgspec.Struct, frozen=True):
    """When a task gave its last sign of progress in a cell, and what was seen of it.

    Attributes:
        at: The time of that sign, on the clock of `time.monotonic`.
        cpu_s, log_bytes: Its processor time, and the length of its log, then.
        seen_cpu_s, seen_wanted_s: The processor times of the last look; see `ProcessSample`.
        stopped: Whether its process is stopped.
        asks: Whether it waits for the user to type.
        place: Where in the source it was seen last.
    """

    at: float
    cpu_s: float | None = None
    log_bytes: int = -1
    seen_cpu_s: float | None = None
    seen_wanted_s: float | None = None
    stopped: bool = False
    asks: bool = False
    place: LineReached | None = None


class CellState(msgspec.Struct, frozen=True):
    """A cell that runs, or as it was when it finished.

    Attributes:
        started: When it was requested; for a cell that was `queued` behind others, when it was sent, so that
            its time limit is for itself.
        released, aborted: Whether the tasks that can wait for a task that raised or has ended its part, or
            for one that died, were released.
        presses: How often the user pressed Ctrl-C, for `pressed_tasks`.
        insists: Whether one press is enough to kill a task that nothing else reaches.
        replaced: The tasks that were killed since nothing else reached them.
        waits: Who waited for whom when the time limit had passed.
        cut_off: The hosts that were cut off from the others while the cell ran.
    """

    request: CellRequested
    started: float
    sent: bool = False
    outcomes: Mapping[TaskId, Outcome] = {}
    ended_at: Mapping[TaskId, float] = {}
    failed_at: float | None = None
    timed_out: bool = False
    waits: str = ""
    cut_off: tuple[str, ...] = ()
    released: bool = False
    aborted: bool = False
    presses: int = 0
    insists: bool = False
    pressed_tasks: tuple[TaskId, ...] = ()
    escalation: Escalation | None = None
    replaced: tuple[TaskId, ...] = ()
    queued: bool = False
    progress: Mapping[TaskId, LastProgress] = {}
    stalled: tuple[TaskId, ...] = ()

    @property
    def number(self) -> int:
        return self.request.cell

    @property
    def waiting_for(self) -> tuple[TaskId, ...]:
        """The tasks that have no outcome yet."""
        return tuple(t for t in self.request.commands if t not in self.outcomes)

    @property
    def has_ended(self) -> bool:
        """Whether each task has an outcome."""
        return len(self.outcomes) == len(self.request.commands)

    def place(self, task: TaskId) -> LineReached | None:
        """Return where in the source the task was seen last."""
        return self.progress[task].place if task in self.progress else None

    def has_caught(self, task: TaskId) -> bool:
        """Check whether KeyboardInterrupt was raised in the task, whose code goes on."""
        return (place := self.place(task)) is not None and place.caught

    @property
    def is_users_turn(self) -> bool:
        """Whether one Ctrl-C has done all it can: only a second one ends the tasks that are left."""
        taken = 0 if self.escalation is None else self.escalation.stage
        return self.presses == 1 and not self.insists and taken >= GENTLE_STAGES


class ClusterState(msgspec.Struct, frozen=True):
    """Everything that the supervisor knows.

    Attributes:
        cells: The unfinished cells by number, in the order of request.
        barriers: The waiting tasks, by cell and name of the barrier: two cells can use the same name.
        groups: By number of a group of cells, the tasks that will never come to its barriers, and why.
        stop_at: When a cluster that is stopping ends at the latest.
        observed_at: When its processes were last looked at from outside.
        waits_for: What must be there before the first process can start; else "".
        slowdowns: The factor of each task that is slowed down on purpose.
    """

    tasks: Mapping[TaskId, TaskState]
    cells: Mapping[int, CellState] = {}
    barriers: Mapping[tuple[int, str], Mapping[TaskId, WaitingAt]] = {}
    stopping: bool = False
    stop_at: float = 0.0
    observed_at: float | None = None
    groups: Mapping[int, Mapping[TaskId, str]] = {}
    waits_for: str = ""
    slowdowns: Mapping[TaskId, float] = {}


class Policy(msgspec.Struct, frozen=True):
    """The settings that decisions depend on, most in seconds: see `tfmagic.clusters.launch.settings`."""

    failure_grace_s: float = 3.0
    interrupt_grace_s: float = 0.5
    cancel_grace_s: float = 0.5
    abort_grace_s: float = 0.8
    auto_restart: int = 0
    restart_delay_s: float = 0.1
    start_timeout_s: float = 120.0
    dependence_on_chief: bool = False
    stall_s: float = 10.0


# ---- actions ------------------------------------------------------------------------------------


class Launch(msgspec.Struct, frozen=True, tag=True):
    """Start a process for the task, as this attempt."""

    task: TaskId
    attempt: int


class Send(msgspec.Struct, frozen=True, tag=True):
    """Send the task a command: its part of a cell, for example."""

    task: TaskId
    command: Command


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Signal the task's process (its group for SIGKILL); `cell` gets the stacks that SIGUSR1 asks for."""

    task: TaskId
    number: int
    cell: int = 0


class FinishCell(msgspec.Struct, frozen=True, tag=True):
    """Hand over the cell: each of its tasks has an outcome."""

    cell: CellState


Action = Launch | Send | Signal | FinishCell


class Decision(msgspec.Struct, frozen=True):
    """What to do now, the state after it, and when a decision is due even without an event."""

    actions: tuple[Action, ...]
    state: ClusterState
    wake_at: float | None


# ---- small helpers ------------------------------------------------------------------------------


def with_task(state: ClusterState, task: TaskId, **changes: Any) -> ClusterState:
    """Return the state with one task changed."""
    changed = replace(state.tasks[task], **changes)
    return replace(state, tasks={**state.tasks, task: changed})


def with_cell(state: ClusterState, cell: CellState) -> ClusterState:
    """Return the state with this cell instead of its former state."""
    number = cell.request.cell
    return state if state.cells.get(number) is cell else replace(state, cells={**state.cells, number: cell})


def with_cut_off(state: ClusterState) -> ClusterState:
    """Return the state with the hosts that are cut off now noted in its cells."""
    hosts = {seen.host for seen in state.tasks.values() if seen.cut_off}
    for cell in state.cells.values() if hosts else ():
        state = with_cell(state, replace(cell, cut_off=tuple(sorted({*cell.cut_off, *hosts}))))
    return state


def are_needed(state: ClusterState, tasks: Collection[TaskId]) -> bool:
    """Check whether an unfinished cell still needs one of these tasks.

    A queued cell needs all of its tasks: later cells do not overtake it.
    """
    return any(not set(cell.waiting_for).isdisjoint(tasks) for cell in reversed([*state.cells.values()]))
