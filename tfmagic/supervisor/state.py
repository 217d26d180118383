"""What the supervisor knows, may decide and may do, as plain frozen data.

`tfmagic.supervisor.lifecycle`, `tfmagic.supervisor.restarts`, `tfmagic.supervisor.barriers` and
`tfmagic.supervisor.stalls` are the functions over it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell
from tfmagic.protocol.events import (
    BarrierReached,
    CellRaised,
    CellRequested,
    CellReturned,
    LineReached,
    TaskExited,
    TaskLost,
)

# the kernel's own signal module is not needed to name three numbers that Linux will not change
SIGKILL, SIGUSR1, SIGCONT = 9, 10, 18


class Phase(enum.Enum):
    """Where a task process is in its life."""

    PLANNED = "planned"
    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    ENDING = "ending"  # SIGKILL is on its way, or it ends by itself
    DEAD = "dead"
    STOPPED = "stopped"


COMING = (Phase.PLANNED, Phase.STARTING, Phase.ENDING)
ALIVE = (Phase.STARTING, Phase.READY, Phase.RUNNING, Phase.ENDING)


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task: its present process and how its last one ended.

    `since` is when it came into its phase; a planned one starts then. `replace`: its end is ours, it gets a
    new process. `restarts` counts those that the policy gave it, `stalls` how often it was found to be
    stalled. `joined` are the attempts of the tasks with which its process has made a collective strategy:
    TensorFlow lets no other process of theirs in. `kill_at` is when one that ends by itself has had the time.
    """

    phase: Phase = Phase.PLANNED
    attempt: int = 0
    pid: int = 0
    host: str = ""
    fresh: bool = False
    end: TaskExited | TaskLost | None = None
    replace: bool = False
    since: float = 0.0
    restarts: int = 0
    stalls: int = 0
    joined: Mapping[TaskId, int] = field(default_factory=dict)
    kill_at: float | None = None


Outcome = CellReturned | CellRaised | TaskExited | TaskLost


@dataclass(frozen=True, slots=True)
class Ladder:
    """Bringing tasks to an end: why, which, since when, and how many rungs have been taken.

    `since` moves back when the user skips rungs.
    """

    reason: str
    since: float
    tasks: tuple[TaskId, ...]
    rung: int = 0


@dataclass(frozen=True, slots=True)
class WaitingAt:
    """A task at a barrier, and the time when it gives up, if it does."""

    reached: BarrierReached
    until: float | None


@dataclass(frozen=True, slots=True)
class LastProgress:
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


@dataclass(frozen=True, slots=True)
class CellState:
    """A cell under way, or as it was when it finished.

    `started` is when it was requested; or when it was sent, where it had `queued` for other cells: its
    time limit is for itself. `released` and `aborted`: the tasks that may wait for one that raised, or
    died, have been told; `replaced` are those that nothing reached, so that they were killed.
    """

    request: CellRequested
    started: float
    sent: bool = False
    outcomes: Mapping[TaskId, Outcome] = field(default_factory=dict)
    ended_at: Mapping[TaskId, float] = field(default_factory=dict)
    failed_at: float | None = None
    timed_out: bool = False
    released: bool = False
    aborted: bool = False
    presses: int = 0
    pressed_tasks: tuple[TaskId, ...] = ()
    ladder: Ladder | None = None
    replaced: tuple[TaskId, ...] = ()
    queued: bool = False
    progress: Mapping[TaskId, LastProgress] = field(default_factory=dict)
    stalled: tuple[TaskId, ...] = ()

    @property
    def number(self) -> int:
        return self.request.cell

    @property
    def waiting_for(self) -> tuple[TaskId, ...]:
        """The tasks that have no outcome yet."""
        return tuple(t for t in self.request.commands if t not in self.outcomes)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything that the supervisor knows.

    `cells` are the unfinished ones by number, in the order of request. `barriers` are known by cell and
    name: two cells may use the same name. `groups` say, by number, who of the cells that meet there will
    never come. `stop_at` is when it is over at the latest, once it is stopping.
    """

    tasks: Mapping[TaskId, TaskState]
    cells: Mapping[int, CellState] = field(default_factory=dict)
    barriers: Mapping[tuple[int, str], Mapping[TaskId, WaitingAt]] = field(default_factory=dict)
    stopping: bool = False
    stop_at: float = 0.0
    observed_at: float | None = None
    groups: Mapping[int, Mapping[TaskId, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers behind decisions, in seconds: see `tfmagic.clusters.settings`."""

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


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process for the task, as this attempt."""

    task: TaskId
    attempt: int


@dataclass(frozen=True, slots=True)
class End:
    """Let the task's process end by itself."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Send:
    """Send the task its part of the cell."""

    task: TaskId
    command: RunCell


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal the task's process (its group for SIGKILL); `cell` is the one that SIGUSR1's stacks are for."""

    task: TaskId
    number: int
    cell: int = 0


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Raise KeyboardInterrupt in this cell of the task."""

    task: TaskId
    cell: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the tf.functions that the task runs in this cell."""

    task: TaskId
    cell: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort the collectives that the task waits in; `when_stuck` spares one that does not."""

    task: TaskId
    message: str
    cell: int
    when_stuck: bool = False


@dataclass(frozen=True, slots=True)
class AnswerBarrier:
    """Open the barrier for the task, which came as number `place`; with a reason, as broken."""

    task: TaskId
    barrier: str
    reason: str = ""
    place: int = 0


@dataclass(frozen=True, slots=True)
class FinishCell:
    """Everybody has an outcome: hand them over."""

    cell: CellState


Action = Launch | End | Send | Signal | Interrupt | Cancel | Abort | AnswerBarrier | FinishCell


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, the state after it, and when time alone will change something."""

    actions: tuple[Action, ...]
    state: ClusterState
    wake_at: float | None


# ---- small helpers ------------------------------------------------------------------------------


def with_task(state: ClusterState, task: TaskId, **changes: Any) -> ClusterState:
    """The state with one task changed."""
    changed = replace(state.tasks[task], **changes)
    return replace(state, tasks={**state.tasks, task: changed})


def with_cell(state: ClusterState, cell: CellState) -> ClusterState:
    """The state with this cell in the place of what it was."""
    if state.cells.get(cell.number) is cell:
        return state
    return replace(state, cells={**state.cells, cell.number: cell})


def are_needed(state: ClusterState, tasks: Collection[TaskId]) -> bool:
    """Whether a cell that has not ended still needs one of these tasks.

    A cell that is queued itself needs all of its tasks: later ones do not overtake it.
    """
    return any(not set(cell.waiting_for).isdisjoint(tasks) for cell in reversed([*state.cells.values()]))
