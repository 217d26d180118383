"""A process for each task of a cluster spec, which calls a function and ends."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfmagic.clusters import outcomes
from tfmagic.clusters.one_shot_tasks import OneShotTasks
from tfmagic.clusters.task_settings import TaskSettings
from tfmagic.failures.deaths import describe_end
from tfmagic.failures.root_cause import find_failures
from tfmagic.multi_process_runner.installing import call_installed, is_installed
from tfmagic.multi_process_runner.outcomes import (
    MultiProcessRunnerResult,
    SubprocessTimeoutError,
    UnexpectedSubprocessExitError,
)
from tfmagic.multi_process_runner.processes import TaskProcess
from tfmagic.multi_process_runner.setup import ClusterSpecDict, check_spec, divide_gpus, present_setup
from tfmagic.protocol.cluster_spec import GivenSpec, TaskId
from tfmagic.protocol.events import TaskExited, TaskLost
from tfmagic.runs.log_reader import tail_lines
from tfmagic.serialization.main_script import find_script, refuse_while_loading
from tfmagic.supervisor.one_shot_rules import Rules
from tfmagic.system.shared_manager import end_shared_manager
from tfmagic.task.tensorflow.test_setup import call_plain

_DEFAULT_TIMEOUT_SEC = 200
_STACKS_S = 2.0  # between SIGTERM, which writes the stacks, and SIGKILL
_SAY_S = 1.0  # after which somebody who waits is told on whom
_TAIL_LINES = 20


class MultiProcessRunner:
    """Runs a function in a process for each task of a cluster spec.

    Args:
        fn: The function. It may be a lambda, be defined in ``__main__``, and close over what dill can pickle.
        cluster_spec: Addresses by task type, such as `create_cluster_spec` makes.
        rpc_layer: Of TF_CONFIG; "grpc" by default.
        max_run_time: Seconds after which every process is ended, without an error.
        grpc_fail_fast: GRPC_FAIL_FAST in the processes; None leaves it as it is.
        stream_output: Print what they write, prefixed.
        return_output: Keep it for the result's `stdout`.
        use_dill_for_args: Accepted; arguments always travel by dill.
        daemon: The end of the interpreter ends the processes; else it waits for them, and says so.
        dependence_on_chief: Once the chief has ended, the others have three seconds. With `auto_restart` only
            a chief that ended with code 0 ends them.
        auto_restart: Start a process again that ended with another code than 0, terminated ones included.
        share_gpu: False gives each task GPUs of its own, in turn.
        args, kwargs: For `fn`.
        wait_for_peers: What `join` does after a process has died, without an exception of its own. True: as
            TensorFlow's runner, it waits for what the others raise or return, as long as its `timeout` lets
            it, and raises an exception rather than the death. False: it raises the death after about a
            second. None: True once `install` was called.

    Raises:
        ValueError: `fn` cannot be called, or there are several chiefs.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        cluster_spec: ClusterSpecDict,
        rpc_layer: str | None = None,
        max_run_time: float | None = None,
        grpc_fail_fast: bool | None = None,
        stream_output: bool = True,
        return_output: bool = False,
        use_dill_for_args: bool = True,
        daemon: bool = False,
        dependence_on_chief: bool = True,
        auto_restart: bool = False,
        share_gpu: bool = True,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        wait_for_peers: bool | None = None,
    ):
        check_spec(cluster_spec)
        if not callable(fn):
            raise ValueError("fn is not a callable")
        self._fn, self._args, self._kwargs = fn, tuple(args or ()), dict(kwargs or {})
        self._cluster_spec, self._rpc_layer = cluster_spec, rpc_layer or "grpc"
        self._max_run_time, self._grpc_fail_fast = max_run_time, grpc_fail_fast
        self._stream_output, self._return_output = stream_output, return_output
        self._dependence_on_chief, self._auto_restart = dependence_on_chief, auto_restart
        self._daemon = daemon
        self._wait_for_peers = is_installed() if wait_for_peers is None else wait_for_peers
        self._task_env = {} if share_gpu else divide_gpus(cluster_spec)
        self._lines: list[str] = []
        self._errands: OneShotTasks | None = None
        self._lock = threading.Lock()  # two threads may start processes: see `start_in_process_as`
        self._at_exit: Callable[[], object] | None = None
        self._joined_at: float | None = None
        self._until: float | None = None

    def set_args(self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None) -> None:
        """Other arguments for the processes that are started from now on."""
        self._args, self._kwargs = tuple(args or self._args), dict(kwargs or self._kwargs)

    # -- starting --

    def start(self) -> None:
        """Start a process for each task.

        Raises:
            ValueError: They were started before, or joined.
            tfmagic.LaunchError: TensorFlow could not be imported, or the machine is too small.
            tfmagic.CaptureError: `fn` or an argument cannot be pickled.
        """
        __tracebackhide__ = True
        self._start_all(GivenSpec(self._cluster_spec).tasks)

    def start_in_process_as(self, as_task_type: str, as_task_id: int) -> None:
        """Start the processes, but call `fn` for this task in the present one, where pdb can be used.

        It returns when `fn` does. What it writes is not in the result's `stdout`.
        """
        __tracebackhide__ = True
        me = TaskId(as_task_type, as_task_id)
        self._start_all(tuple(t for t in GivenSpec(self._cluster_spec).tasks if t != me))
        tf_config = GivenSpec(self._cluster_spec, self._rpc_layer).tf_config(me)
        with _environment(TF_CONFIG=tf_config), self._started().guest(me, tf_config):
            self._fn(*self._args, **self._kwargs)

    def start_single_process(
        self,
        task_type: str,
        task_id: int,
        cluster_spec: ClusterSpecDict | None = None,
        fn: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Start one process, also of a task that is not in the cluster spec.

        Args:
            task_type, task_id: The task.
            cluster_spec: For this process alone, instead of that of the runner.
            fn, args, kwargs: Instead of those of the runner; `args` and `kwargs` only together with `fn`.
        """
        __tracebackhide__ = True
        self._refuse_joined()
        task = TaskId(task_type, task_id)
        given = "" if cluster_spec is None else GivenSpec(cluster_spec, self._rpc_layer).tf_config(task)
        call = (self._fn, self._args, self._kwargs) if fn is None else (fn, args or (), kwargs or {})
        self._begin((task,), *call, tf_config=given)

    def _start_all(self, tasks: tuple[TaskId, ...]) -> None:
        __tracebackhide__ = True
        if self._errands is not None:
            raise ValueError("MultiProcessRunner already started.")
        self._refuse_joined()
        self._begin(tasks, self._fn, self._args, self._kwargs)

    def _begin(
        self,
        tasks: tuple[TaskId, ...],
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tf_config: str = "",
    ) -> None:
        __tracebackhide__ = True
        refuse_while_loading()
        with self._lock:
            if self._errands is None:
                self._errands = self._make_errands()
                if not self._daemon:
                    self._at_exit = functools.partial(_wait_at_exit, weakref.ref(self))
                    atexit.register(self._at_exit)
            if self._max_run_time is not None and self._until is None:
                self._until = time.monotonic() + self._max_run_time
        caller = call_installed if is_installed() else call_plain
        call = (caller, (present_setup(tf_config), fn, *args), kwargs)
        try:
            self._errands.begin(dict.fromkeys(tasks, call))
        except BaseException:
            if not self._errands.known:  # it has never begun: nothing of it stays
                self._errands.close()
                self._errands = None
            raise

    def _make_errands(self) -> OneShotTasks:
        __tracebackhide__ = True
        env = {} if self._grpc_fail_fast is None else {"GRPC_FAIL_FAST": str(self._grpc_fail_fast)}
        make = TaskSettings(
            env=env, purpose="plain", task_env=self._task_env, script=find_script(is_installed())
        )
        write = self._take_lines if self._stream_output or self._return_output else None
        shape = GivenSpec(self._cluster_spec, self._rpc_layer)
        return OneShotTasks(shape, make, self._rules, write=write, name="runner")

    def _rules(self) -> Rules:
        return Rules(
            auto_restart=float("inf") if self._auto_restart else 0,
            dependence_on_chief=self._dependence_on_chief,
            waits_for_peers=self._wait_for_peers,
            watched_since=self._joined_at,
            until=self._until,
        )

    def _take_lines(self, text: str) -> None:
        """Lines of one task, on the thread that follows the logs."""
        if self._return_output:
            self._lines += text.splitlines(keepends=True)
        if self._stream_output:
            print(text, end="", flush=True)

    def _refuse_joined(self) -> None:
        if self._joined_at is not None:
            raise ValueError("cannot start new processes afterMultiProcessRunner.join() is called")

    # -- looking --

    @property
    def _processes(self) -> dict[tuple[str, int], TaskProcess]:
        """The processes by (task type, task id): TensorFlow's `MultiProcessCluster` waits for one so."""
        errands = self._errands
        known = () if errands is None else tuple(errands.known)
        return {(task.type, task.index): TaskProcess(errands, task) for task in known if errands is not None}

    def get_process_id(self, task_type: str, task_id: int) -> int | None:
        """The pid of the task's process; None where it has none."""
        task = TaskId(task_type, task_id)
        if self._errands is None or task not in self._errands.known:
            return None
        return self._errands.pid(task) or None

    def get_process_exit_code(self, task_type: str, task_id: int) -> int | None:
        """The exit code, negative for the number of a signal; None while the process lives.

        Raises:
            KeyError: The task never had a process.
        """
        task = TaskId(task_type, task_id)
        if self._errands is None:
            raise KeyError((task_type, task_id))
        return self._errands.exit_code(task)

    def process_exists(self, task_type: str, task_id: int) -> bool:
        """Whether the process has not ended. Raises `KeyError` where there never was one."""
        return self.get_process_exit_code(task_type, task_id) is None

    # -- ending --

    def join(self, timeout: int | None = _DEFAULT_TIMEOUT_SEC) -> MultiProcessRunnerResult:
        """Wait until every process has ended.

        Args:
            timeout: Whole seconds; None waits as long as it takes.

        Raises:
            BaseException: What a process raised, as it was; it has `mpr_result`.
            UnexpectedSubprocessExitError: A process ended with another code than 0, or by a signal.
            SubprocessTimeoutError: Processes had not ended after `timeout`. They were ended.
            tfmagic.CaptureError: What a process returned cannot travel.
            ValueError: It was joined before, or never started; or `timeout` is no whole number.
        """
        __tracebackhide__ = True
        if timeout and not isinstance(timeout, int):
            raise ValueError("`timeout` must be an integer or `None`.")
        if self._joined_at is not None:
            raise ValueError("MultiProcessRunner can't be joined twice.")
        errands = self._started()
        self._joined_at = time.monotonic()
        where = ""
        try:
            errands.look()
            in_time = errands.wait(timeout)
            if not in_time:
                where = self._end_late(errands)
        except BaseException:  # Ctrl-C: who waits no longer does not want them
            self.terminate_all()
            raise
        finally:
            errands.close()
            if self._at_exit is not None:
                atexit.unregister(self._at_exit)
        self._raise_failure(errands)
        if not in_time:
            message = (
                f"One or more subprocesses timed out, where timeout was set to {timeout}s. Please change the "
                "`timeout` argument for `MultiProcessRunner.join()` or `multi_process_runner.run()` if it "
                f"should be adjusted.{where}"
            )
            raise SubprocessTimeoutError(message, self._result(errands))
        return self._checked_result(errands)

    def terminate(self, task_type: str, task_id: int) -> None:
        """Kill the task's process, and wait until it has ended. With `auto_restart` it is started again.

        Raises:
            ValueError: There is no such process.
        """
        task = TaskId(task_type, task_id)
        if self._errands is None or task not in self._errands.known:
            raise ValueError(f"{task_type}-{task_id} does not exist")
        if self._errands.signal((task,), signal.SIGKILL):
            self._errands.wait_for_end(task)

    def terminate_all(self, sig: int | None = None) -> None:
        """Signal every process, by default with SIGKILL. They are not started again."""
        if self._errands is not None:
            self._errands.signal(tuple(self._errands.known), sig or signal.SIGKILL, dismiss=True)

    def _started(self) -> OneShotTasks:
        if self._errands is None:
            raise ValueError("MultiProcessRunner has not been started: call start() before join()")
        return self._errands

    def _end_late(self, errands: OneShotTasks) -> str:
        """End what has not ended in time, with its stacks in the output; who that was, and where."""
        self._auto_restart = False
        late = tuple(task for task, errand in sorted(errands.known.items()) if errand.end is None)
        places = errands.stacks(late)
        self.terminate_all(signal.SIGTERM)
        if not errands.wait(_STACKS_S):
            self.terminate_all()
            errands.wait()
        names = ", ".join(task.name for task in late)
        return f" It was: {names}\n{places}" if late else ""

    def _raise_failure(self, errands: OneShotTasks) -> None:
        """Raise the root failure, if there is one."""
        __tracebackhide__ = True
        if errands.crashed is not None:
            raise errands.crashed
        failed = find_failures(errands.failures(), raised_first=self._wait_for_peers)
        if not failed:
            return
        root, outcome = next(iter(failed.items()))
        error = errands.build_error(raised_first=self._wait_for_peers)
        assert error is not None
        if isinstance(outcome, TaskExited | TaskLost):
            found: BaseException = UnexpectedSubprocessExitError(
                f"Subprocess {root} exited with exit code {errands.known[root].exit_code}. See logs for "
                f"details.\n{root} {describe_end(outcome, errands.life.watch)}{_tail(errands, root)}",
                self._result(errands),
            )
            found.__notes__ = list(getattr(error, "__notes__", ()))
            raise found
        with contextlib.suppress(Exception):  # a class may forbid attributes
            error.mpr_result = self._result(errands)  # type: ignore[attr-defined]
        raise error

    def _checked_result(self, errands: OneShotTasks) -> MultiProcessRunnerResult:
        __tracebackhide__ = True
        result = self._result(errands)
        outcomes.require_values(result.by_task)
        return result

    def _result(self, errands: OneShotTasks) -> MultiProcessRunnerResult:
        values = errands.values()
        lines, self._lines = self._lines, []
        return MultiProcessRunnerResult([v for v in values.values() if v is not None], lines, values)


def run(
    fn: Callable[..., Any],
    cluster_spec: ClusterSpecDict,
    rpc_layer: str | None = None,
    max_run_time: float | None = None,
    return_output: bool = False,
    timeout: int | None = _DEFAULT_TIMEOUT_SEC,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> MultiProcessRunnerResult:
    """Run `fn` in a process for each task of `cluster_spec`, and return when all have ended.

    Args and Raises: as `MultiProcessRunner` and its `join`.
    """
    __tracebackhide__ = True
    runner = MultiProcessRunner(
        fn,
        cluster_spec,
        rpc_layer,
        max_run_time=max_run_time,
        return_output=return_output,
        args=args,
        kwargs=kwargs,
    )
    runner.start()
    return runner.join(timeout)


def _tail(errands: OneShotTasks, task: TaskId) -> str:
    lines = tail_lines(errands.life.run.log_path(task), _TAIL_LINES)
    return "".join(f"\n    {line}" for line in ("; it last wrote:", *lines)) if lines else ""


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wait_at_exit(reference: weakref.ref[MultiProcessRunner]) -> None:
    """The end of the interpreter waits for processes that are no daemons, as `multiprocessing` does.

    The manager ends first, as it does there: servers of TensorFlow's `MultiProcessCluster` that nobody has
    stopped wait for an event of it.
    """
    runner = reference()
    errands = None if runner is None else runner._errands
    if runner is None or errands is None or runner._joined_at is not None or not errands.life.running:
        return
    end_shared_manager()
    if not errands.wait(_SAY_S):
        alive = ", ".join(task.name for task, errand in errands.known.items() if errand.end is None)
        print(f"tfmagic: waiting for {alive} to end; Ctrl-C ends them", file=sys.stderr)
        errands.wait()
