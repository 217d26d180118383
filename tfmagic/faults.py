"""The fault lab: crashes, hangs, slowness, preemption and floods, on purpose, for lessons and tests.

Signals go to the supervisor, whose backend knows the process. What takes time is done by threads: one
"tfmagic-brake" stops and continues the tasks that are slowed, one "tfmagic-chaos" carries out a plan of
faults. Both end with the lab, and leave no process stopped.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tfmagic.events import FloodAsked, SignalAsked
from tfmagic.spec import TaskId, select
from tfmagic.supervisor import Supervisor

KINDS = ("kill", "pause", "resume", "preempt", "slow", "flood", "interrupt")
_LASTING = ("pause", "slow")
DEFAULT_KINDS = ("kill", "pause", "slow", "flood", "interrupt")
_PERIOD_S = 0.05  # of a slowed task: it runs for a part of it; TensorFlow's heartbeats are far longer
_KILLED_S = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a task.

    Attributes:
        at_s: When, in seconds from the start of the plan.
        kind: One of `KINDS`.
        amount: Factor of slowness, bytes of a flood; for a kill the signal, 0 for SIGKILL.
        for_s: How long a pause or slowness lasts; None: until somebody ends it.
    """

    at_s: float
    kind: str
    task: TaskId
    amount: float = 0
    for_s: float | None = None

    def __str__(self) -> str:
        what = {
            "slow": f", {self.amount:.1f} times slower",
            "flood": f" with {self.amount / 1e6:.0f} MB",
        }.get(self.kind, "")
        span = "" if self.for_s is None else f" for {self.for_s:.1f} s"
        return f"{self.at_s:.1f} s: {self.kind} {self.task}{what}{span}"


