"""One-shot tasks: each task process is started for one call, and ends with it.

    begin(calls) ── new processes ──→ each makes its call ──→ CellReturned | CellRaised, then TaskExited
          └ thread "tfmagic-one-shot": writes the tasks' output, prefixed, and applies the rules
                 (`tfmagic.supervisor.one_shot_rules`): ends or restarts tasks, until all have ended

`tfmagic.multi_process_runner` runs tests of many processes with it, and ``python -m tfmagic run`` runs a
script on many tasks. The tasks of a `Cluster`, in contrast, stay and run one cell after the other.
"""

import contextlib
import functools
import json
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from signal import SIGKILL
from typing import Any

from tfmagic.clusters.cells.cell_plan import Call, CellPlan, Options
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.cells.results import value_of, warn_of_full_disk
from tfmagic.clusters.launch import startup
from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.clusters.running_cluster import RunningCluster
from tfmagic.errors import LaunchError
from tfmagic.failures import ipython_tracebacks, root_cause, stacks
from tfmagic.failures.root_cause import FailureContext
from tfmagic.protocol import events, task_context
from tfmagic.protocol.cluster_spec import Shape, TaskId
from tfmagic.protocol.commands import BreakBarrier, CellKind, ReleaseBarrier, RunCell
from tfmagic.protocol.task_context import BARRIER, TaskContext
from tfmagic.runs.log_reader import LogReader
from tfmagic.supervisor.one_shot_rules import OneShotTask, Rules, decide
from tfmagic.supervisor.state import CellState, ClusterState, Outcome, Phase, TaskState
from tfmagic.system import notices

_SHOW_S = 0.05  # between two reads of the logs, if output is written
_LOOK_S = 0.5  # between two checks otherwise
_ATTEMPT_S = 10.0  # until the launcher is asked for a process, which takes milliseconds
_READ_BYTES = 1 << 18
_WHOLE_BYTES = 1 << 26  # of a line that is kept whole, such as JSON or base64


