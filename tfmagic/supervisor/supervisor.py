"""The one loop of a cluster: it brings events to the lifecycle and carries out what that decides.

    API threads ── ask(event) ────────────→ mailbox ─┐
    backend ────── wait, then take_events ─→ events ─┴→ apply → state → decide → actions → backend
                                                                          └→ FinishCell → RunningCell.finish

Each cluster has one thread for it, "tfmagic-NAME", a daemon that ends with `close`. No other thread runs the
loop, so that no exception which comes into a thread of the user's, as of a signal handler, can end a cluster.
The loop unpickles nothing of the user's and displays nothing. Other threads read `state`, which is immutable.

No single action, listener or callback ends a cluster. A launch that raises is a lost task, a cell that cannot
be sent has failed, and the traceback of anything else is printed once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import assert_never

from tfmagic.backends.protocol import Backend
from tfmagic.protocol import commands, events
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import RunFolder, file_size
from tfmagic.supervisor import lifecycle, stalls
from tfmagic.supervisor.defects import DefectReports
from tfmagic.supervisor.event_router import ROUTED, EventRouter
from tfmagic.supervisor.running_cell import RunningCell
from tfmagic.supervisor.state import (
    ALIVE,
    COMING,
    SIGCONT,
    SIGUSR1,
    Action,
    ClusterState,
    Decision,
    FinishCell,
    Launch,
    Policy,
    Send,
    Signal,
)
from tfmagic.system import memory
from tfmagic.system.usage import Sampler, Usage

_LOOK_S = 0.5  # between two looks at the processes and logs while a cell runs; the first comes after it
_IDLE_LOOK_S = 1.0  # the same between cells: a thread of a task may write there, too
_LOOK_SHARE, _IDLE_LOOK_SHARE = 0.03, 0.005  # of a core: with a thousand tasks, looks are rarer
_OBSERVED = {events.TasksObserved, events.TaskStarted, events.TaskReady, events.TaskExited, events.TaskLost}

Listener = Callable[[events.Event, ClusterState], object]
"""Called on the loop's thread with each event, and the state before it, or before its run of `runs_of`."""
Boots = Callable[[TaskId, int], commands.TaskBoot]
Watcher = Callable[[Sequence[events.Event], Decision, Policy, float], object]
"""Called on the loop's thread with each decision, the events before it, and the time."""


