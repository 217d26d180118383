"""The runner: one process for each task of a cluster spec, which calls a function and ends.

MultiProcessRunner ──→ `tfmagic.clusters.one_shot_tasks`: starts the processes, applies `_rules` on its thread
join ──→ MultiProcessRunnerResult, or the root failure is raised
"""

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfmagic.clusters.cells.cell_plan import Call
from tfmagic.clusters.cells.results import require_values
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.clusters.one_shot_tasks import OneShotTasks
from tfmagic.failures.deaths import describe_end
from tfmagic.failures.root_cause import find_failures
from tfmagic.multi_process_runner import setup
from tfmagic.multi_process_runner.processes import (
    MultiProcessRunnerResult,
    SubprocessTimeoutError,
    TaskProcess,
    UnexpectedSubprocessExitError,
)
from tfmagic.multi_process_runner.setup import ClusterSpecDict
from tfmagic.protocol.cluster_spec import GivenSpec, TaskId
from tfmagic.protocol.events import TaskExited, TaskLost
from tfmagic.runs.given_hints import read_hints
from tfmagic.runs.log_reader import tail_lines
from tfmagic.serialization.main_script import find_script, refuse_while_loading
from tfmagic.supervisor.one_shot_rules import Rules
from tfmagic.system import notices
from tfmagic.system.shared_manager import end_shared_manager
from tfmagic.task.tensorflow.testing_setup import call_plain

_DEFAULT_TIMEOUT_SEC = 200
_STACKS_S = 2.0  # between SIGTERM, which writes the stacks, and SIGKILL
_SILENT_S = 1.0  # of waiting at exit, before a message names the processes
_TAIL_LINES = 20


