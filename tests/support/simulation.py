"""A cluster on a virtual clock: the real supervisor over processes that exist only as plans, from a seed.

    user (random requests, presses, kills, stops) ─→ Supervisor, its own loop ─→ SimulatedBackend.send, signal
          ↑                                              ↑ events, late or slow         │
          └──────────── one heap of (time, action) ──────┴──── SimulatedProcess ←───────┘

Nothing sleeps: `wait` moves the clock to the next entry of the heap. What must hold is checked at each event,
each command and each end of a cell; a violation names the seed and the step, and the same seed repeats it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tfmagic.protocol import commands, events
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.payload import PackedError
from tfmagic.runs import folder
from tfmagic.supervisor.escalation import PATIENCE_S
from tfmagic.supervisor.running_cell import RunningCell
from tfmagic.supervisor.state import ALIVE, SIGKILL, Phase, Policy
from tfmagic.supervisor.supervisor import Supervisor

TASKS = (TaskId("chief", 0), TaskId("worker", 0), TaskId("worker", 1), TaskId("ps", 0))
SLOWEST_S = 2.0  # that a message, a signal or the end of a process takes
START_S = 3.0  # the policy's time for a start
_BARRIERS = ("start", "step", "end")
_UNFINISHED = 4  # cells at a time
_TICK_S = 1e-6
_SPIN_TURNS = 100
_CHECK_S = 1.0  # at most between two checks of the state
_ERROR = PackedError("ValueError", "bad", "", None, "worker-0", (("ValueError", "bad"),))


class Violation(AssertionError):
    """Something that must always hold did not."""


@dataclass(eq=False)
class SimulatedProcess:
    """One attempt of a task.

    Attributes:
        plan: A number that changes with each new plan, so that steps of a former plan do nothing.
        at_barrier: The cell and the name of the barrier at which it waits.
        last_arrival, last_command: When its last message, and the last one to it, arrives.
    """

    task: TaskId
    attempt: int
    has_ended: bool = False
    cell: commands.RunCell | None = None
    plan: int = 0
    at_barrier: tuple[int, str] | None = None
    last_arrival: float = 0.0
    last_command: float = 0.0
    interrupts: set[int] = field(default_factory=set)


class Simulation:
    """Runs one cluster from its start to its stop; `run` returns when it has checked everything.

    Args:
        seed: Decides everything that happens.
        steps: How many events the supervisor gets before the cluster becomes quiet and is stopped.

    Attributes:
        count: The number of events that the supervisor has got.
    """

    def __init__(self, seed: int, steps: int, state_dir: Path):
        self.seed, self.steps = seed, steps
        self.random = random.Random(seed)
        self.now, self.count = 0.0, 0
        self.policy = Policy(
            failure_grace_s=0.3,
            start_timeout_s=START_S,
            auto_restart=self.random.choice((0, 1, 100)),
            dependence_on_chief=self.random.random() < 0.2,
        )
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order, self._numbers = count(), count(1)
        self.processes: dict[TaskId, SimulatedProcess] = {}
        self.backend = SimulatedBackend(self)
        run = folder.create_run(state_dir, f"seed-{seed}", {})
        self.supervisor = _SimulatedSupervisor(
            self.backend, TASKS, lambda: self.policy, lambda: _boot, run, 1 << 30, clock=lambda: self.now
        )
        self.unwanted: set[TaskId] = set()  # tasks whose present process the user wants to end
        self.unfinished: set[int] = set()
        self.cells_begun = 0
        self.pressed: set[int] = set()  # once: no process is killed for that
        self.pressed_at: dict[int, float] = {}  # twice, or by a press that insists
        self.patient_at: dict[int, float] = {}  # when each cell last had its tasks' time, after a first press
        self._idle_turns = 0

    def run(self) -> int:
        """Run to the end, and return the number of events.

        Raises:
            Violation: Something that must always hold did not; the message has the seed.
        """
        self.after(0.0, self._act)
        self.supervisor.thread.run()  # in this thread
        crash = self.supervisor.crashed
        if crash is not None:
            where = f"seed {self.seed}, event {self.count}, time {self.now:.3f} s"
            raise Violation(f"{where}: {crash!r}") from crash
        self.expect(not self.unfinished, f"cells {self.unfinished} have no end")
        return self.count

    def expect(self, holds: object, message: str) -> None:
        """Raise `Violation` unless `holds`."""
        if not holds:
            raise Violation(f"seed {self.seed}, event {self.count}, time {self.now:.3f} s: {message}")

    def after(self, delay_s: float, action: Callable[..., object], *arguments: Any) -> None:
        """Do something later: what is due in the same millisecond happens at once, as a busy loop sees it."""
        due = math.ceil((self.now + delay_s) * 1000) / 1000
        heapq.heappush(self._heap, (due, next(self._order), action, arguments))

    def delay(self) -> float:
        """Return how long something takes: mostly a millisecond or two, sometimes very long."""
        chance = self.random.random()
        if chance < 0.9:
            return 0.001 * (1 + int(chance * 3))
        return 0.05 if chance < 0.995 else self.random.uniform(0.05, SLOWEST_S)

    def advance(self, timeout_s: float | None) -> None:
        """Do what happens next, and all that happens at the same time; or let the time pass."""
        until = float("inf") if timeout_s is None else self.now + timeout_s
        self.expect(self._heap or timeout_s is not None, "everything waits for ever")
        if not self._heap or self._heap[0][0] > until:
            self.now = until + _TICK_S  # a float may be rounded down to just before the due time
            self._idle_turns = self._idle_turns + 1 if timeout_s == 0 else 0
            self.expect(self._idle_turns < _SPIN_TURNS, "the loop turns without waiting for anything")
            return
        self._idle_turns = 0
        self.now = max(self.now, self._heap[0][0])
        while self._heap and self._heap[0][0] <= self.now:
            _, _, action, arguments = heapq.heappop(self._heap)
            action(*arguments)

    # -- the user --

    def _act(self) -> None:
        """Do one thing that a user does, and come again; after the last one stop the cluster."""
        if self.count >= self.steps:
            self._become_quiet()
            return
        unfinished = self.unfinished
        self.after(0.1 if len(unfinished) >= _UNFINISHED else 0.001, self._act)
        chance, tasks = self.random.random(), self._some_tasks()
        dead = tuple(t for t, seen in self.supervisor.state.tasks.items() if seen.phase is Phase.DEAD)
        if chance < 0.03 and unfinished:
            self._press(self.random.choice(list(unfinished)), self.random.choice(((), tasks)))
        elif chance < 0.032:
            self._press(0, ())
        elif chance < 0.034:
            self._relaunch(tasks)
        elif chance < 0.038:
            self.unwanted.add(tasks[0])
            self.supervisor.ask(events.SignalAsked(tasks[0], SIGKILL))
        elif chance < 0.040:
            self._die(self.random.choice(TASKS), self.random.choice((0, 1, -11)))
        elif chance < 0.0402:
            for task in TASKS:
                self._lose(task)
        elif chance < 0.07 and dead:
            self._relaunch(dead)
        elif len(unfinished) < _UNFINISHED:
            self._request(tasks)

    def _relaunch(self, tasks: tuple[TaskId, ...]) -> None:
        self.unwanted.update(tasks)
        self.supervisor.ask(events.LaunchRequested(tasks))

    def may_kill(self, task: TaskId) -> bool:
        """Check whether there is a reason to kill the task's process while it starts."""
        return task in self.unwanted or self.policy.dependence_on_chief or self.supervisor.state.stopping

    def check_kill(self, task: TaskId) -> None:
        """Check that one press, and nothing else, is no reason to kill the task's process."""
        for cell in self.supervisor.state.cells.values():
            limit = cell.request.timeout_s
            is_late = limit is not None and self.now >= cell.started + limit
            if cell.sent and task in cell.waiting_for and not is_late and not self.may_kill(task):
                self.expect(cell.presses != 1 or cell.insists, f"one press killed {task}")

    def _some_tasks(self) -> tuple[TaskId, ...]:
        if self.random.random() < 0.5:
            return TASKS
        return tuple(self.random.sample(TASKS, self.random.randrange(1, len(TASKS))))

    def _request(self, tasks: tuple[TaskId, ...]) -> None:
        number = next(self._numbers)
        request = events.CellRequested(
            number,
            {task: commands.RunCell(number, tasks=tasks) for task in tasks},
            timeout_s=self.random.choice((None, None, None, 0.05, 2.0)),
            keep_going=self.random.random() < 0.2,
        )
        cell = RunningCell(request, {})
        cell.requested_at = self.now
        cell.on_done(lambda: self._note_end(cell))
        self.unfinished.add(number)
        self.cells_begun += 1
        self.supervisor.run_cell(cell)

    def _note_end(self, cell: RunningCell) -> None:
        number, outcome = cell.request.cell, cell.outcome
        self.expect(number in self.unfinished, f"cell {number} has ended twice")
        self.unfinished.discard(number)
        self.pressed_at.pop(number, None)
        self.patient_at.pop(number, None)
        self.pressed.discard(number)
        if outcome is not None and outcome.sent:
            missing = set(cell.request.commands) - set(outcome.outcomes)
            self.expect(not missing, f"cell {number} has ended without an outcome of {missing}")
            for task, end in outcome.outcomes.items():
                if isinstance(end, events.TaskExited | events.TaskLost) and end.attempt:
                    is_true = (task, end.attempt) in self.backend.ended_attempts
                    self.expect(is_true, f"cell {number}: {task} lives, and counts as ended: {end}")
        elif outcome is not None:
            self.expect(outcome.presses or outcome.timed_out, f"cell {number} was given up without a reason")

    def _press(self, number: int, tasks: tuple[TaskId, ...]) -> None:
        insists = self.random.random() < 0.2
        self.supervisor.ask(events.InterruptPressed(tasks, number, insists))
        for pressed in self.unfinished if number == 0 else {number}:
            if not tasks and (insists or pressed in self.pressed):
                self.pressed_at.setdefault(pressed, self.now)
            elif not tasks:
                self.pressed.add(pressed)

    def _become_quiet(self) -> None:
        """Press twice, so that cells that wait for ever end, and stop when they have."""
        self._press(0, ())
        self.after(0.1, self._press, 0, ())
        self.after(30.0, self._relaunch, TASKS)
        attempts = {task: seen.attempt for task, seen in self.supervisor.state.tasks.items()}
        self.after(60.0, self._stop, attempts)

    def _stop(self, attempts: Mapping[TaskId, int]) -> None:
        state = self.supervisor.state
        old = [task for task, attempt in attempts.items() if state.tasks[task].attempt == attempt]
        self.expect(not old, f"{old} got no new process, and should have")
        self.expect(not state.cells, f"cells {list(state.cells)} have not ended")
        self.expect(not state.barriers, f"tasks wait at {list(state.barriers)}")
        at = {p.task: p.at_barrier for p in self.processes.values() if p.at_barrier and not p.has_ended}
        self.expect(not at, f"processes were never released: {at}")
        self.supervisor.ask(events.StopRequested())

    def check_state(self) -> None:
        """Check that no wait is longer than the policy allows, and that the state holds nothing old."""
        state, policy = self.supervisor.state, self.policy
        escalation_s = (
            policy.interrupt_grace_s + policy.cancel_grace_s + policy.abort_grace_s + SLOWEST_S + 0.1
        )
        escalation_s += PATIENCE_S  # with a task that makes progress
        self.expect(len(state.cells) <= len(TASKS) + _UNFINISHED + 1, "finished cells are kept")
        for number, cell in state.cells.items():
            waits = [self.pressed_at.get(number)]
            if is_patient := cell.presses == 1 and not cell.insists:
                self.patient_at[number] = self.now
            if cell.failed_at is not None and not cell.request.keep_going and not is_patient:
                waits.append(max(cell.failed_at + policy.failure_grace_s, self.patient_at.get(number, 0.0)))
            if cell.sent and cell.request.timeout_s is not None:
                waits.append(cell.started + cell.request.timeout_s)
            due = min((at for at in waits if at is not None), default=float("inf")) + escalation_s + _CHECK_S
            self.expect(self.now <= due, f"cell {number} should have ended at {due:.3f}: {cell}")
        for task, seen in state.tasks.items():
            if seen.phase is Phase.STARTING:
                due = seen.since + START_S + 5.0 + SLOWEST_S + _CHECK_S
                self.expect(self.now <= due, f"{task} starts for ever")
        for (_, name), waiting in state.barriers.items():
            alive = [task for task in waiting if state.tasks[task].phase in ALIVE]
            self.expect(len(alive) == len(waiting), f"dead tasks wait at {name}")

    # -- the processes --

    def _report(self, process: SimulatedProcess, *what: events.Event) -> None:
        """Let the supervisor get events of a process, behind the earlier ones."""
        process.last_arrival = max(process.last_arrival, self.now + self.delay())
        self.after(process.last_arrival - self.now, self.backend.arrive, *what)

    def start_process(self, task: TaskId, attempt: int) -> None:
        """Start a process; some starts fail or hang."""
        process = self.processes[task] = SimulatedProcess(task, attempt)
        chance = self.random.random()
        if chance < 0.03:
            self._end(process, events.TaskLost(task, attempt, "it could not be started"))
            return
        self._report(process, events.TaskStarted(task, attempt, 0, fresh=False))
        if chance > 0.995:  # it hangs while it starts
            return
        self.after(self.delay(), self._become_ready, process)

    def _become_ready(self, process: SimulatedProcess) -> None:
        if not process.has_ended:
            self._report(process, events.TaskReady(process.task, process.attempt, 0, "nowhere"))

    def _end(self, process: SimulatedProcess, event: events.TaskExited | events.TaskLost) -> None:
        if not process.has_ended:
            process.has_ended, process.at_barrier = True, None
            self._report(process, event)
            if self.random.random() < 0.2:
                self.after(self.random.uniform(0.1, 3.0), self._arrive_too_late, process, event)

    def _arrive_too_late(self, process: SimulatedProcess, end: events.TaskExited | events.TaskLost) -> None:
        """Let events of a former process arrive once its successor is there: they must change nothing."""
        if self.processes[process.task] is not process:
            where = (process.task, process.attempt)
            cell = self._seen_cell(process.task)
            self.backend.arrive(
                events.TaskReady(*where, 0, "nowhere"), events.CellReturned(*where, cell, 0.0, 0), end
            )

    def _seen_cell(self, task: TaskId) -> int:
        cell = self.processes[task].cell
        return 0 if cell is None else cell.cell

    def _die(self, task: TaskId, exit_code: int) -> None:
        if (process := self.processes.get(task)) is not None:
            self._end(process, events.TaskExited(task, process.attempt, exit_code))

    def _lose(self, task: TaskId) -> None:
        if (process := self.processes.get(task)) is not None:
            self._end(process, events.TaskLost(task, process.attempt, "its launcher has ended"))

    def signal_process(self, task: TaskId, number: int) -> None:
        """Signal the present process: only SIGKILL has an effect."""
        if number == SIGKILL and task in self.processes:
            self._die(task, -SIGKILL)

    def send_command(self, task: TaskId, command: commands.Command) -> None:
        """Let a command reach the present process, behind the earlier ones."""
        process = self.processes[task]
        process.last_command = max(process.last_command, self.now + self.delay())
        self.after(process.last_command - self.now, self._receive, process, command)

    def _receive(self, process: SimulatedProcess, command: commands.Command) -> None:
        """Let a process do what a command says, or not."""
        if process.has_ended:
            return
        running = process.cell
        match command:
            case commands.RunCell():
                self.expect(running is None, f"{process.task} got {command.cell} while it ran {running}")
                process.cell = command
                if command.cell in process.interrupts:
                    self._finish(process, interrupted=True)
                else:
                    self._plan(process)
            case commands.InterruptCell(number):
                process.interrupts.add(number)
                if running is not None and running.cell == number and self.random.random() < 0.7:
                    self._finish(process, interrupted=True)
            case commands.CancelOps() if running is not None and self.random.random() < 0.5:
                self._finish(process, interrupted=True)
            case commands.AbortCollectives() if running is not None and self.random.random() < 0.5:
                self._finish(process, error=True)
            case commands.EndTask() if running is None and self.random.random() < 0.9:
                self._end(process, events.TaskExited(process.task, process.attempt, 0))
            case commands.ReleaseBarrier(name) | commands.BreakBarrier(name):
                if process.at_barrier is not None and process.at_barrier[1] == name:
                    process.at_barrier = None
                    self._plan(process)

    def _plan(self, process: SimulatedProcess) -> None:
        """Choose what the process does next in its cell."""
        process.plan += 1
        self.after(self.delay(), self._go_on, process, process.plan)

    def _go_on(self, process: SimulatedProcess, plan: int) -> None:
        cell = process.cell
        if process.has_ended or process.plan != plan or cell is None:
            return
        chance = self.random.random()
        if chance < 0.45:
            self._finish(process)
        elif chance < 0.50:
            self._finish(process, error=True)
        elif chance < 0.51:
            self._end(process, events.TaskExited(process.task, process.attempt, -11))
        elif chance < 0.75:
            process.at_barrier = (cell.cell, self.random.choice(_BARRIERS))
            timeout_s = self.random.choice((None, None, 0.2))
            self._report(process, self._arrival(process, cell, timeout_s))
        elif chance < 0.99:
            lines = range(self.random.randrange(1, 20))
            where = (process.task, process.attempt, cell.cell, "")
            self._report(process, *(events.LineReached(*where, line) for line in lines))
            self._plan(process)
        # else: it hangs

    def _arrival(
        self, process: SimulatedProcess, cell: commands.RunCell, timeout_s: float | None
    ) -> events.BarrierReached:
        assert process.at_barrier is not None
        name = process.at_barrier[1]
        return events.BarrierReached(process.task, process.attempt, name, cell.tasks, timeout_s, cell.cell)

    def _finish(self, process: SimulatedProcess, error: bool = False, interrupted: bool = False) -> None:
        assert process.cell is not None
        task, attempt, number = process.task, process.attempt, process.cell.cell
        process.cell, process.at_barrier, process.plan = None, None, process.plan + 1
        if error or interrupted:
            self._report(process, events.CellRaised(task, attempt, number, 0.0, 0, _ERROR, interrupted))
        else:
            self._report(process, events.CellReturned(task, attempt, number, 0.0, 0))


