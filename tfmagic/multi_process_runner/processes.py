"""The processes of a runner, their result, and the errors that TensorFlow's module has."""

from __future__ import annotations

import signal
from typing import Any, NamedTuple

from tfmagic.clusters.one_shot_tasks import OneShotTasks
from tfmagic.protocol.cluster_spec import TaskId


class TaskProcess:
    """The present process of a task, for TensorFlow's helpers, as a `multiprocessing.Process`."""

    def __init__(self, processes: OneShotTasks, task: TaskId):
        self._processes, self._task = processes, task

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._task.name} pid={self.pid} exitcode={self.exitcode}>"

    @property
    def name(self) -> str:
        return self._task.name

    @property
    def pid(self) -> int | None:
        """None until the process has started."""
        return self._processes.pid(self._task) or None

    @property
    def exitcode(self) -> int | None:
        """Negative for the number of a signal; None while the process lives."""
        return self._processes.exit_code(self._task)

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended, or `timeout` seconds have passed."""
        self._processes.wait_for_end(self._task, self._processes.known[self._task], timeout)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._processes.signal((self._task,), signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._processes.signal((self._task,), signal.SIGKILL)


class _Result(NamedTuple):
    return_value: list[Any]
    stdout: list[str]


class MultiProcessRunnerResult(_Result):
    """What processes returned and wrote.

    Attributes:
        return_value: The returned values, without None, in the order of the tasks.
        stdout: The lines that they wrote, as ``[worker-0]:    text\\n``; empty without `return_output`.
        by_task: The returned values, with None, by task name.
    """

    by_task: dict[str, Any]

    def __new__(
        cls, return_value: list[Any], stdout: list[str], by_task: dict[str, Any] | None = None
    ) -> MultiProcessRunnerResult:
        result = super().__new__(cls, return_value, stdout)
        result.by_task = {} if by_task is None else by_task
        return result

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.return_value, self.stdout, self.by_task)


class _RunnerError(RuntimeError):
    """Has the result up to the failure as `mpr_result`."""

    def __init__(self, msg: str, mpr_result: MultiProcessRunnerResult):
        super().__init__(msg)
        self.mpr_result = mpr_result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.mpr_result)


class SubprocessTimeoutError(_RunnerError):
    """Processes had not ended in time. `mpr_result` is the result until then."""


class UnexpectedSubprocessExitError(_RunnerError):
    """A process ended without an exception. `mpr_result` is the result until then."""


class NotInitializedError(RuntimeError):
    """TensorFlow's module raises it where `test_main` was not called; this one needs no `test_main`."""