def draw_plan(
    seed: int, tasks: Sequence[TaskId], seconds: float, every_s: float, kinds: Sequence[str] = DEFAULT_KINDS
) -> tuple[Fault, ...]:
    """Faults at random times; the same seed gives the same ones.

    Args:
        seconds: How long it lasts.
        every_s: Mean time between two.

    Raises:
        ValueError: There is no such kind of fault, or a time is not above 0.
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        named = ", ".join(unknown) or "(none named)"
        raise ValueError(f"there is no fault {named}; there are {', '.join(KINDS)}")
    if not (0 < seconds < float("inf") and 0 < every_s < float("inf")):
        raise ValueError(f"chaos needs times above 0, not {seconds} s and one fault each {every_s} s")
    rng = random.Random(seed)
    plan: list[Fault] = []
    at_s = rng.expovariate(1 / every_s)
    while at_s < seconds:
        kind, task = rng.choice(list(kinds)), rng.choice(list(tasks))
        amount = {"slow": rng.uniform(2, 8), "flood": rng.uniform(1e6, 5e7)}.get(kind, 0)
        span = rng.uniform(0.2, 3.0)
        plan.append(Fault(at_s, kind, task, amount, span if kind in _LASTING else None))
        at_s += rng.expovariate(1 / every_s)
    return tuple(plan)


class FaultLab:
    """Of one life of a cluster."""

    def __init__(self, supervisor: Supervisor, name: str):
        self._supervisor, self._name = supervisor, name
        self._closed = threading.Event()
        self._plans: list[threading.Thread] = []
        self._calm = threading.Event()  # ends the plans of the time; later ones have another
        self._slowed: dict[TaskId, float] = {}
        self._brake: threading.Thread | None = None
        self._lock = threading.Lock()

    def kill(self, *tasks: str, signal_number: int = signal.SIGKILL) -> None:
        """A crash: signal the present processes. A SIGKILL is over when this returns.

        Args:
            *tasks: Selectors; a `ClusterSpecError` says that there is no such task, here and below.
        """
        chosen = self._select(tasks)
        state = self._supervisor.state
        attempts = {task: state.tasks[task].attempt for task in chosen if state.tasks[task].pid}
        self._send(chosen, signal_number)
        if signal_number == signal.SIGKILL:
            self._supervisor.wait_for(
                lambda s: all(s.tasks[t].attempt > n or not s.tasks[t].pid for t, n in attempts.items()),
                _KILLED_S,
            )

    def pause(self, *tasks: str) -> None:
        """A hang: stop the processes (SIGSTOP)."""
        self._send(self._select(tasks), signal.SIGSTOP)

    def resume(self, *tasks: str) -> None:
        """Let paused processes go on (SIGCONT)."""
        self._send(self._select(tasks), signal.SIGCONT)

    def preempt(self, *tasks: str) -> None:
        """Ask the processes to end (SIGTERM), as a cloud does before it takes a machine away.

        TensorFlow's PreemptionCheckpointHandler catches it: all tasks save at one step, and leave.
        """
        self._send(self._select(tasks), signal.SIGTERM)

    def slow(self, task: str, factor: float) -> None:
        """Let tasks compute for 1/factor of the time, until this is called with 1.

        Raises:
            ValueError: The factor is below 1, or above 100.
        """
        self._slow(self._select((task,)), factor)

    def flood(self, task: str, size_bytes: int) -> None:
        """Let tasks write that much to their error stream, below Python.

        Raises:
            ValueError: The size is negative.
        """
        if size_bytes < 0:
            raise ValueError(f"a flood has 0 bytes or more, not {size_bytes}")
        for chosen in self._select((task,)):
            self._supervisor.ask(FloodAsked(chosen, size_bytes))

    def later(self, after_s: float, kind: str, tasks: Sequence[str], amount: float = 0) -> tuple[TaskId, ...]:
        """Let a fault come later, while cells run: see `Fault`. The tasks that it will hit."""
        chosen = self._select(tasks)
        self.unleash([Fault(after_s, kind, task, amount) for task in chosen])
        return chosen

    def chaos(
        self,
        seed: int = 0,
        seconds: float = 30.0,
        every_s: float = 3.0,
        kinds: Sequence[str] = DEFAULT_KINDS,
        on: str = "all",
    ) -> tuple[Fault, ...]:
        """Let faults come at random in the background, and return what will happen and when.

        The same seed gives the same faults. What is killed stays dead unless the cluster restarts it.

        Raises:
            ValueError: There is no such kind of fault, or a time is not above 0.
        """
        plan = draw_plan(seed, self._select((on,)), seconds, every_s, kinds)
        self.calm()
        self.unleash(plan)
        return plan

    def unleash(self, plan: Sequence[Fault]) -> None:
        """Carry out a plan in the background, beside those that are under way."""
        work = threading.Thread(
            target=self._carry_out,
            args=(tuple(plan), self._calm),
            name=f"tfmagic-chaos-{self._name}",
            daemon=True,
        )
        self._plans = [*(thread for thread in self._plans if thread.is_alive()), work]
        work.start()

    def calm(self) -> None:
        """End all plans, and whatever they have paused or slowed."""
        self._calm.set()
        for thread in self._plans:
            thread.join()
        self._plans, self._calm = [], threading.Event()

    def close(self) -> None:
        """End all threads of the lab."""
        self._closed.set()
        self.calm()
        with self._lock:
            self._slowed.clear()
        if self._brake is not None:
            self._brake.join()

    # -- inside --

    def _select(self, tasks: Sequence[str]) -> tuple[TaskId, ...]:
        return select(",".join(tasks), tuple(self._supervisor.state.tasks))

    def _slow(self, tasks: Iterable[TaskId], factor: float) -> None:
        if not 1 <= factor <= 100:
            raise ValueError(f"a task can be 1 to 100 times slower, not {factor:g} times")
        with self._lock:
            for task in tasks:
                if factor == 1:
                    self._slowed.pop(task, None)
                else:
                    self._slowed[task] = factor
            self._supervisor.slowed = set(self._slowed)
            if self._slowed and (self._brake is None or not self._brake.is_alive()):
                name = f"tfmagic-brake-{self._name}"
                self._brake = threading.Thread(target=self._slow_down, name=name, daemon=True)
                self._brake.start()

    def _slow_down(self) -> None:
        """Stop and continue the slowed tasks; the last signal to each is SIGCONT."""
        stopped: set[TaskId] = set()
        while not self._closed.is_set():
            with self._lock:
                slowed = dict(self._slowed)
                if not slowed:
                    break
            began = time.monotonic()
            self._send(slowed, signal.SIGSTOP)
            stopped = set(slowed)
            for task in sorted(slowed, key=lambda t: slowed[t]):  # the least slowed runs again first
                stop_s = _PERIOD_S * (1 - 1 / slowed[task])
                self._closed.wait(max(began + stop_s - time.monotonic(), 0))
                self._send([task], signal.SIGCONT)
                stopped.discard(task)
            self._closed.wait(max(began + _PERIOD_S - time.monotonic(), 0))
        self._send(stopped, signal.SIGCONT)

    def _send(self, tasks: Iterable[TaskId], number: int) -> None:
        for task in tasks:
            self._supervisor.ask(SignalAsked(task, number))

    def _carry_out(self, plan: tuple[Fault, ...], calm: threading.Event) -> None:
        started = time.monotonic()
        # a pause or slowness ends by a step of its own
        steps: list[tuple[float, Fault | None, TaskId]] = [(f.at_s, f, f.task) for f in plan]
        steps += [(f.at_s + f.for_s, None, f.task) for f in plan if f.for_s is not None]
        for at_s, fault, task in sorted(steps, key=lambda step: step[0]):
            if calm.wait(max(started + at_s - time.monotonic(), 0)):
                for hit in {f.task for f in plan if f.kind in _LASTING}:
                    self._do(None, hit)
                return
            self._do(fault, task)

    def _do(self, fault: Fault | None, task: TaskId) -> None:
        if self._closed.is_set() or not self._supervisor.thread.is_alive():
            return
        match fault:
            case None:
                self._slow([task], 1)
                self._send([task], signal.SIGCONT)
            case Fault(kind="kill", amount=number):
                self._send([task], int(number) or signal.SIGKILL)
            case Fault(kind="pause"):
                self._send([task], signal.SIGSTOP)
            case Fault(kind="resume"):
                self._send([task], signal.SIGCONT)
            case Fault(kind="preempt"):
                self._send([task], signal.SIGTERM)
            case Fault(kind="slow", amount=factor):
                self._slow([task], factor)
            case Fault(kind="flood", amount=size_bytes):
                self._supervisor.ask(FloodAsked(task, int(size_bytes)))
            case Fault(kind="interrupt"):
                self._supervisor.interrupt((task,))
