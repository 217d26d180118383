"""Errands: calls for each of which a task process is made, and which end with it.

    begin(calls) ── new processes ──→ each makes its call ──→ CellReturned | CellRaised, then TaskExited
          └ thread "tfmagic-errands": writes what they write, prefixed, and does what the rules say
                 (`tfmagic.supervisor.one_shot_rules`): others are ended, or it is sent again; ends when all
                 have ended

That is what a test of many processes is made of (`tfmagic.multi_process_runner`), and a script that runs on
many tasks (``python -m tfmagic run``). A cluster's tasks stay, and take one cell after the other.
"""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from signal import SIGKILL
from typing import Any

from tfmagic.clusters import startup
from tfmagic.clusters.job import Job
from tfmagic.clusters.outcomes import value_of
from tfmagic.clusters.running_cluster import open_life
from tfmagic.clusters.settings import TFCluster
from tfmagic.clusters.task_settings import TaskSettings
from tfmagic.errors import LaunchError
from tfmagic.failures import ipython_tracebacks, stacks
from tfmagic.failures import root_cause as failures
from tfmagic.failures.root_cause import FailureContext
from tfmagic.protocol import task_context
from tfmagic.protocol.cluster_spec import Shape, TaskId
from tfmagic.protocol.commands import BreakBarrier, ReleaseBarrier, RunCell
from tfmagic.protocol.events import (
    BarrierReached,
    CellRaised,
    CellRequested,
    CellReturned,
    GroupChanged,
    SignalAsked,
    TaskLost,
)
from tfmagic.protocol.task_context import BARRIER, TaskContext
from tfmagic.runs.log_reader import LogReader
from tfmagic.supervisor.one_shot_rules import Errand, Rules, decide
from tfmagic.supervisor.state import CellState, ClusterState, Outcome, Phase, TaskState

_SHOW_S = 0.05  # between two looks at the logs, where somebody wants to see them
_LOOK_S = 0.5  # the same where nobody does
_ATTEMPT_S = 10.0  # for the launcher to be asked for a process, which takes milliseconds
_READ_BYTES = 1 << 18
_WHOLE_BYTES = 1 << 26  # of a line that is kept whole: what JSON and base64 come to, and memory bears

Call = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