class SimulatedBackend:
    """The backend of a `Simulation`: see `tfmagic.backends.protocol.Backend`.

    It also checks what the supervisor does: it sends nothing to a process whose end it has seen, no cell to a
    process that is not ready, and to the tasks at a barrier either releases or breaks, to all of them.
    """

    def __init__(self, simulation: Simulation):
        self._simulation = simulation
        self._arrived: list[events.Event] = []
        self._attempts: dict[TaskId, int] = dict.fromkeys(TASKS, 0)
        self.ended_attempts = {(task, 0) for task in TASKS}  # as far as the supervisor has seen
        self._ready: set[TaskId] = set()  # the same
        self._last_cells = dict.fromkeys(TASKS, 0)
        self._checked_at = 0.0
        self._launched_at: dict[TaskId, float] = {}
        self._waiting: dict[TaskId, events.BarrierReached] = {}  # the same
        self._answers: dict[TaskId, commands.ReleaseBarrier | commands.BreakBarrier] = {}

    def arrive(self, *what: events.Event) -> None:
        """Let the supervisor take events."""
        self._arrived += what

    def asked(self) -> None:
        """Count an event of the user."""
        self._simulation.count += 1

    def allocate(self, tasks: Iterable[TaskId]) -> Mapping[TaskId, str]:
        return {}

    def launch(self, boot: commands.TaskBoot) -> None:
        task, attempt = boot.task, boot.attempt
        self._simulation.expect(self._has_ended(task), f"{task} got a process while the former one lives")
        self._simulation.expect(attempt == self._attempts[task] + 1, f"{task} skips an attempt")
        self._attempts[task], self._launched_at[task] = attempt, self._simulation.now
        self._simulation.unwanted.discard(task)
        self._ready.discard(task)
        self._simulation.start_process(task, attempt)

    def send(self, task: TaskId, command: commands.Command) -> None:
        self._simulation.expect(not self._has_ended(task), f"{command} was sent to {task}, which has ended")
        self._simulation.expect(task in self._ready, f"{command} was sent to {task}, which is not ready")
        if isinstance(command, commands.ReleaseBarrier | commands.BreakBarrier):
            self._answers[task] = command
        if isinstance(command, commands.RunCell):
            self._simulation.expect(command.cell > self._last_cells[task], f"{task} runs cells out of order")
            self._last_cells[task] = command.cell
        self._simulation.send_command(task, command)

    def signal(self, task: TaskId, number: int) -> None:
        if number == SIGKILL and task not in self._ready and task in self._launched_at:
            simulation = self._simulation
            is_due = simulation.now >= self._launched_at[task] + START_S or simulation.may_kill(task)
            simulation.expect(is_due or self._has_ended(task), f"{task} was killed while it started")
        if number == SIGKILL:
            self._simulation.check_kill(task)
        self._simulation.signal_process(task, number)

    def wait(self, timeout_s: float | None) -> None:
        self._check_answers()
        self._check_waits(self._simulation.supervisor.state.barriers)
        if self._simulation.now >= self._checked_at + _CHECK_S:
            self._checked_at = self._simulation.now
            self._simulation.check_state()
        if not self._arrived:
            self._simulation.advance(timeout_s)

    def take_events(self) -> Sequence[events.Event]:
        taken, self._arrived = self._arrived, []
        self._simulation.count += len(taken)
        for event in taken:
            match event:
                case events.TaskReady() | events.CellReturned() | events.CellRaised() if self._is_old(event):
                    pass
                case events.TaskReady(task):
                    self._ready.add(task)
                case events.BarrierReached(task):
                    self._waiting[task] = event
                case events.CellReturned(task) | events.CellRaised(task):
                    self._waiting.pop(task, None)
                case events.TaskExited(task) | events.TaskLost(task):
                    self.ended_attempts.add((task, event.attempt))
                    if event.attempt == self._attempts[task]:
                        self._waiting.pop(task, None)
        return taken

    def observe(self) -> dict[TaskId, events.ProcessSample]:
        """Return what a look at the processes shows: most compute."""
        chance, now = self._simulation.random.random, self._simulation.now
        return {task: events.ProcessSample(now * chance(), 0) for task in TASKS}

    def own_pids(self) -> Mapping[str, int]:
        return {}

    def wake(self) -> None:
        pass  # only the loop's own thread calls `ask`, from within `wait`

    def close(self) -> None:
        pass

    def _check_waits(self, known: Mapping[tuple[int, str], Collection[TaskId]]) -> None:
        """Check that the supervisor knows of each task that waits at a barrier."""
        for task, reached in self._waiting.items():
            waits = task in known.get((reached.cell, reached.barrier), ())
            self._simulation.expect(waits, f"{task} waits at {reached.barrier}, and was forgotten")

    def _is_old(self, event: events.TaskReady | events.CellReturned | events.CellRaised) -> bool:
        return event.attempt != self._attempts[event.task]

    def _has_ended(self, task: TaskId) -> bool:
        return (task, self._attempts[task]) in self.ended_attempts

    def _check_answers(self) -> None:
        """Check the answers of one decision: each barrier opens for all its members, or breaks for all."""
        answers, self._answers = self._answers, {}
        kinds: dict[tuple[int, str], tuple[type, set[TaskId]]] = {}
        for task, answer in answers.items():
            reached = self._waiting.pop(task, None)
            self._simulation.expect(
                reached is not None and reached.barrier == answer.barrier, f"{task} does not wait: {answer}"
            )
            assert reached is not None
            kind, tasks = kinds.setdefault((reached.cell, reached.barrier), (type(answer), set()))
            self._simulation.expect(
                kind is type(answer), f"{reached.barrier} opens for some and breaks for some"
            )
            tasks.add(task)
            if kind is commands.ReleaseBarrier:
                self._simulation.expect(set(reached.members) <= answers.keys(), f"{reached} opens for some")
        for task, reached in self._waiting.items():
            left_out = (reached.cell, reached.barrier) in kinds
            self._simulation.expect(not left_out, f"{task} got no answer at {reached.barrier}")


class _SimulatedSupervisor(Supervisor):
    """The supervisor; it looks at simulated processes, and is checked at each look."""

    backend: SimulatedBackend

    def ask(self, event: events.Event) -> None:
        self.backend.asked()
        super().ask(event)

    def _take_samples(self) -> dict[TaskId, events.ProcessSample]:
        return self.backend.observe()

    @property
    def _look_cost_s(self) -> float:
        """What the last look has cost: nothing, since that time is the machine's, and would decide the next look."""
        return 0.0

    @_look_cost_s.setter
    def _look_cost_s(self, measured: float) -> None:
        pass


def _boot(task: TaskId, attempt: int) -> commands.TaskBoot:
    return commands.TaskBoot(
        task, attempt, "simulated", TASKS, "", {}, "", (), "", TASKS[0], 0, keras_fix=False
    )
