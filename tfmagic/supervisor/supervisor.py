"""The one loop: brings events to the lifecycle and carries out what it decides.

    API threads ── ask(event) ──→ mailbox ─┐
    backend ─────── poll ──────→ events ───┴→ apply → state → decide → actions → backend
                                                        └→ FinishCell → CellRun.done

One thread for each cluster, "tfmagic-NAME"; a daemon that ends with `close`. It unpickles nothing of
the user's, prints nothing and displays nothing. Readers take `state`, which is immutable.

While it rests, whoever starts a cell may take its turn (`run_cell`, with `at_once`): waking the thread, and
sharing the interpreter with it while it sends, costs a third of a call on two tasks. A lock sees to it that
there is one at a time.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import assert_never

import msgspec

from tfmagic.backends.protocol import Backend
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import (
    AbortCollectives,
    BreakBarrier,
    CancelOps,
    CloseLog,
    EndTask,
    InterruptCell,
    ReleaseBarrier,
    RunCell,
    TaskBoot,
    WriteFlood,
)
from tfmagic.protocol.events import (
    CellRequested,
    CellReturned,
    Displayed,
    Event,
    FloodAsked,
    InputAnswered,
    InputWanted,
    InterruptPressed,
    LaunchRequested,
    ProcessSample,
    SignalAsked,
    StopRequested,
    TaskExited,
    TaskLost,
    TaskReady,
    TasksObserved,
    TaskStarted,
    WriterWanted,
)
from tfmagic.protocol.payload import release
from tfmagic.runs import cell_records
from tfmagic.runs.folder import RunFolder, file_size
from tfmagic.supervisor import lifecycle
from tfmagic.supervisor.state import (
    SIGUSR1,
    Abort,
    Action,
    AnswerBarrier,
    Cancel,
    CellState,
    ClusterState,
    End,
    FinishCell,
    Interrupt,
    Launch,
    Policy,
    Send,
    Signal,
)
from tfmagic.system import memory
from tfmagic.system.usage import Sampler, Usage

_LOOK_S = 0.5  # between two looks at the processes and logs while a cell runs; the first comes after it
_IDLE_LOOK_S = 1.0  # the same between cells: a thread of a task may write there, too
_LOOK_SHARE = 0.03  # of a core: with a thousand tasks, looks are rarer
_OBSERVED = (TasksObserved, TaskStarted, TaskReady, TaskExited, TaskLost)


class RunningCell:
    """A cell under way: `done` is set when `outcome` is there, or None when the cluster was stopped.

    `displays` and `inputs` grow meanwhile; whoever waits for the cell takes from them. `starts` says where
    in its log a task's part of the cell begins, `dumps` where in its file the stacks begin for which a task
    was asked last. `may_begin` is asked as it is sent: with False it is sent without what it would run, since
    later cells count on its variables.
    """

    def __init__(
        self,
        request: CellRequested,
        starts: Mapping[TaskId, int],
        may_begin: Callable[[], bool] = lambda: True,
    ):
        self.request = request
        self._may_begin = may_begin
        self.requested_at = time.monotonic()
        self.starts = dict(starts)
        self.done = threading.Event()
        self._callbacks: list[Callable[[], object]] = []
        self.outcome: CellState | None = None
        self.displays: deque[Displayed] = deque()
        self.inputs: deque[InputWanted] = deque()
        self.dumps: dict[TaskId, int] = {}

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the cell has ended, on the supervisor's thread or at once; maybe twice."""
        self._callbacks.append(callback)
        if self.done.is_set():
            callback()

    def begin(self, command: RunCell) -> RunCell:
        """What is sent of `command`. Called by the supervisor, for each task."""
        return (
            command
            if self._may_begin()
            else msgspec.structs.replace(command, source="", call=None, want_value=False)
        )

    def finish(self, outcome: CellState | None) -> None:
        """The cell has ended. Called by the supervisor."""
        self.outcome = outcome
        commands = self.request.commands.values()
        release(packed for command in commands for packed in (*command.names, command.call))
        self.done.set()
        for callback in self._callbacks:
            callback()