class MultiProcessRunner:
    """Runs a function in a process for each task of a cluster spec.

    Args:
        fn: The function. It can be a lambda, be defined in ``__main__``, and close over what dill can pickle.
        cluster_spec: Addresses by task type, such as `create_cluster_spec` makes.
        rpc_layer: Of TF_CONFIG; "grpc" by default.
        max_run_time: Seconds after which every process is ended, without an error.
        grpc_fail_fast: GRPC_FAIL_FAST in the processes; None leaves it as it is.
        stream_output: Print the output of the processes, prefixed.
        return_output: Keep the output for the result's `stdout`.
        use_dill_for_args: Accepted; arguments always travel by dill.
        daemon: End the processes at the end of the interpreter, instead of waiting for them.
        dependence_on_chief: End the others three seconds after the chief has ended. With `auto_restart` only
            a chief that ended with code 0 ends them.
        auto_restart: Restart a process that ended with another code than 0, terminated ones included.
        share_gpu: False gives each task GPUs of its own, in turn.
        args, kwargs: For `fn`.
        wait_for_peers: After a process has died without an exception: True lets `join` wait for the others,
            as long as its `timeout` allows, and raise an exception of theirs rather than the death, as
            TensorFlow's runner does. False lets it raise the death after about a second. None: True once
            `install` was called.

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
        setup.check_spec(cluster_spec)
        if not callable(fn):
            raise ValueError("fn is not a callable")
        self._fn, self._args, self._kwargs = fn, tuple(args or ()), dict(kwargs or {})
        self._spec = GivenSpec(cluster_spec, rpc_layer or "grpc")
        self._max_run_time, self._grpc_fail_fast = max_run_time, grpc_fail_fast
        self._stream_output, self._return_output = stream_output, return_output
        self._rules = Rules(
            auto_restart=float("inf") if auto_restart else 0,
            waits_for_peers=setup.is_installed() if wait_for_peers is None else wait_for_peers,
        )
        self._daemon = daemon
        self._dependence_on_chief = dependence_on_chief  # tests of TensorFlow's set it
        self._task_env = {} if share_gpu else setup.divide_gpus(cluster_spec)
        self._lines: list[str] = []
        self._one_shot: OneShotTasks | None = None
        self._lock = threading.Lock()  # for threads that start processes during `start_in_process_as`

    def set_args(self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None) -> None:
        """Set the arguments of the processes that are started from now on."""
        self._args, self._kwargs = tuple(args or self._args), dict(kwargs or self._kwargs)

    # -- starting --

    def start(self) -> None:
        """Start a process for each task.

        Raises:
            ValueError: They were started before, or joined.
            tfmagic.LaunchError: TensorFlow could not be imported, or the machine is too small.
            tfmagic.CaptureError: `fn` or an argument cannot be pickled.
        """
        self._start_all(self._spec.tasks)

    def start_in_process_as(self, as_task_type: str, as_task_id: int) -> None:
        """Start the other processes, and call `fn` for this task in the present one, where pdb works.

        Returns when `fn` does. The output of `fn` is not in the result's `stdout`.
        """
        me = TaskId(as_task_type, as_task_id)
        self._start_all(tuple(t for t in self._spec.tasks if t != me))
        tf_config = self._spec.tf_config(me)
        before = os.environ.get("TF_CONFIG")
        os.environ["TF_CONFIG"] = tf_config
        try:
            with self._started().act_as(me, tf_config):
                self._fn(*self._args, **self._kwargs)
        finally:
            os.environ.pop("TF_CONFIG", None)
            if before is not None:
                os.environ["TF_CONFIG"] = before

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
            cluster_spec: Replaces that of the runner for this process.
            fn, args, kwargs: Replace those of the runner; `args` and `kwargs` only together with `fn`.
        """
        self._refuse_joined()
        task = TaskId(task_type, task_id)
        given = "" if cluster_spec is None else GivenSpec(cluster_spec, self._spec.rpc_layer).tf_config(task)
        call = (self._fn, self._args, self._kwargs) if fn is None else (fn, tuple(args or ()), kwargs or {})
        self._begin((task,), call, tf_config=given)

    def _start_all(self, tasks: tuple[TaskId, ...]) -> None:
        if self._one_shot is not None:
            raise ValueError("MultiProcessRunner already started.")
        self._refuse_joined()
        self._begin(tasks, (self._fn, self._args, self._kwargs))

    def _begin(self, tasks: tuple[TaskId, ...], call: Call, tf_config: str = "") -> None:
        refuse_while_loading()
        with self._lock:
            if self._one_shot is None:
                self._one_shot = self._new_one_shot_tasks()
                if not self._daemon:
                    atexit.register(self._wait_at_exit)
            if self._max_run_time is not None and self._rules.until is None:
                self._rules = replace(self._rules, until=time.monotonic() + self._max_run_time)
        caller = setup.call_installed if setup.is_installed() else call_plain
        fn, args, kwargs = call
        call = (caller, (setup.present_setup(tf_config), fn, *args), kwargs)
        try:
            self._one_shot.begin(dict.fromkeys(tasks, call))
        except BaseException:
            if not self._one_shot.known:  # no process was started
                self._one_shot.close()
                self._one_shot = None
            raise

    def _new_one_shot_tasks(self) -> OneShotTasks:
        settings = TaskSettings(
            env={} if self._grpc_fail_fast is None else {"GRPC_FAIL_FAST": str(self._grpc_fail_fast)},
            purpose="plain",
            task_env=self._task_env,
            script=find_script(setup.is_installed()),
        )
        write = self._take_lines if self._stream_output or self._return_output else None

        def rules() -> Rules:
            return replace(self._rules, dependence_on_chief=self._dependence_on_chief)

        return OneShotTasks(self._spec, settings, rules, write=write, name="runner")

    def _take_lines(self, text: str) -> None:
        """Print and keep lines of one task. Called on the thread that follows the logs."""
        if self._return_output:
            self._lines += text.splitlines(keepends=True)
        if self._stream_output:
            print(text, end="", flush=True)

    def _refuse_joined(self) -> None:
        if self._rules.watched_since is not None:
            raise ValueError("cannot start new processes afterMultiProcessRunner.join() is called")

    # -- queries --

    @property
    def _processes(self) -> dict[tuple[str, int], TaskProcess]:
        """The processes by (task type, task id), for TensorFlow's `MultiProcessCluster`."""
        one_shot = self._one_shot
        if one_shot is None:
            return {}
        return {(task.type, task.index): TaskProcess(one_shot, task) for task in tuple(one_shot.known)}

    def get_process_id(self, task_type: str, task_id: int) -> int | None:
        """Return the pid of the task's process; None where it has none."""
        process = self._processes.get((task_type, task_id))
        return None if process is None else process.pid

    def get_process_exit_code(self, task_type: str, task_id: int) -> int | None:
        """Return the exit code, negative for the number of a signal; None while the process lives.

        Raises:
            KeyError: The task never had a process.
        """
        return self._processes[task_type, task_id].exitcode

    def process_exists(self, task_type: str, task_id: int) -> bool:
        """Check whether the process has not ended. Raises `KeyError` where there never was one."""
        return self.get_process_exit_code(task_type, task_id) is None

    # -- ending --

    def join(self, timeout: int | None = _DEFAULT_TIMEOUT_SEC) -> MultiProcessRunnerResult:
        """Wait until every process has ended.

        Args:
            timeout: Whole seconds; None for no limit.

        Raises:
            BaseException: The exception of a process, unchanged; it has `mpr_result`.
            UnexpectedSubprocessExitError: A process ended with another code than 0, or by a signal.
            SubprocessTimeoutError: Processes had not ended after `timeout`. They were ended.
            tfmagic.CaptureError: A returned value cannot be pickled.
            ValueError: It was joined before, or never started; or `timeout` is no whole number.
        """
        if timeout and not isinstance(timeout, int):
            raise ValueError("`timeout` must be an integer or `None`.")
        if self._rules.watched_since is not None:
            raise ValueError("MultiProcessRunner can't be joined twice.")
        one_shot = self._started()
        self._rules = replace(self._rules, watched_since=time.monotonic())
        places = ""
        try:
            one_shot.check_now()
            in_time = one_shot.wait(timeout)
            if not in_time:
                places = self._end_late(one_shot)
        except BaseException:  # Ctrl-C, for example
            self.terminate_all()
            raise
        finally:
            one_shot.close()
            atexit.unregister(self._wait_at_exit)
            for hint in read_hints(one_shot.cluster.run):
                notices.tell(f"tfmagic: {hint.note}")
        self._raise_failure(one_shot)
        result = self._result(one_shot)
        if not in_time:
            message = (
                f"One or more subprocesses timed out, where timeout was set to {timeout}s. Please change the "
                "`timeout` argument for `MultiProcessRunner.join()` or `multi_process_runner.run()` if it "
                f"should be adjusted.{places}"
            )
            raise SubprocessTimeoutError(message, result)
        require_values(result.by_task)
        return result

    def terminate(self, task_type: str, task_id: int) -> None:
        """Kill the task's process, and wait until it has ended. With `auto_restart` it is restarted.

        Raises:
            ValueError: There is no such process.
        """
        task, one_shot = TaskId(task_type, task_id), self._one_shot
        if one_shot is None or task not in one_shot.known:
            raise ValueError(f"{task} does not exist")
        known = one_shot.known[task]  # it can be restarted at once
        if one_shot.signal((task,), signal.SIGKILL):
            one_shot.wait_for_end(task, known)

    def terminate_all(self, sig: int | None = None) -> None:
        """Signal every process, by default with SIGKILL. They are not restarted."""
        if self._one_shot is not None:
            self._one_shot.signal(tuple(self._one_shot.known), sig or signal.SIGKILL, dismiss=True)

    def _started(self) -> OneShotTasks:
        if self._one_shot is None:
            raise ValueError("MultiProcessRunner has not been started: call start() before join()")
        return self._one_shot

    def _end_late(self, one_shot: OneShotTasks) -> str:
        """End the processes that are late, with their stacks in the output; return their names and places."""
        self._rules = replace(self._rules, auto_restart=0)
        late = tuple(task for task, known in sorted(one_shot.known.items()) if known.end is None)
        places = one_shot.stacks(late)
        self.terminate_all(signal.SIGTERM)
        if not one_shot.wait(_STACKS_S):
            self.terminate_all()
            one_shot.wait()
        names = ", ".join(task.name for task in late)
        return f" It was: {names}\n{places}" if late else ""

    def _raise_failure(self, one_shot: OneShotTasks) -> None:
        """Raise the root failure, if there is one."""
        if one_shot.crashed is not None:
            raise one_shot.crashed
        failed = find_failures(one_shot.failures(), raised_first=self._rules.waits_for_peers)
        if not failed:
            return
        root, outcome = next(iter(failed.items()))
        error = one_shot.build_error(raised_first=self._rules.waits_for_peers)
        assert error is not None
        if isinstance(outcome, TaskExited | TaskLost):
            last = "\n    ".join(tail_lines(one_shot.cluster.run.log_path(root), _TAIL_LINES))
            wrote = f"; it last wrote:\n    {last}" if last else ""
            message = (
                f"Subprocess {root} exited with exit code {one_shot.known[root].exit_code}. See logs for "
                f"details.\n{root} {describe_end(outcome, one_shot.cluster.oom_kills)}{wrote}"
            )
            found: BaseException = UnexpectedSubprocessExitError(message, self._result(one_shot))
            found.__notes__ = list(getattr(error, "__notes__", ()))
            raise found
        with contextlib.suppress(Exception):  # a class can forbid attributes
            error.mpr_result = self._result(one_shot)  # type: ignore[attr-defined]
        raise error

    def _result(self, one_shot: OneShotTasks) -> MultiProcessRunnerResult:
        values = one_shot.values()
        lines, self._lines = self._lines, []
        return MultiProcessRunnerResult([v for v in values.values() if v is not None], lines, values)

    def _wait_at_exit(self) -> None:
        """Wait at the end of the interpreter for processes that are no daemons, as `multiprocessing` does.

        The manager ends first, as it does there: servers that TensorFlow's `MultiProcessCluster` has left
        running wait for an event of the manager.
        """
        one_shot = self._one_shot
        if one_shot is None or not one_shot.cluster.processes.running:
            return
        end_shared_manager()
        if not one_shot.wait(_SILENT_S):
            alive = ", ".join(task.name for task, known in one_shot.known.items() if known.end is None)
            notices.tell(f"tfmagic: waiting for {alive} to end; Ctrl-C ends them")
            one_shot.wait()


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
    runner = MultiProcessRunner(
        fn, cluster_spec, rpc_layer, max_run_time, return_output=return_output, args=args, kwargs=kwargs
    )
    runner.start()
    return runner.join(timeout)
