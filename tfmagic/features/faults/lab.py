"""The fault lab: crash, pause, slow down, preempt and flood tasks on purpose, for lessons and tests.

Signals go through the supervisor, whose backend knows the process. The thread "tfmagic-throttle" stops and
continues the slowed tasks. One thread "tfmagic-chaos" for each plan of faults carries it out. The threads end
with the lab, and leave no process stopped.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

import psutil

from tfmagic.backends.simulated.hosts import SimulatedHosts, require_hosts
from tfmagic.errors import ClusterSpecError, TfmagicError
from tfmagic.features.faults import plan as plans
from tfmagic.features.faults.plan import DEFAULT_KINDS, Fault
from tfmagic.protocol.cluster_spec import TaskId, select
from tfmagic.protocol.events import Cause, FloodAsked, HostCutOff, SignalAsked, TasksSlowed
from tfmagic.supervisor.state import ClusterState, Phase
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import usage
from tfmagic.system.advice import Step
from tfmagic.system.arguments import described

_OF_HOSTS = ("partition", "heal")
_PERIOD_S = 0.05  # a slowed task runs for a part of each period; TensorFlow's heartbeats are far longer
_KILLED_S = 5.0
_LOOK_S = 0.002
_SEEN_S = 1.0  # until the supervisor knows of a cut
_ELSEWHERE_S = 1.5  # on another machine it is not known beforehand whether a task handles the signal


_SIGNALS = {
    "kill": signal.SIGKILL, "pause": signal.SIGSTOP, "resume": signal.SIGCONT, "preempt": signal.SIGTERM,
}  # fmt: skip
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_DEADLY = (*_CRASHES, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class FaultLab:
    """Injures the tasks of one running cluster. Its methods take selectors of tasks.

    Every method raises `ClusterSpecError` if there is no such task, and `TfmagicError` if none of the tasks
    has a process; those without one are left out. A kind, signal, time or amount that makes no sense is a
    `ValueError`.
    """

    def __init__(self, supervisor: Supervisor, name: str, hosts: SimulatedHosts | None = None):
        self._supervisor, self._name, self._hosts = supervisor, name, hosts
        self._closed = threading.Event()
        self._plans: dict[threading.Thread, threading.Event] = {}  # under way, and what ends each
        self._chaos: tuple[threading.Thread, ...] = ()  # those of them that `chaos` has begun
        self._slowed: dict[TaskId, float] = {}
        self._slow_or_stopped: dict[TaskId, float] = {}  # and those that the throttle has not continued
        self._paused: set[TaskId] = set()  # with `pause`: the throttle does not continue them
        self._throttle: threading.Thread | None = None
        self._lock = threading.Lock()
        supervisor.on_end(self._end_threads)

    def is_of(self, supervisor: Supervisor) -> bool:
        """Check whether its tasks are those of this supervisor."""
        return self._supervisor is supervisor

    def tasks_on(self, host: str) -> Sequence[TaskId]:
        """Return the tasks of a simulated host."""
        return require_hosts(self._hosts).tasks_on([host])

    def pids(self, tasks: Iterable[TaskId]) -> dict[TaskId, int]:
        """Return the present process of each task; 0 for none."""
        return {task: self._supervisor.state.tasks[task].pid for task in tasks}

    def select(self, tasks: Sequence[str]) -> tuple[TaskId, ...]:
        """Return the tasks of selectors that have a process."""
        state = self._supervisor.state
        chosen = select(tasks, state.tasks)
        found = tuple(t for t in chosen if state.tasks[t].phase not in (Phase.DEAD, Phase.STOPPED))
        if not found:
            names, verb = ", ".join(task.name for task in chosen), "has" if len(chosen) == 1 else "have"
            raise TfmagicError(f"{names} {verb} no process; {Step('revive')} gives dead tasks new ones")
        return found

    def kill(self, *tasks: str, signal_number: int = signal.SIGKILL) -> None:
        """Crash the present processes with a signal, and wait until those that it ends have ended."""
        plans.check_signal(signal_number)
        self._end(self.select(tasks), signal_number)

    def pause(self, *tasks: str) -> None:
        """Let tasks hang: stop their processes (SIGSTOP), and wait until those on this machine stand."""
        chosen = self.select(tasks)
        with self._lock:
            self._paused |= set(chosen)
        self._send(chosen, signal.SIGSTOP)
        self._wait_until(chosen, is_paused=True)

    def resume(self, *tasks: str) -> None:
        """Let paused processes go on (SIGCONT), and wait until those on this machine do."""
        chosen = self.select(tasks)
        with self._lock:
            self._paused -= set(chosen)
        self._send(chosen, signal.SIGCONT)
        self._wait_until(chosen, is_paused=False)

    def preempt(self, *tasks: str) -> None:
        """Ask the processes to end (SIGTERM), as a cloud does before it takes a machine away.

        TensorFlow's PreemptionCheckpointHandler catches it: all tasks save at one step, and leave.
        """
        self._end(self.select(tasks), signal.SIGTERM)

    def slow(self, task: str, factor: float) -> None:
        """Let tasks compute for only 1/factor of the time; a factor of 1 ends that."""
        self._slow(self.select((task,)), factor)

    def flood(self, task: str, size_bytes: int) -> None:
        """Let tasks write this many bytes to their error stream, below Python."""
        plans.check_bytes(size_bytes)
        for chosen in self.select((task,)):
            self._supervisor.ask(FloodAsked(chosen, size_bytes))

    def partition(self, *targets: str) -> tuple[str, ...]:
        """Cut simulated hosts off from the others, as by a pulled cable: packets are dropped, not refused.

        Targets are hosts, or tasks for their hosts. Return the hosts that were not cut off before.
        """
        return self._set_cut(self._hosts_of(targets), True)

    def heal(self, *targets: str) -> tuple[str, ...]:
        """Join hosts to the others again, all by default; return those that were cut off."""
        return self._set_cut(self._hosts_of(targets) if targets else (), False)

    def later(self, after_s: float, kind: str, targets: Sequence[str], amount: float = 0) -> tuple[str, ...]:
        """Inject a `Fault` later, while cells run; return the tasks or hosts that it will hit."""
        if kind in _OF_HOSTS:
            network = require_hosts(self._hosts)
            hosts = self._hosts_of(targets) if targets else network.names
            chosen, names = [network.tasks_on([host])[0] for host in hosts], hosts
        else:
            chosen = list(select(targets, self._supervisor.state.tasks))
            names = tuple(task.name for task in chosen)
        self.unleash([Fault(after_s, kind, task, amount) for task in chosen])
        return names

    def chaos(
        self,
        seed: int = 0,
        seconds: float = 30.0,
        every_s: float = 3.0,
        kinds: Sequence[str] = DEFAULT_KINDS,
        on: str = "all",
    ) -> tuple[Fault, ...]:
        """Inject faults at random in the background, and return the plan; see `draw_plan`.

        A killed task stays dead unless the cluster restarts it. Former chaos ends.
        """
        plan = plans.draw_plan(seed, select(on, self._supervisor.state.tasks), seconds, every_s, kinds)
        self._end_plans(self._chaos)
        self._chaos = (self.unleash(plan, Cause.CHAOS),)
        return plan

    def unleash(self, plan: Sequence[Fault], cause: Cause = Cause.USER) -> threading.Thread:
        """Carry out a plan in the background, beside those under way. Return its thread."""
        if not isinstance(plan, Sequence):
            raise TypeError(f"a plan is what draw_plan returns, not {described(plan)}")
        for fault in plan:
            if not isinstance(fault, Fault):
                raise TypeError(f"a plan is what draw_plan returns, and not one of {described(fault)}")
            fault.check()
        must_end, name = threading.Event(), f"tfmagic-chaos-{self._name}"
        args = (tuple(plan), must_end, cause)
        thread = threading.Thread(target=self._carry_out, args=args, name=name, daemon=True)
        with self._lock:
            self._plans = {t: event for t, event in self._plans.items() if t.is_alive()} | {thread: must_end}
        thread.start()
        return thread

    def calm(self) -> None:
        """End all plans, and with them the pauses and slowness that they caused."""
        self._end_plans(self._plans)

    def close(self) -> None:
        """End all threads of the lab."""
        self._end_threads()
        self.calm()
        if (throttle := self._throttle) is not None:
            throttle.join()

    @property
    def at_work(self) -> bool:
        """True if a task is paused or slowed, a host cut off, a link changed, or faults are still to come."""
        if self._closed.is_set():
            return False
        is_changed = self._hosts is not None and self._hosts.has_changed
        with self._lock:
            return bool(self._paused or self._slowed or is_changed or any(t.is_alive() for t in self._plans))

    # -- inside --

    def _end_threads(self) -> None:
        """Ask all threads to end, without waiting for them."""
        self._closed.set()
        with self._lock:
            for must_end in self._plans.values():
                must_end.set()

    def _end_plans(self, threads: Iterable[threading.Thread]) -> None:
        with self._lock:
            plans = {thread: self._plans[thread] for thread in threads if thread in self._plans}
        for must_end in plans.values():
            must_end.set()
        for thread in plans:
            thread.join()

    def _hosts_of(self, targets: Sequence[str]) -> tuple[str, ...]:
        """Return the hosts that hosts and selectors of tasks name."""
        network = require_hosts(self._hosts)
        found = {name for name in targets if name in network.names}
        for target in targets:
            if target.startswith("host-") and target not in found:
                network.select([target])  # raises
            elif target not in found:
                try:
                    found |= {network.host_of(task) for task in select(target, self._supervisor.state.tasks)}
                except ClusterSpecError as error:
                    raise ClusterSpecError(f"{error}; its hosts are {', '.join(network.names)}") from None
        return tuple(name for name in network.names if name in found)

    def _set_cut(self, hosts: Sequence[str], cut: bool) -> tuple[str, ...]:
        network = require_hosts(self._hosts)
        changed = network.set_cut(hosts, cut)
        tasks = network.tasks_on(changed)
        self._supervisor.ask(HostCutOff(tasks, cut))
        self._supervisor.wait_for(lambda s: all(s.tasks[task].cut_off is cut for task in tasks), _SEEN_S)
        return changed

    def _end(self, tasks: Sequence[TaskId], number: int) -> None:
        """Signal tasks, and wait until those that do not catch the signal have ended."""
        state = self._supervisor.state
        pids = {task: state.tasks[task].pid for task in tasks if state.tasks[task].pid}
        here = self._supervisor.backend.runs_here
        limit_s = _KILLED_S if here or number == signal.SIGKILL else _ELSEWHERE_S
        ended = [task for task, pid in pids.items() if (_ends(pid, number) if here else number in _DEADLY)]
        attempts = {task: state.tasks[task].attempt for task in ended}
        self._send(tasks, number)

        def is_over(s: ClusterState) -> bool:
            have_ended = (s.tasks[t].attempt > n or not s.tasks[t].pid for t, n in attempts.items())
            is_noted = (s.tasks[t].pid != pid or number in s.tasks[t].signals for t, pid in pids.items())
            return all(have_ended) and all(is_noted)

        self._supervisor.wait_for(is_over, limit_s)

    def _wait_until(self, tasks: Iterable[TaskId], is_paused: bool) -> None:
        """Wait until the processes have taken a signal, which a busy machine gives to them later."""
        limit = time.monotonic() + _KILLED_S
        for task in tasks if self._supervisor.backend.runs_here else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                while task not in self._slowed and time.monotonic() < limit:  # a slowed one stands and goes
                    pid = self._supervisor.state.tasks[task].pid
                    if not pid or usage.is_paused(psutil.Process(pid)) == is_paused:
                        break
                    time.sleep(_LOOK_S)

    def _slow(self, tasks: Iterable[TaskId], factor: float) -> None:
        plans.check_factor(factor)
        with self._lock:
            for task in tasks:
                if factor == 1:
                    self._slowed.pop(task, None)
                else:
                    self._slowed[task] = factor
            self._note_slowed({**self._slow_or_stopped, **self._slowed})
            if self._slowed and self._throttle is None:
                name = f"tfmagic-throttle-{self._name}"
                self._throttle = threading.Thread(target=self._slow_down, name=name, daemon=True)
                self._throttle.start()

    def _slow_down(self) -> None:
        """Stop and continue the slowed tasks; the last signal to each is SIGCONT."""
        while True:
            with self._lock:
                slowed = dict(self._slowed)
                self._note_slowed(slowed)  # the other tasks have been continued
                if not slowed or self._closed.is_set() or self._supervisor.ended:
                    self._throttle = None
                    return
                slowed = {task: factor for task, factor in slowed.items() if task not in self._paused}
            began = time.monotonic()
            self._send(slowed, signal.SIGSTOP, Cause.NONE)  # many in a second: no event of a timeline
            for task in sorted(slowed, key=lambda t: slowed[t]):  # the least slowed runs again first
                stop_s = _PERIOD_S * (1 - 1 / slowed[task])
                self._closed.wait(max(began + stop_s - time.monotonic(), 0))
                self._send([task], signal.SIGCONT, Cause.NONE)
            self._closed.wait(max(began + _PERIOD_S - time.monotonic(), 0))

    def _note_slowed(self, slowed: Mapping[TaskId, float]) -> None:
        """Tell the supervisor before the first signal: a task that is slowed is not stalled."""
        if slowed != self._slow_or_stopped:
            self._slow_or_stopped = dict(slowed)
            self._supervisor.ask(TasksSlowed(self._slow_or_stopped))

    def _send(self, tasks: Iterable[TaskId], number: int, cause: Cause = Cause.USER) -> None:
        for task in tasks:
            self._supervisor.ask(SignalAsked(task, number, cause))

    def _carry_out(self, plan: tuple[Fault, ...], must_end: threading.Event, cause: Cause) -> None:
        started = time.monotonic()
        # a step without a fault ends a pause or slowness
        steps: list[tuple[float, Fault | None, TaskId]] = [(f.at_s, f, f.task) for f in plan]
        steps += [(f.at_s + f.for_s, None, f.task) for f in plan if f.for_s is not None]
        held: set[TaskId] = set()
        for at_s, fault, task in sorted(steps, key=lambda step: step[0]):
            if must_end.wait(max(started + at_s - time.monotonic(), 0)) or self._supervisor.ended:
                break
            self._do(fault, task, cause)
            (held.discard if fault is None else held.add)(task)
        else:
            return
        for task in held:  # undo what this plan has done
            self._do(None, task, cause)

    def _do(self, fault: Fault | None, task: TaskId, cause: Cause) -> None:
        match fault:
            case None:
                self._slow([task], 1)
                self._send([task], signal.SIGCONT)
                if self._hosts is not None:
                    self._set_cut([self._hosts.host_of(task)], False)
            case Fault(kind="partition" | "heal" as kind):
                self._set_cut([require_hosts(self._hosts).host_of(task)], kind == "partition")
            case Fault(kind="slow", amount=factor):
                self._slow([task], factor)
            case Fault(kind="flood", amount=size_bytes):
                self._supervisor.ask(FloodAsked(task, int(size_bytes)))
            case Fault(kind="interrupt"):
                self._supervisor.interrupt((task,))
            case Fault(kind=kind, amount=number):
                self._send([task], int(number) or _SIGNALS[kind], cause)


def _ends(pid: int, number: int) -> bool:
    """Return whether this signal ends the process at once: the process runs, and does not handle the signal.

    A crash ends it although faulthandler catches the signal, to write a stack before.
    """
    if number == signal.SIGKILL or number not in _DEADLY:
        return number == signal.SIGKILL
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        masks = [int(fields[name], 16) for name in ("SigCgt", "SigIgn", "SigBlk")]
    except (OSError, KeyError, ValueError):  # the process has ended already
        return False
    is_handled = any(mask >> (number - 1) & 1 for mask in masks) and number not in _CRASHES
    return not is_handled and "T" not in fields["State"].split()[0]