class Supervisor:
    """Owns the state of one cluster and the thread that changes it.

    Args:
        boots: Returns a function that makes the boot messages of the processes that start now.
        observer: Called on the loop's thread after a look at the processes, and when one begins or ends.
        clock: Returns the time in seconds; the backend's `wait` waits on the same clock.
        outlives_us: Leave the tasks alone when this process ends without `close`.

    Attributes:
        state: The present state, or the last one.
        changed: Notified when `state` has changed.
        ended: Whether the loop has ended, in whatever way.
        pid: The process that it was started in; a fork has no loop.
        crashed: The bug that ended the loop, or None.
        cells_ended: The number of cells that have ended.
        usage: What the processes used at the last look, by task, or by name for the kernel and its launcher.
        warning: Why the machine is short of memory, or "".
        closed_logs: The tasks whose log has reached its limit.
    """

    def __init__(
        self,
        backend: Backend,
        tasks: tuple[TaskId, ...],
        policy: Callable[[], Policy],
        boots: Callable[[], Boots],
        run: RunFolder,
        max_log_bytes: int,
        observer: Callable[[Supervisor], object] = lambda supervisor: None,
        *,
        name: str = "default",
        clock: Callable[[], float] = time.monotonic,
        outlives_us: bool = False,
    ):
        self._clock, self._outlives_us, self._observer = clock, outlives_us, observer
        self.backend, self.policy, self.boots, self.run = backend, policy, boots, run
        self.state: ClusterState = lifecycle.new_state(tasks)
        self.changed, self._waiting, self._max_log_bytes = threading.Condition(), 0, max_log_bytes
        self.crashed: BaseException | None = None
        self._mailbox: deque[events.Event | RunningCell] = deque()
        self._cells: dict[int, RunningCell] = {}  # the unfinished ones, by number
        self._router = EventRouter(backend, run, self._cells, max_log_bytes)
        self.ended, self.pid, self.warning, self.cells_ended = False, 0, "", 0
        self._end_callbacks: list[Callable[[], object]] = []
        self._boot: Boots | None = None  # for the launches of one decision
        self._listeners: list[tuple[Listener, Collection[type]]] = []
        self._watchers: list[Watcher] = []
        self._acting: dict[TaskId, Callable[[commands.ReleaseBarrier | commands.BreakBarrier], object]] = {}
        self.closed_logs: set[TaskId] = set()
        self.usage: dict[Hashable, Usage] = {}
        defects = DefectReports()
        self._call, self._report_defect = defects.call, defects.report
        self._sampler: Sampler[Hashable] = Sampler()
        self._last_look, self._look_cost_s = self._clock(), 0.0
        self._wake_at: float | None = None
        self.thread = threading.Thread(target=self._serve, name=f"tfmagic-{name}", daemon=True)

    def start(self) -> None:
        """Start the loop, and with it every task. It ends with the interpreter at the latest."""
        self.thread.start()
        self.pid = os.getpid()
        if not self._outlives_us:
            atexit.register(self.close)

    def resume(self, state: ClusterState, cells: Iterable[RunningCell]) -> None:
        """Go on from this state instead of starting every task. Called before `start`."""
        self.state = state
        self._cells.update((cell.request.cell, cell) for cell in cells)

    # -- called by any thread --

    def ask(self, event: events.Event) -> None:
        """Hand an event that the user caused to the loop."""
        self._post(event)

    def run_cell(self, cell: RunningCell) -> None:
        """Start a cell, or queue it if earlier ones need its tasks. `cell.done` tells its end."""
        self._post(cell)
        if self.ended:  # the loop has not seen it
            cell.finish(None)

    def _post(self, letter: events.Event | RunningCell) -> None:
        """Leave it in the mailbox in one step: an exception can come between any two, as of a signal."""
        if not self.ended:
            self._mailbox.append(letter)
            self.backend.wake()

    def interrupt(self, tasks: tuple[TaskId, ...] = (), cell: int = 0, insists: bool = False) -> None:
        """Interrupt every unfinished cell, or this one; with `tasks`, only on these.

        Only a second interrupt, or one that `insists`, kills a task that nothing else reaches.
        """
        self.ask(events.InterruptPressed(tasks, cell, insists))

    def wait_for(self, ready: Callable[[ClusterState], bool], timeout_s: float) -> bool:
        """Wait until `ready(state)`; return False if the time has passed or the loop has ended before."""
        with self.changed:
            self._waiting += 1
            try:
                self.changed.wait_for(lambda: ready(self.state) or not self.thread.is_alive(), timeout_s)
            finally:
                self._waiting -= 1
        return ready(self.state)

    def listen(self, listener: Listener, kinds: Collection[type] = ()) -> None:
        """Call `listener` from now on with each event of these classes; by default, with each event."""
        self._listeners.append((listener, kinds))

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` after each decision from now on, before its actions are carried out."""
        self._watchers.append(watcher)

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the loop's thread when the loop has ended."""
        self._end_callbacks.append(callback)

    def add_task_thread(
        self, task: TaskId, answer: Callable[[commands.ReleaseBarrier | commands.BreakBarrier], object]
    ) -> None:
        """Let a thread of this process be `task` at barriers: it asks with `BarrierReached`."""
        self._acting[task] = answer

    def remove_task_thread(self, task: TaskId) -> None:
        """End what `add_task_thread` began."""
        del self._acting[task]

    def close(self) -> None:
        """End every task and the loop. Safe to call twice."""
        if self.thread.is_alive():
            self.ask(events.StopRequested())
            self.thread.join(10)

    # -- the loop --

    def _serve(self) -> None:
        try:
            self._decide([])
            while not lifecycle.is_over(self.state, self._clock()):
                self._step()
        except BaseException as error:  # a bug here must leave no thread waiting
            self.crashed = error
        finally:
            self.ended = True
            atexit.unregister(self.close)
            self._call(self.backend.close)
            self._call(list, self._empty_mailbox())  # a cell may have come meanwhile
            for cell in self._cells.values():
                self._call(cell.finish, None)
            with self.changed:
                self.changed.notify_all()
            for callback in self._end_callbacks:
                self._call(callback)
            self._call(self._observer, self)

    def _step(self) -> None:
        """Wait for events, at most until the next look or decision is due, and do what they demand."""
        look_at, began = self._look_at(), 0.0
        due = look_at if self._wake_at is None else min(look_at, self._wake_at)
        self.backend.wait(max(due - self._clock(), 0))
        arrived = list(self.backend.take_events())
        arrived += self._empty_mailbox()
        if self._clock() >= look_at and self._clock() >= self._look_at():  # or a cell has begun
            began = time.thread_time()
            arrived.append(self._look())
        self._decide(arrived)
        if not _OBSERVED.isdisjoint(map(type, arrived)):
            self._call(self._observer, self)
        if began:
            self._look_cost_s = time.thread_time() - began

    def _empty_mailbox(self) -> Iterator[events.Event]:
        """Take what other threads have left, and note the cells among it."""
        while self._mailbox:
            letter = self._mailbox.popleft()
            if isinstance(letter, RunningCell):
                self._cells[letter.request.cell] = letter
                letter = letter.request
            yield letter

    def _look_at(self) -> float:
        """Return when the next look is due; it does not delay short cells."""
        idle = self._last_look + max(_IDLE_LOOK_S, self._look_cost_s / _IDLE_LOOK_SHARE)
        look_s = max(_LOOK_S, self._look_cost_s / _LOOK_SHARE)
        first = next(iter(self._cells.values()), None)
        return min(max(self._last_look, first.requested_at) + look_s, idle) if first else idle

    def _look(self) -> events.TasksObserved:
        """Look at the processes and their logs from outside, as far as the system permits."""
        self._last_look = self._clock()
        samples: dict[TaskId, events.ProcessSample] = {}
        with contextlib.suppress(OSError):  # the notebook may have opened all the files that it is allowed
            self._restore_folder()
            samples = self._take_samples()
        return events.TasksObserved(samples)

    def _restore_folder(self) -> None:
        """Make the run folder again if it was deleted, with the logs of the tasks that live."""
        self.run.restore()
        if self.run.restored:
            for task, seen in self.state.tasks.items():
                if seen.phase in ALIVE and not self.run.log_path(task).exists():
                    self.backend.send(task, commands.MoveLog())

    def _take_samples(self) -> dict[TaskId, events.ProcessSample]:
        suspects = stalls.suspects(self.state, self.policy(), self._last_look)
        pids: dict[Hashable, int] = {}
        if self.backend.runs_here:
            pids.update({task: seen.pid for task, seen in self.state.tasks.items()})
        pids.update(self.own_pids())
        starts = any(seen.phase in COMING for seen in self.state.tasks.values())
        self.usage = self._sampler.sample(pids, suspects, with_memory=bool(self._cells) or not starts)
        for task, used in self.backend.usage(suspects).items():
            self.usage[task] = used
        self._resume_own(starts)
        seen = {task: self.usage.get(task, Usage()) for task in self.state.tasks}
        short = memory.shortage({task.name: use.memory_bytes for task, use in seen.items()})
        self.warning = short and (self.warning or short)  # shown once, not with each byte
        return {task: self._sample(task, use) for task, use in seen.items()}

    def _resume_own(self, starts: bool) -> None:
        """Let stopped processes of the backend (SIGSTOP) go on where tasks wait for them.

        Cells wait for the process that talks to an engine, tasks that start for a launcher.
        """
        if starts or (self._cells and not self.backend.runs_here):
            for name, pid in self.own_pids().items():
                if self.usage.get(name, Usage()).paused:
                    os.kill(pid, SIGCONT)

    def _sample(self, task: TaskId, use: Usage) -> events.ProcessSample:
        factor = self.state.slowdowns.get(task, 1.0)
        cpu_s = None if use.cpu_s is None else use.cpu_s * factor
        return events.ProcessSample(cpu_s, self._watch_log(task), use.paused and factor == 1.0, use.wanted_s)

    def own_pids(self) -> dict[str, int]:
        """Return the processes that are no tasks: this kernel, and what the backend needs."""
        return {"kernel": os.getpid(), **self.backend.own_pids()}

    def _decide(self, arrived: list[events.Event]) -> None:
        """Fold events and act."""
        now, state = self._clock(), self.state
        for run in lifecycle.runs_of(arrived):
            kind = type(run[0])
            for listener, kinds in self._listeners:
                if not kinds or kind in kinds:
                    for event in run:
                        self._call(listener, event, state)
            if kind in ROUTED:
                self._call(self._router.route, run[0], state)
            state = lifecycle.fold(state, run, now)
        policy = self.policy()
        decision = lifecycle.conclude(state, arrived, policy, self._wake_at, now)
        self._note_starts(decision)
        self.state = decision.state
        for watcher in self._watchers:
            self._call(watcher, arrived, decision, policy, now)
        self._boot = None
        for action in decision.actions:
            try:
                self._perform(action)
            except Exception as error:
                self._report_failed(action, error)
        if self._waiting:  # a thread that begins to wait now looks at the new state first
            with self.changed:
                self.changed.notify_all()
        self._wake_at = decision.wake_at  # when time alone calls for another decision

    def _note_starts(self, decision: Decision) -> None:
        """Note where the output of a queued cell begins: other cells have written to the logs meanwhile.

        Views read it as soon as the state shows that the cell was sent.
        """
        queued = {number for number, cell in decision.state.cells.items() if cell.queued}
        for action in decision.actions if queued else ():
            match action:
                case Send(task, commands.RunCell(cell=number)) if number in queued:
                    self._cells[number].starts[task] = self.run.log_bytes(task)

    def _perform(self, action: Action) -> None:
        match action:
            case Send(task, commands.RunCell() as command):
                self.backend.send(task, self._cells[command.cell].command_to_send(command))
            case Send(task, answer) if task in self._acting:
                assert isinstance(answer, commands.ReleaseBarrier | commands.BreakBarrier)
                self._acting[task](answer)
            case Send(task, command):
                self.backend.send(task, command)
            case Launch(task, attempt):
                self.closed_logs.discard(task)
                self._boot = self._boot or self.boots()
                self.backend.launch(self._boot(task, attempt))
            case Signal(task, number, cell_number):
                if number == SIGUSR1:
                    self._cells[cell_number].dumps[task] = file_size(self.run.stacks_path(task))
                self.backend.signal(task, number)
            case FinishCell(outcome):
                with contextlib.suppress(OSError):
                    self._restore_folder()
                self.cells_ended += 1
                self._cells.pop(outcome.number).finish(outcome)
            case _:
                assert_never(action)

    def _report_failed(self, action: Action, error: Exception) -> None:
        """Turn an action that has raised into the event that its task would have caused."""
        what = f"{type(error).__name__}: {error}"
        match action:
            case Launch(task, attempt):
                self.ask(events.TaskLost(task, attempt, f"it could not be started: {what}"))
            case Send(task, commands.RunCell() as command):
                attempt, log_end = self.state.tasks[task].attempt, self.run.log_bytes(task)
                self.ask(events.not_sent(task, attempt, command.cell, log_end, what))
            case _:
                self._report_defect()

    def _watch_log(self, task: TaskId) -> int:
        """Return the length of the task's log; a log that has reached its limit is closed."""
        size = self.run.log_bytes(task)
        if size >= self._max_log_bytes and task not in self.closed_logs:
            self.closed_logs.add(task)
            self.backend.send(task, commands.CloseLog(self._max_log_bytes))
        return size
