"""The result of a runner's processes, and the errors that TensorFlow's module has."""

from __future__ import annotations

from typing import Any, NamedTuple


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

    def __getnewargs__(self) -> tuple[Any, ...]:  # type: ignore[override]
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