class OneShotTasks:
    """A group of one-shot tasks. Its methods can be called from any thread.

    Args:
        shape: The tasks that meet at barriers and stand in TF_CONFIG.
        task_settings: How the processes are made.
        rules: Returns the rules; called at each check.
        write: Called on the thread with whole, prefixed lines, of one task at a time.
        name: Names the run folder.

    Attributes:
        known: What is known of the present or last process of each task.
        reports: The last report of each task. A report stays when a later process of the task dies.
        dismissed_for: Why the rules ended tasks, or "".
        restarted: For each restart by the rules, what was known of the former processes, by task.
        crashed: The exception that ended the thread or the supervisor.

    Raises:
        LaunchError: No process could be started.
    """

    def __init__(
        self,
        shape: Shape,
        task_settings: TaskSettings,
        rules: Callable[[], Rules],
        *,
        write: Callable[[str], object] | None = None,
        name: str = "one-shot",
    ):
        self.rules, self.shape = rules, shape
        self._write, self._config = write, TFCluster.instance()
        self._lock = threading.RLock()
        self.cluster = RunningCluster(name, shape, task_settings, self._setting, _main, self._lock, tasks=())
        self._group = self.cluster.cells.new_group()
        self._gone: Mapping[TaskId, str] = {}
        self._former_threads: dict[TaskId, str] = {}
        self._calls: dict[TaskId, Call] = {}
        self._jobs: dict[TaskId, Job] = {}
        self._readers: dict[TaskId, LogReader] = {}
        self._thread: threading.Thread | None = None
        self._is_over = True  # the thread has seen the last end, and only writes what is left
        self._must_check = threading.Event()
        self.known: dict[TaskId, OneShotTask] = {}
        self.reports: dict[TaskId, events.CellReturned | events.CellRaised] = {}
        self.dismissed_for = ""
        self.restarted: list[Mapping[TaskId, OneShotTask]] = []
        self.crashed: BaseException | None = None
        self._starting = 0  # calls of `begin` under way
        self._to_flush: set[TaskId] = set()  # tasks that have ended since their log was read

    def begin(self, calls: Mapping[TaskId, Call]) -> None:
        """Start a process for each task, and let it make its call. The task's former process is ended.

        Raises:
            LaunchError: A process could not be started.
            CaptureError: A call cannot travel.
        """
        self.cluster.processes.renew_modules(calls)
        with self._lock:
            self._starting += 1
            self._note_ends()
            for task in set(calls) & set(self.known):
                self._change(task, terminated=True, dismissed=True)
            old = self.cluster.processes.relaunch(tuple(calls))
        try:  # without the lock: the thread goes on meanwhile
            timeout_s = self._setting("start_timeout_s")
            startup.Start(self.cluster.supervisor, old, timeout_s, then="they were killed").wait()
            with self._lock:
                for task, call in calls.items():
                    self._calls[task] = call
                    self._send(task, restarts=0)
        except BaseException:
            for task in calls:
                self.cluster.supervisor.ask(events.SignalAsked(task, SIGKILL))
            raise
        finally:
            with self._lock:
                self._starting -= 1
                if self.known and self._is_over:
                    self._is_over = False
                    serve = functools.partial(self._serve, self._thread)
                    self._thread = threading.Thread(target=serve, name="tfmagic-one-shot", daemon=True)
                    self._thread.start()
            self.check_now()

    @contextlib.contextmanager
    def act_as(self, task: TaskId, tf_config: str) -> Iterator[None]:
        """Let the calling thread act as this task, which has no process: it meets the others at barriers."""
        supervisor, answers = self.cluster.supervisor, queue.SimpleQueue[ReleaseBarrier | BreakBarrier]()
        supervisor.add_task_thread(task, answers.put)

        def meet(timeout_s: float | None) -> int:
            supervisor.ask(events.BarrierReached(task, 0, BARRIER, self.shape.tasks, timeout_s, self._group))
            while self.cluster.processes.running:
                with contextlib.suppress(queue.Empty):
                    answer = answers.get(timeout=_LOOK_S)
                    if isinstance(answer, ReleaseBarrier):
                        return answer.place
                    raise threading.BrokenBarrierError(f"{answer.barrier}: {answer.reason}")
            raise threading.BrokenBarrierError(f"{BARRIER}: the others were ended")

        cluster = json.loads(tf_config)["cluster"]
        try:
            me = TaskContext(task.type, task.index, cluster, task == self.shape.leader)
            with task_context.acting_as(me, meet):
                yield
        finally:
            supervisor.remove_task_thread(task)
            self._former_threads[task] = "has ended"
            self.check_now()

    def check_now(self) -> None:
        """Let the thread apply the rules now."""
        self._must_check.set()
        with self.cluster.supervisor.changed:
            self.cluster.supervisor.changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every process has ended, and its output was written. Return False if time is up."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (thread := self._thread) is not None:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                return False
            if thread is self._thread:  # otherwise `begin` has started another one
                break
        return True

    def signal(self, tasks: Iterable[TaskId], number: int, dismiss: bool = False) -> tuple[TaskId, ...]:
        """Signal those tasks that run, and return them. Their end is then no failure.

        Args:
            dismiss: Do not restart them.
        """
        with self._lock:
            self._note_ends()
            known = [task for task in tasks if task in self.known]
            for task in known if dismiss else ():
                self._change(task, dismissed=True)
            running = tuple(task for task in known if self.known[task].end is None)
            for task in running:
                self._change(task, terminated=True)
                self.cluster.supervisor.ask(events.SignalAsked(task, number))
        return running

    def pid(self, task: TaskId) -> int:
        """Return the pid of the present or last process; 0 while a new one is only requested."""
        with self._lock:
            known, seen = self.known[task], self.cluster.supervisor.state.tasks[task]
            return seen.pid if seen.pid and seen.attempt == known.attempt else known.pid

    def exit_code(self, task: TaskId) -> int | None:
        """Return the exit code of the last process, or None while it runs. Raise `KeyError` without one."""
        with self._lock:
            self._note_ends()
            return self.known[task].exit_code

    def wait_for_end(self, task: TaskId, known: OneShotTask, timeout_s: float | None = None) -> None:
        """Wait until that process of the task has ended, and its end is known; or until the time is up."""
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s

        def is_noted(state: ClusterState) -> bool:  # the state is there before the outcome of the job
            is_over = _has_ended(state, task, known) and self._jobs[task].outcome is not None
            return is_over or self.known[task].attempt > known.attempt

        while (left := deadline - time.monotonic()) > 0 and self.cluster.processes.running:
            if self.cluster.supervisor.wait_for(is_noted, min(left, _LOOK_S)):
                return

    def stacks(self, tasks: tuple[TaskId, ...]) -> str:
        """Return the stacks of these tasks, equal ones once. A stopped process gives no answer."""
        supervisor = self.cluster.supervisor
        taken = stacks.take_stacks(supervisor, self.cluster.run, tasks)
        silent = [f"{task}: no answer" for task in tasks if task.name not in taken]
        return "\n".join([stacks.name_groups(taken, supervisor.state), *silent]).strip()

    def close(self) -> None:
        """End every process; the logs stay on disk."""
        self.cluster.close()
        self.wait()
        for reader in self._readers.values():
            reader.log.close()

    def values(self) -> dict[str, Any]:
        """Return the values of the calls that returned, by task name."""
        main = _main()
        return {
            task.name: value_of(task, outcome, main)
            for task, outcome in sorted(self.reports.items())
            if isinstance(outcome, events.CellReturned)
        }

    def failures(self) -> CellState:
        """Return the tasks that raised or died on their own, in the form of one failed cell."""
        ends: dict[TaskId, Outcome] = {
            task: known.end
            for task, known in self.known.items()
            if known.end is not None and known.exit_code and not known.terminated
        }
        raised = {task: o for task, o in self.reports.items() if isinstance(o, events.CellRaised)}
        times = {task: known.failed_at or known.ended_at for task, known in self.known.items()}
        commands = {task: RunCell(self._group) for task in self.known}
        request = events.CellRequested(self._group, commands)
        return CellState(request, 0.0, sent=True, outcomes={**ends, **raised}, ended_at=times)

    def build_error(self, raised_first: bool = False) -> BaseException | None:
        """Return the root failure with its own type, or None. See `root_cause.find_failures`."""
        starts = {task: job.starts[task] for task, job in self._jobs.items()}
        context = FailureContext(
            _main(), self.cluster.run, self.cluster.oom_kills, "", ipython_tracebacks.shown_name, starts
        )
        return root_cause.build_error(self.failures(), context, raised_first)

    # -- the thread --

    def _serve(self, former: threading.Thread | None) -> None:
        if former is not None:
            former.join()
        try:
            wake_at: float | None = None
            while not self._is_over and self.cluster.processes.running:
                look_s = _LOOK_S if self._write is None else _SHOW_S
                if wake_at is not None:
                    look_s = min(look_s, max(wake_at - time.monotonic(), 0))
                self.cluster.supervisor.wait_for(self._is_check_due, look_s)
                with self._lock:
                    self._must_check.clear()
                    self._note_ends()
                    wake_at, self._is_over = self._apply_rules()
                self._show()
        except BaseException as error:  # `wait` must not block for ever
            self.crashed = error
            self.cluster.close()
        finally:
            with self._lock:
                self._is_over = True
                self._note_ends()
                self.crashed = self.crashed or self.cluster.supervisor.crashed
            self._to_flush.update(self.known)
            self._show()

    def _is_check_due(self, state: ClusterState) -> bool:
        return self._must_check.is_set() or any(
            (known.end is None and _has_ended(state, task, known))
            or (not known.reported and self._jobs[task].outcome is not None)
            for task, known in list(self.known.items())
        )

    def _apply_rules(self) -> tuple[float | None, bool]:
        """Do what the rules demand. Return when the next check is due, and whether all is over."""
        rules = self.rules()
        decision = decide(self.known, rules, time.monotonic())
        if decision.dismiss:
            self.dismissed_for = decision.why
        self.signal(decision.dismiss, SIGKILL, dismiss=True)
        self.signal([t for t in decision.recall if not self.known[t].terminated], SIGKILL)
        if decision.restart:
            self.restarted.append({task: self.known[task] for task in decision.restart})
            for task, old in self.cluster.processes.relaunch(decision.restart).items():
                self._wait_for_attempt(task, old)
                self._send(task, self.known[task].restarts + 1)
        self._update_group(rules)
        return decision.wake_at, decision.over and not self._starting

    def _update_group(self, rules: Rules) -> None:
        """Break the barriers of tasks that have ended for good; a task that is restarted can still come."""
        gone = self._former_threads | {
            task: f"has ended (exit code {known.exit_code})"
            for task, known in self.known.items()
            if known.end is not None and not (known.exit_code and rules.auto_restart)
        }
        if gone != self._gone:
            self._gone = gone
            self.cluster.supervisor.ask(events.GroupChanged(self._group, gone))

    def _note_ends(self) -> None:
        """Note the reports of calls, then the ends of processes: no end is noted before the report."""
        state, is_closed = self.cluster.supervisor.state, self.cluster.supervisor.ended
        for task, known in self.known.items():
            outcome = self._jobs[task].outcome
            report = None if outcome is None else outcome.outcomes.get(task)
            if outcome is not None and not known.reported:
                self._change(task, reported=True)
                if isinstance(report, events.CellReturned | events.CellRaised):
                    self.reports[task] = report
                    warn_of_full_disk(task, report, self.cluster.run)
                if isinstance(report, events.CellRaised):
                    self._change(task, raised_at=time.monotonic())
            if known.end is not None or (outcome is None and not is_closed):
                continue
            if _has_ended(state, task, known):
                seen = state.tasks[task]
                self._change(task, end=seen.end, ended_at=seen.since)
                self._to_flush.add(task)
                self._must_check.set()  # it can be noted after a decision
            elif is_closed:
                end = events.TaskLost(task, known.attempt, "it ended with its cluster")
                self._change(task, end=end, terminated=True, dismissed=True, ended_at=time.monotonic())

    def _show(self) -> None:
        """Write what is new in the logs; for processes that have ended, also an incomplete last line."""
        ended, self._to_flush = self._to_flush, set()
        if (write := self._write) is None:
            return
        try:
            for task in list(self.known):
                reader = self._readers.get(task)
                if reader is None:
                    path = self.cluster.run.log_path(task)
                    reader = self._readers[task] = LogReader(path, task, whole_bytes=_WHOLE_BYTES)
                while text := reader.read_lines(_READ_BYTES):
                    write(text)
                if task in ended and (text := reader.take_partial()):
                    write(text)
        except Exception:  # a failing `write` must not end the tasks
            self._write = None
            notices.tell(traceback.format_exc())

    # -- inside; under the lock --

    def _wait_for_attempt(self, task: TaskId, old: int) -> None:
        def is_requested(state: ClusterState) -> bool:
            return state.tasks.get(task, TaskState()).attempt > old

        if not self.cluster.supervisor.wait_for(is_requested, _ATTEMPT_S):
            raise LaunchError(f"{task} could not be restarted: the cluster was stopped")

    def _send(self, task: TaskId, restarts: int) -> None:
        seen = self.cluster.supervisor.state.tasks[task]
        call, meets, options = self._calls[task], self.shape.tasks, Options(view="quiet")
        plan = CellPlan(call=call, kind=CellKind.EXIT, group=self._group, meets=meets, options=options)
        self._jobs[task] = self.cluster.cells.begin_on(plan, (task,), detached=True)
        self.known[task] = OneShotTask(seen.attempt, seen.pid, restarts=restarts)

    def _change(self, task: TaskId, **changes: Any) -> None:
        self.known[task] = replace(self.known[task], **changes)

    def _setting(self, name: str) -> Any:
        """Return a configured setting. What follows from an end is left to the rules of one-shot tasks."""
        return {"dependence_on_chief": False, "timeout_s": 0.0}.get(name, getattr(self._config, name))


def _has_ended(state: ClusterState, task: TaskId, known: OneShotTask) -> bool:
    seen = state.tasks[task]
    return seen.attempt > known.attempt or (seen.attempt == known.attempt and seen.phase is Phase.DEAD)


def _main() -> dict[str, Any]:
    return sys.modules["__main__"].__dict__