class OneShotTasks:
    """See the module.

    `reports` are what the calls came to: the last report of each task,
    which the end of a later process of it does not replace.

    Args:
        shape: The tasks that meet at barriers, and what TF_CONFIG says.
        make: How the processes are made.
        rules: What follows from an end; asked at each look.
        write: Gets the lines that the tasks write, whole and prefixed, of one task at a time, on the thread.
        name: Names the run folder.

    Raises:
        LaunchError: No process could be started.
    """

    def __init__(
        self,
        shape: Shape,
        make: TaskSettings,
        rules: Callable[[], Rules],
        *,
        write: Callable[[str], object] | None = None,
        name: str = "errands",
    ):
        self.rules, self.shape = rules, shape
        self._write = write
        self._config = TFCluster.instance()
        self._lock = threading.RLock()
        self.life = open_life(name, shape, make, self._setting, _main, self._lock, tasks=())
        self._group = self.life.new_group()
        self._gone: Mapping[TaskId, str] = {}
        self._left: dict[TaskId, str] = {}  # guests that were here
        self._calls: dict[TaskId, Call] = {}
        self._jobs: dict[TaskId, Job] = {}
        self._readers: dict[TaskId, LogReader] = {}
        self._thread: threading.Thread | None = None
        self._is_over = True  # whether the thread has seen the last end, and only writes what is left
        self._asked = threading.Event()  # to look at once
        self.known: dict[TaskId, Errand] = {}
        self.reports: dict[TaskId, CellReturned | CellRaised] = {}
        self.dismissed_for = ""  # why we have ended some
        self.crashed: BaseException | None = None
        self._starting = 0  # calls of `begin` under way
        self._to_flush: set[TaskId] = set()  # those whose process has ended since their log was read

    # -- from any thread --

    def begin(self, calls: Mapping[TaskId, Call]) -> None:
        """Start a process for each task, and let it make its call. One that a task has is ended.

        Raises:
            LaunchError: A process could not be started.
            CaptureError: A call cannot travel.
        """
        __tracebackhide__ = True
        with self._lock:
            self._starting += 1
            self._note_ends()
            for task in set(calls) & set(self.known):
                self._change(task, terminated=True, dismissed=True)
            old = self._relaunch(tuple(calls))
        try:  # without the lock: the others are looked after meanwhile
            startup.wait_until_ready(self.life.supervisor, old, self._setting("start_timeout_s"))
            with self._lock:
                for task, call in calls.items():
                    self._calls[task] = call
                    self._send(task, restarts=0)
        except BaseException:
            for task in calls:
                self.life.supervisor.ask(SignalAsked(task, SIGKILL))
            raise
        finally:
            with self._lock:
                self._starting -= 1
                if self.known and self._is_over:
                    self._is_over = False
                    serve = functools.partial(self._serve, self._thread)
                    self._thread = threading.Thread(target=serve, name="tfmagic-errands", daemon=True)
                    self._thread.start()
            self.look()

    @contextlib.contextmanager
    def guest(self, task: TaskId, tf_config: str) -> Iterator[None]:
        """For a while, the calling thread is this task: it meets the others at barriers."""
        supervisor, answers = self.life.supervisor, queue.SimpleQueue[ReleaseBarrier | BreakBarrier]()
        supervisor.add_guest(task, answers.put)

        def meet(timeout_s: float | None) -> int:
            supervisor.ask(BarrierReached(task, 0, BARRIER, self.shape.tasks, timeout_s, self._group))
            answer = self._await_answer(answers)
            if isinstance(answer, BreakBarrier):
                raise threading.BrokenBarrierError(f"{answer.barrier}: {answer.reason}")
            return answer.place

        cluster = json.loads(tf_config)["cluster"]
        try:
            is_chief = task == self.shape.leader
            with task_context.acting_as(TaskContext(task.type, task.index, cluster, is_chief), meet):
                yield
        finally:
            supervisor.remove_guest(task)
            self._left[task] = "has ended"
            self.look()

    def _await_answer(
        self, answers: queue.SimpleQueue[ReleaseBarrier | BreakBarrier]
    ) -> ReleaseBarrier | BreakBarrier:
        while self.life.running:
            with contextlib.suppress(queue.Empty):
                return answers.get(timeout=_LOOK_S)
        return BreakBarrier(BARRIER, "the others were ended")

    def look(self) -> None:
        """Let the thread look at the rules now."""
        self._asked.set()
        with self.life.supervisor.changed:
            self.life.supervisor.changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every process has ended, and all that they wrote was written. False when time is up."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (thread := self._thread) is not None:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                return False
            if thread is self._thread:  # else more were begun when it had seen the last end
                break
        return True

    def signal(self, tasks: Iterable[TaskId], number: int, dismiss: bool = False) -> tuple[TaskId, ...]:
        """Signal those that run, whose end is no failure then; with `dismiss` they are not sent again.

        Returns:
            Those that were signalled.
        """
        with self._lock:
            self._note_ends()
            known = [task for task in tasks if task in self.known]
            for task in known if dismiss else ():
                self._change(task, dismissed=True)
            running = tuple(task for task in known if self.known[task].end is None)
            for task in running:
                self._change(task, terminated=True)
                self.life.supervisor.ask(SignalAsked(task, number))
        return running

    def pid(self, task: TaskId) -> int:
        """Of the present process, or the last one; 0 as long as a new one is only asked for."""
        with self._lock:
            errand, seen = self.known[task], self.life.supervisor.state.tasks[task]
            return seen.pid if seen.pid and seen.attempt == errand.attempt else errand.pid

    def exit_code(self, task: TaskId) -> int | None:
        """Of the present process; None while it lives. Raises `KeyError` where there never was one."""
        with self._lock:
            self._note_ends()
            return self.known[task].exit_code

    def wait_for_end(self, task: TaskId, timeout_s: float | None = None) -> None:
        """Wait until the process that the task has now is gone, or the time is up."""
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        attempt = self.known[task].attempt

        def is_gone(state: ClusterState) -> bool:
            return state.tasks[task].attempt != attempt or state.tasks[task].phase is Phase.DEAD

        while (left := deadline - time.monotonic()) > 0 and self.life.running:
            if self.life.supervisor.wait_for(is_gone, min(left, _LOOK_S)):
                return

    def stacks(self, tasks: tuple[TaskId, ...]) -> str:
        """Where these are, equal stacks once; a process that is stopped has no answer."""
        supervisor = self.life.supervisor
        taken = stacks.take_stacks(supervisor, self.life.run, tasks)
        silent = [f"{task}: no answer" for task in tasks if task.name not in taken]
        return "\n".join([stacks.name_groups(taken, supervisor.state), *silent]).strip()

    def close(self) -> None:
        """End every process, and forget them; the logs stay on disk."""
        self.life.close()
        self.wait()
        for reader in self._readers.values():
            reader.log.close()

    # -- results --

    def values(self) -> dict[str, Any]:
        """What the calls returned, by task name, of those that did."""
        main = _main()
        found = {
            task.name: value_of(task, outcome, main)
            for task, outcome in sorted(self.reports.items())
            if isinstance(outcome, CellReturned)
        }
        return found

    def failures(self) -> CellState:
        """The errands as if they were one cell: those that raised, and those that ended on their own."""
        ends: dict[TaskId, Outcome] = {
            task: errand.end
            for task, errand in self.known.items()
            if errand.end is not None and errand.exit_code and not errand.terminated
        }
        raised = {task: o for task, o in self.reports.items() if isinstance(o, CellRaised)}
        times = {t: errand.failed_at or errand.ended_at for t, errand in self.known.items()}
        commands = {task: RunCell(self._group) for task in self.known}
        request = CellRequested(self._group, commands)
        return CellState(request, 0.0, sent=True, outcomes={**ends, **raised}, ended_at=times)

    def build_error(self, raised_first: bool = False) -> BaseException | None:
        """The root failure, as what it was; None where all is well. See `find_failures`."""
        starts = {task: job.starts[task] for task, job in self._jobs.items()}
        scene = FailureContext(
            _main(), self.life.run, self.life.watch, "", ipython_tracebacks.shown_name, starts
        )
        return failures.build_error(self.failures(), scene, raised_first)

    # -- the thread --

    def _serve(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        try:
            wake_at: float | None = None
            while not self._is_over and self.life.running:
                look_s = _LOOK_S if self._write is None else _SHOW_S
                if wake_at is not None:
                    look_s = min(look_s, max(wake_at - time.monotonic(), 0))
                self.life.supervisor.wait_for(self._has_news, look_s)
                with self._lock:
                    self._asked.clear()
                    self._note_ends()
                    wake_at, self._is_over = self._apply_rules()
                self._show()
        except BaseException as error:  # who waits for us must not wait for ever
            self.crashed = error
            self.life.close()
        finally:
            with self._lock:
                self._is_over = True
                self._note_ends()
                self.crashed = self.crashed or self.life.supervisor.crashed
            self._to_flush.update(self.known)
            self._show()

    def _has_news(self, state: ClusterState) -> bool:
        if self._asked.is_set():
            return True
        for task, errand in list(self.known.items()):
            if errand.end is None and _has_ended(state, task, errand):
                return True
            if not errand.reported and self._jobs[task].outcome is not None:
                return True
        return False

    def _apply_rules(self) -> tuple[float | None, bool]:
        """Do what the rules say; when to look again, and whether all is over."""
        rules = self.rules()
        verdict = decide(self.known, rules, time.monotonic())
        if verdict.dismiss:
            self.dismissed_for = verdict.why
        self.signal(verdict.dismiss, SIGKILL, dismiss=True)
        self.signal([t for t in verdict.recall if not self.known[t].terminated], SIGKILL)
        for task, old in self._relaunch(verdict.restart).items():
            self._wait_for_attempt(task, old)
            self._send(task, self.known[task].restarts + 1)
        self._tell_group(rules)
        waits = verdict.restart or verdict.wake_at is not None or self._starting
        return verdict.wake_at, not waits and all(e.end is not None for e in self.known.values())

    def _tell_group(self, rules: Rules) -> None:
        """Say who will never come to a barrier; one that may be sent again may come."""
        gone = self._left | {
            task: f"has ended (exit code {errand.exit_code})"
            for task, errand in self.known.items()
            if errand.end is not None and not (errand.exit_code and rules.auto_restart)
        }
        if gone != self._gone:
            self._gone = gone
            self.life.supervisor.ask(GroupChanged(self._group, gone))

    def _note_ends(self) -> None:
        """Take in what the calls came to, and which processes have ended: no end is seen before that."""
        state, is_closed = self.life.supervisor.state, self.life.supervisor.ended
        for task, errand in self.known.items():
            outcome = self._jobs[task].outcome
            report = None if outcome is None else outcome.outcomes.get(task)
            if outcome is not None and not errand.reported:
                self._change(task, reported=True)
                if isinstance(report, CellReturned | CellRaised):
                    self.reports[task] = report
                if isinstance(report, CellRaised):
                    self._change(task, raised_at=time.monotonic())
            if errand.end is not None or (outcome is None and not is_closed):
                continue
            if _has_ended(state, task, errand):
                seen = state.tasks[task]
                self._change(task, end=seen.end, ended_at=seen.since)
                self._to_flush.add(task)
            elif is_closed:
                end = TaskLost(task, errand.attempt, "it ended with its cluster")
                self._change(task, end=end, terminated=True, dismissed=True, ended_at=time.monotonic())

    def _show(self) -> None:
        """Write what is new in the logs; of processes that have ended, all of it."""
        ended, self._to_flush = self._to_flush, set()
        try:
            if self._write is not None:
                self._write_new(self._write, ended)
        except Exception:  # who cannot show it must not cost anybody the errands
            self._write = None
            traceback.print_exc()

    def _write_new(self, write: Callable[[str], object], ended: Collection[TaskId]) -> None:
        for task in list(self.known):
            reader = self._readers.get(task)
            if reader is None:
                reader = self._readers[task] = LogReader(
                    self.life.run.log_path(task), task, whole_bytes=_WHOLE_BYTES
                )
            while text := reader.read_lines(_READ_BYTES):
                write(text)
            if task in ended and (text := reader.take_partial()):
                write(text)

    # -- inside; under the lock --

    def _relaunch(self, tasks: tuple[TaskId, ...]) -> dict[TaskId, int]:
        """Ask for new processes; the attempts that the tasks had until now."""
        state = self.life.supervisor.state
        old = {task: state.tasks.get(task, TaskState()).attempt for task in tasks}
        if tasks:
            self.life.supervisor.relaunch(tasks)
        return old

    def _wait_for_attempt(self, task: TaskId, old: int) -> None:
        def has_new(state: ClusterState) -> bool:
            return state.tasks.get(task, TaskState()).attempt > old

        if not self.life.supervisor.wait_for(has_new, _ATTEMPT_S):
            raise LaunchError(f"{task} could not be sent again: the cluster was stopped")

    def _send(self, task: TaskId, restarts: int) -> None:
        __tracebackhide__ = True
        seen = self.life.supervisor.state.tasks[task]
        self._jobs[task] = self.life.errand(self._calls[task], task, self._group)
        self.known[task] = Errand(seen.attempt, seen.pid, restarts=restarts)

    def _change(self, task: TaskId, **changes: Any) -> None:
        self.known[task] = replace(self.known[task], **changes)

    def _setting(self, name: str) -> Any:
        """As configured; but what follows from an end, and when, is a matter of our own rules."""
        return {"dependence_on_chief": False, "timeout_s": 0.0}.get(name, getattr(self._config, name))


def _has_ended(state: ClusterState, task: TaskId, errand: Errand) -> bool:
    seen = state.tasks[task]
    return seen.attempt > errand.attempt or (seen.attempt == errand.attempt and seen.phase is Phase.DEAD)


def _main() -> dict[str, Any]:
    return sys.modules["__main__"].__dict__
