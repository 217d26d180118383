"""TensorFlow's `MultiProcessRunner`, for scripts, notebooks and pytest.

Tests of distributed code use it: a process for each task of a cluster spec, which calls a function and ends.
The names, parameters and behaviour are those of ``tensorflow.python.distribute.multi_process_runner`` of
TensorFlow 2.21, a private module that works only under its own test main. The processes are forked from a
launcher that has imported TensorFlow already, and end with the process that started them, however it ends.
docs/multi_process_runner.md has a table of the deliberate differences.
"""

import sys
from typing import Any

from tfmagic.system import linux_only

linux_only.check()

from tfmagic.multi_process_runner.pool import MultiProcessPoolRunner
from tfmagic.multi_process_runner.processes import (
    MultiProcessRunnerResult,
    NotInitializedError,
    SubprocessTimeoutError,
    UnexpectedSubprocessExitError,
)
from tfmagic.multi_process_runner.runner import MultiProcessRunner, run
from tfmagic.multi_process_runner.setup import create_cluster_spec, install
from tfmagic.protocol import task_context
from tfmagic.system import shared_manager

__all__ = [
    "MultiProcessPoolRunner",
    "MultiProcessRunner",
    "MultiProcessRunnerResult",
    "NotInitializedError",
    "SubprocessTimeoutError",
    "UnexpectedSubprocessExitError",
    "create_cluster_spec",
    "get_barrier",
    "install",
    "is_oss",
    "manager",
    "run",
    "test_main",
]


class _Barrier:
    """A barrier of all tasks of the cluster spec, with the interface of `multiprocessing.Barrier`.

    It breaks as soon as a task has ended that has not arrived.
    """

    @property
    def parties(self) -> int:
        return task_context.current_task().num_tasks

    def wait(self, timeout: float | None = None) -> int:
        """Wait for all others, and return the place of this task in the order of arrival, from 0 on.

        Raises:
            threading.BrokenBarrierError: A task will not arrive, or `timeout` seconds have passed.
        """
        return task_context.meet(timeout)


def get_barrier() -> _Barrier:
    """Return the barrier of all tasks; called in `fn`.

    Raises:
        ValueError: This is not the process of a task.
    """
    if not task_context.is_task():
        raise ValueError(
            "barrier is not defined. It is likely because you are calling get_barrier() in the main process. "
            "get_barrier() can only be called in the subprocesses."
        )
    return _Barrier()


def manager() -> Any:
    """Return the `multiprocessing` manager of this process, whose queues, events and values can be arguments.

    It runs in a process of its own that ends with this one.
    """
    return shared_manager.shared_manager()


def is_oss() -> bool:
    """Check whether bazel runs this, as in TensorFlow's module."""
    return "bazel" in "".join(sys.argv[:1])


def test_main() -> None:
    """Run the tests of a script, as TensorFlow's module does.

    Does nothing where ``__main__`` defines no test cases, or is a notebook or pytest.
    """
    import unittest

    main = sys.modules["__main__"]
    cases = [v for v in vars(main).values() if isinstance(v, type) and issubclass(v, unittest.TestCase)]
    has_own = any(case.__module__ == "__main__" for case in cases)
    if has_own and hasattr(main, "__file__") and not hasattr(main, "get_ipython"):
        from tensorflow.python.platform import test

        test.main()


test_main.__test__ = False  # type: ignore[attr-defined]  # otherwise pytest collects it
