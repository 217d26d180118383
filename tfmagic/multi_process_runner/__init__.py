"""TensorFlow's `MultiProcessRunner`, for everybody.

The names, parameters and behaviour are those of ``tensorflow.python.distribute.multi_process_runner`` of
TensorFlow 2.21, a private module that works under its own test main only. This one works in scripts, in
notebooks and under pytest, with no test main, and starts its processes from an interpreter that has
imported TensorFlow already.

Where it differs, it is on purpose:

- A process that a signal ended is an error, as one that ended with an exit code is (`terminate` excepted).
- An error is raised about a second after it happened, although other processes hang; they are ended.
- `max_run_time` takes no alarm signal from the caller.
- A result also has `by_task`: {task name: what it returned}, None included, and `return_value` has the order
  chief, worker, ps, evaluator.
- A pool has no time limits: it says who died, and who failed while others hang.
- The death of a process is raised as the root cause, although its peers raise because of it: but see
  `wait_for_peers`.
- Processes end with the one that started them, in whatever way that ends.
"""

from __future__ import annotations

import sys
from typing import Any

from tfmagic.multi_process_runner.installing import install
from tfmagic.multi_process_runner.outcomes import (
    MultiProcessRunnerResult,
    NotInitializedError,
    SubprocessTimeoutError,
    UnexpectedSubprocessExitError,
)
from tfmagic.multi_process_runner.pool import MultiProcessPoolRunner
from tfmagic.multi_process_runner.runner import MultiProcessRunner, run
from tfmagic.multi_process_runner.setup import create_cluster_spec
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
    """A barrier of all tasks of the cluster spec, as `multiprocessing.Barrier` has it.

    It breaks, for those who wait, as soon as a task has ended that they wait for.
    """

    @property
    def parties(self) -> int:
        return task_context.current_task().num_tasks

    def wait(self, timeout: float | None = None) -> int:
        """Wait for all others; as which one this task came, from 0 on.

        Raises:
            threading.BrokenBarrierError: Somebody will not come, or `timeout` seconds have passed.
        """
        return task_context.meet(timeout)


def get_barrier() -> _Barrier:
    """The barrier of all tasks; for `fn`.

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
    """The `multiprocessing` manager for this process, whose queues, events and values can be arguments.

    It is made once, in a process of its own that ends with this one.
    """
    return shared_manager.shared_manager()


def is_oss() -> bool:
    """Whether bazel runs this, as in TensorFlow's module."""
    return len(sys.argv) >= 1 and "bazel" in sys.argv[0]


def test_main() -> None:
    """Run the tests of a script, as TensorFlow's module does; nothing else needs it.

    Where ``__main__`` defines no test cases, or is a notebook or pytest, it does nothing.
    """
    import unittest

    main = sys.modules["__main__"]
    cases = [v for v in vars(main).values() if isinstance(v, type) and issubclass(v, unittest.TestCase)]
    own = [case for case in cases if case.__module__ == "__main__"]
    is_notebook = hasattr(main, "get_ipython")
    if not own or is_notebook or not hasattr(main, "__file__"):
        return
    from tensorflow.python.platform import test

    test.main()


test_main.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a test otherwise