class _Released:
    """A lock that is free for the time of a block."""

    def __init__(self, lock: threading.Lock):
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.release()

    def __exit__(self, *_: object) -> None:
        self._lock.acquire()


class Supervisor:
    """Owns the state of one cluster and the thread that changes it.

    `usage` is what the processes used at the last look, by task, or by name for the kernel and its launcher;
    `warning` what somebody should know of the machine's memory; `slowed` the tasks whose process is stopped
    and continued on purpose, and by which factor; `cells_ended` how many cells have; `ended` whether the loop
    has, in whatever way, and `at_end` what it calls then; `closed_logs` the tasks whose log has reached its
    limit; `sharing` hears who wants the writer of a file and, where somebody does, every event; `guests` take
    the answers at barriers of those that are no tasks of ours.

    Args:
        boot: Makes the boot message of a task's attempt.
        observer: Called on the loop's thread after a look at the processes, and when one begins or ends.
    """

    def __init__(
        self,
        backend: Backend,
        tasks: tuple[TaskId, ...],
        policy: Callable[[], Policy],
        boot: Callable[[TaskId, int], TaskBoot],
        run: RunFolder,
        max_log_bytes: int,
        observer: Callable[[Supervisor], object] = lambda supervisor: None,
        name: str = "default",
    ):
        self.backend, self.policy, self.boot, self.run = backend, policy, boot, run
        self.state: ClusterState = lifecycle.new_state(tasks)
        self.changed = threading.Condition()
        self.crashed: BaseException | None = None
        self._max_log_bytes = max_log_bytes
        self._turn = threading.Lock()  # of the loop, or of who takes its turn while it rests
        self._resting = _Released(self._turn)
        self._wake_at: float | None = None
        self._rests_until = float("inf")
        self._mailbox: deque[Event] = deque()
        self._cells: dict[int, RunningCell] = {}  # the unfinished ones, by number
        self.ended = False
        self.at_end: list[Callable[[], object]] = []
        self.closed_logs: set[TaskId] = set()
        self.usage: Mapping[Hashable, Usage] = {}
        self.warning = ""
        self.slowed: dict[TaskId, float] = {}
        self.cells_ended = 0
        self.sharing: Callable[[Event, ClusterState], object] = lambda event, state: None
        self.is_shared = False  # whether it wants to hear how tasks end
        self.guests: dict[TaskId, Callable[[ReleaseBarrier | BreakBarrier], object]] = {}
        self._observer, self._has_complained = observer, False
        self._sampler: Sampler[Hashable] = Sampler()
        self._last_look, self._look_s = time.monotonic(), _LOOK_S
        self.thread = threading.Thread(target=self._serve, name=f"tfmagic-{name}", daemon=True)

    def start(self) -> None:
        """Start the loop, and with it every task. It ends with the interpreter at the latest, and says so."""
        self.thread.start()
        atexit.register(self.close)

    # -- called by any thread --

    def ask(self, event: Event) -> None:
        """Hand an event of the user's to the loop."""
        if not self.ended:
            self._mailbox.append(event)
            self.backend.wake()

    def run_cell(
        self,
        request: CellRequested,
        may_begin: Callable[[], bool] = lambda: True,
        at_once: bool = False,
    ) -> RunningCell:
        """Start a cell, or queue it where earlier ones need its tasks.

        Args:
            may_begin: See `RunningCell`.
            at_once: Do it in this thread, if the loop rests. Nothing may raise in this thread meanwhile, as
                Ctrl-C does.
        """
        starts = {task: self.run.log_bytes(task) for task in request.commands}
        run = RunningCell(request, starts, may_begin)
        self._cells[request.cell] = run
        if not (at_once and self._take_turn(request)):
            self.ask(request)
        if self.ended:  # the loop has not seen it: nobody else says so
            run.finish(None)
        return run

    def interrupt(self, tasks: tuple[TaskId, ...] = (), cell: int = 0) -> None:
        """Ctrl-C for every unfinished cell, or for this one; with `tasks`, only for these."""
        self.ask(InterruptPressed(tasks, cell))

    def relaunch(self, tasks: tuple[TaskId, ...]) -> None:
        """New processes for these tasks."""
        self.ask(LaunchRequested(tasks))

    def wait_for(self, ready: Callable[[ClusterState], bool], timeout_s: float) -> bool:
        """Wait until the state satisfies `ready`; False when the time has passed or the loop ended."""
        with self.changed:
            self.changed.wait_for(lambda: ready(self.state) or not self.thread.is_alive(), timeout_s)
        return ready(self.state)

    def close(self) -> None:
        """End every task and the loop. Safe to call twice."""
        if self.thread.is_alive():
            self.ask(StopRequested())
            self.thread.join(10)

    # -- the loop --

    def _take_turn(self, request: CellRequested) -> bool:
        """Do what the loop would do with this; False where it is at work."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if self.ended or self._mailbox:
                return False
            self._wake_at = self._decide([request])
            if self._wake_at is not None and self._wake_at < self._rests_until:
                self.backend.wake()
        except BaseException as error:  # as in the loop, which ends of it
            self.crashed = error
            self.backend.wake()
            if not isinstance(error, Exception):  # what a signal handler of the caller's has raised
                raise
        finally:
            self._turn.release()
        return True

    def _serve(self) -> None:
        self._turn.acquire()
        try:
            self._wake_at = self._decide([])
            while not lifecycle.is_over(self.state, time.monotonic()):
                timeout_s = self._poll_timeout(self._wake_at)
                self._rests_until = time.monotonic() + timeout_s
                events = list(self.backend.poll(timeout_s, self._resting))
                if self.crashed is not None:
                    raise self.crashed
                while self._mailbox:
                    events.append(self._mailbox.popleft())
                if time.monotonic() >= self._look_at():
                    events.append(self._look())
                self._wake_at = self._decide(events)
                if any(isinstance(event, _OBSERVED) for event in events):
                    self._tell_observer()
        except BaseException as error:  # a bug here must not leave anybody waiting
            self.crashed = error
        finally:
            self.ended = True
            atexit.unregister(self.close)
            self.backend.close()
            self._turn.release()
            for run in list(self._cells.values()):
                run.finish(None)
            with self.changed:
                self.changed.notify_all()
            for callback in self.at_end:
                callback()
            self._tell_observer()

    def _tell_observer(self) -> None:
        try:
            self._observer(self)
        except Exception:  # who only looks on must not cost anybody a cluster
            if not self._has_complained:
                self._has_complained = True
                traceback.print_exc()

    def _poll_timeout(self, wake_at: float | None) -> float:
        due = self._look_at() if wake_at is None else min(self._look_at(), wake_at)
        return max(due - time.monotonic(), 0)

    def _look_at(self) -> float:
        """When the next look is due: short cells are not kept waiting for one."""
        idle = self._last_look + _IDLE_LOOK_S
        if not self._cells:
            return idle
        begun = min((run.requested_at for run in list(self._cells.values())), default=idle)
        return min(max(self._last_look, begun) + self._look_s, idle)

    def _look(self) -> TasksObserved:
        """Look at the processes and their logs from outside, as far as the system lets us."""
        self._last_look, began = time.monotonic(), time.thread_time()
        signs: dict[TaskId, ProcessSample] = {}
        with contextlib.suppress(OSError):  # the notebook may have opened all the files that it is allowed
            signs = self._take_signs()
        self._look_s = max(_LOOK_S, (time.thread_time() - began) / _LOOK_SHARE)
        return TasksObserved(signs)

    def _take_signs(self) -> dict[TaskId, ProcessSample]:
        pids: dict[Hashable, int] = {task: seen.pid for task, seen in self.state.tasks.items()}
        pids.update(self.own_pids())
        self.usage = self._sampler.sample(pids, self._suspects())
        seen = {task: self.usage.get(task, Usage()) for task in self.state.tasks}
        short = memory.shortage({task.name: use.memory_bytes for task, use in seen.items()})
        self.warning = short and (self.warning or short)  # said once, not with each byte
        return {task: self._sign(task, use) for task, use in seen.items()}

    def _sign(self, task: TaskId, use: Usage) -> ProcessSample:
        factor = self.slowed.get(task, 1.0)
        cpu_s = None if use.cpu_s is None else use.cpu_s * factor
        return ProcessSample(cpu_s, self._watch_log(task), use.paused and factor == 1.0, use.wanted_s)

    def _suspects(self) -> set[Hashable]:
        """Tasks that may soon be called stalled: they are worth a closer look."""
        limit = self.policy().stall_s / 2
        return {
            task
            for cell in self.state.cells.values()
            for task, mark in cell.marks.items()
            if task not in cell.outcomes and self._last_look - mark.at > limit
        }

    def own_pids(self) -> dict[str, int]:
        """The processes that are no tasks: this kernel, and what the backend needs."""
        return {"kernel": os.getpid(), **self.backend.own_pids()}

    def _decide(self, events: list[Event]) -> float | None:
        """Fold events, act, and say when time alone calls for another look."""
        now = time.monotonic()
        state = self.state
        for event in events:
            self._pass_on(event, state)
            state = lifecycle.apply(state, event, now)
        is_due = self._wake_at is not None and now >= self._wake_at
        if not is_due and lifecycle.still_waits(state, events):
            self.state = state
            with self.changed:
                self.changed.notify_all()
            return self._wake_at
        decision = lifecycle.decide(state, self.policy(), now)
        self.state = decision.state
        for action in decision.actions:
            self._perform(action)
        with self.changed:
            self.changed.notify_all()
        return decision.wake_at

    def _pass_on(self, event: Event, state: ClusterState) -> None:
        """Hand on what changes no state: displays and input, between the tasks and whoever waits.

        What a thread of a task displays after the end of its cell is dropped.
        """
        if self.is_shared or isinstance(event, WriterWanted):
            self.sharing(event, state)
        match event:
            case CellReturned():  # the most frequent
                pass
            case Displayed() if event.cell in self._cells:
                cell_records.append_display(self.run, event, self._max_log_bytes)
                self._cells[event.cell].displays.append(event)
            case InputWanted() if event.cell in self._cells:
                self._cells[event.cell].inputs.append(event)
            case InputAnswered(task, answer):
                self.backend.send(task, answer)
            case SignalAsked(task, number):
                self.backend.signal(task, number)
            case FloodAsked(task, size_bytes):
                self.backend.send(task, WriteFlood(size_bytes))

    def _perform(self, action: Action) -> None:
        match action:
            case Launch(task, attempt):
                self.closed_logs.discard(task)
                self.backend.launch(self.boot(task, attempt))
            case End(task):
                self.backend.send(task, EndTask())
            case Send(task, command):
                run = self._cells[command.cell]
                if self.state.cells[command.cell].queued:  # another cell has written meanwhile
                    run.starts[task] = self.run.log_bytes(task)
                self.backend.send(task, run.begin(command))
            case Signal(task, number, cell):
                if number == SIGUSR1:
                    self._cells[cell].dumps[task] = file_size(self.run.stacks_path(task))
                self.backend.signal(task, number)
            case Interrupt(task, cell):
                self.backend.send(task, InterruptCell(cell))
            case Cancel(task):  # the channel keeps its order: it comes before any later cell
                self.backend.send(task, CancelOps())
            case Abort(task, message, cell, when_stuck):
                self.backend.send(task, AbortCollectives(message, cell if when_stuck else 0))
            case AnswerBarrier(task, barrier, reason, place):
                answer = BreakBarrier(barrier, reason) if reason else ReleaseBarrier(barrier, place)
                if task in self.guests:
                    self.guests[task](answer)
                else:
                    self.backend.send(task, answer)
            case FinishCell(cell):
                self.cells_ended += 1
                self._cells.pop(cell.number).finish(cell)
            case _:
                assert_never(action)

    def _watch_log(self, task: TaskId) -> int:
        """The length of the task's log; one that has reached its limit is kept no longer."""
        size = self.run.log_bytes(task)
        if size >= self._max_log_bytes and task not in self.closed_logs:
            self.closed_logs.add(task)
            self.backend.send(task, CloseLog(self._max_log_bytes))
        return size
