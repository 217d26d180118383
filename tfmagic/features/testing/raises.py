"""Expect an exception of one task, in the process of a test, and in a body that runs on every task.

    with raises_on("worker-1", ValueError):
        tfcluster.run(step)              # in the test's process: `failures` of the exception say which task

    with raises_on("worker-1", ValueError):
        step()                           # on the tasks: worker-1 must raise, the others must not

Mistakes are an `AssertionError`, so this needs no pytest.
"""

import re
from collections.abc import Sequence
from types import TracebackType
from typing import Generic, TypeVar

from tfmagic.errors import ClusterSpecError
from tfmagic.protocol import task_context
from tfmagic.protocol.cluster_spec import TASK_TYPES, Selector, TaskId, parse_task, select

E = TypeVar("E", bound=BaseException)
_RAISED_ON = re.compile(r"raised on ([a-z]+-\d+) ")
_MOST = 200  # characters of a message


class raises_on(Generic[E]):  # noqa: N801 - as `pytest.raises`
    """Expect that a task raises, and no other one: a context manager.

    Around ``tfcluster.run(...)`` it passes if the failure is that of a selected task. In a body that runs on
    every task, the block must raise on the selected tasks, and must not on the others.

    Args:
        task: A selector: a task (``worker-1``), a type (``worker``), ``all``, or several.
        expected: The class of the exception, or several in a tuple.
        match: A regular expression that `re.search` finds in the message.

    Attributes:
        value: The exception, after the block; None on a task that need not raise.

    Raises:
        AssertionError: Nothing was raised, or something else, or on another task; the message names them.
        ClusterSpecError: The selector makes no sense, or names a task that the cluster does not have.
        TypeError: `expected` is no class of exceptions.
    """

    value: E | None

    def __init__(
        self, task: str | Sequence[str], expected: type[E] | tuple[type[E], ...], match: str | None = None
    ):
        classes = expected if isinstance(expected, tuple) else (expected,)
        if not classes or not all(isinstance(c, type) and issubclass(c, BaseException) for c in classes):
            raise TypeError(f"raises_on() expects a class of exceptions, or several, not {expected!r}")
        _is_selected("worker-0", task)
        re.compile(match or "")
        self._task, self._classes, self._match = task, classes, match
        self.value = None

    def __enter__(self) -> "raises_on[E]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> bool:
        __tracebackhide__ = True  # of pytest
        check = self._check_on_task if task_context.is_task() else self._check_run
        problem = check(error)
        if problem is None:
            return self.value is not None
        raise AssertionError(problem) from error

    # ---- on a task: an exception of its own --------------------------------------------------------

    def _check_on_task(self, error: BaseException | None) -> str | None:
        """Return what is wrong, or None. An exception that is not expected here at all goes on by itself."""
        me = task_context.current_task().name
        if not _is_selected(me, self._task):
            if error is not None:
                error.add_note(f"raises_on() expects {self._wanted} on {self._task}, and nothing on {me}")
            return None
        if error is None:
            return f"{me} did not raise {self._wanted}: the block has ended without an exception"
        if not self._fits(error):
            return f"{me} did not raise {self._wanted}, but {_describe(error)}"
        self._keep(error)
        return None

    # ---- in the process of a test: the failures of a call ------------------------------------------

    def _check_run(self, error: BaseException | None) -> str | None:
        """Return what is wrong, or None."""
        if error is None:
            return f"{self._task} did not raise {self._wanted}: no task has failed"
        failures = _failures_of(error)
        if not failures:
            if not isinstance(error, Exception):  # Ctrl-C, or a skip of the test
                return None
            return (
                f"{self._task} did not raise {self._wanted}: {_describe(error)} was raised in this process, "
                "by no task"
            )
        # of equal failures any can be the root, by chance
        equal = {name: each for name, each in failures.items() if type(each) is type(error)}
        mine = [each for name, each in equal.items() if _is_selected(name, self._task) and self._fits(each)]
        if not mine:
            return f"{self._task} did not raise {self._wanted}. The failure is {_list(failures)}"
        if too := {name: each for name, each in equal.items() if not _is_selected(name, self._task)}:
            return f"{self._task} raised {self._wanted}, and others did, too: {_list(too)}"
        self._keep(mine[0])
        return None

    def _fits(self, error: BaseException) -> bool:
        is_of_class = isinstance(error, self._classes)
        return is_of_class and (self._match is None or re.search(self._match, str(error)) is not None)

    def _keep(self, error: BaseException) -> None:
        assert isinstance(error, self._classes)
        self.value = error

    @property
    def _wanted(self) -> str:
        names = " or ".join(one.__qualname__ for one in self._classes)
        return names if self._match is None else f"{names} matching {self._match!r}"


def _is_selected(name: str, selector: Selector) -> bool:
    """Check whether a selector names a task. Which others there are is known on a task alone."""
    task = parse_task(name)
    if task_context.is_task():
        spec = task_context.current_task().cluster_spec
        known = {TaskId(kind, number) for kind, found in spec.items() for number in range(len(found))}
        return task in select(selector or "", sorted(known | {task, TaskId("evaluator", 0)}))
    indices = {0, task.index, *map(int, re.findall(r"\d+", str(selector)))}
    possible = [TaskId(kind, index) for kind in TASK_TYPES for index in sorted(indices)]
    try:
        return task in select(selector or "", possible)
    except ClusterSpecError:  # its message would list tasks that need not be there
        raise ClusterSpecError(
            f"raises_on() takes a task, such as 'worker-1', a type of tasks, such as 'worker', or 'all', "
            f"not {selector!r}"
        ) from None


def _failures_of(error: BaseException) -> dict[str, BaseException]:
    """Return the exceptions of the tasks, the root cause first; empty if no task raised this one."""
    if found := getattr(error, "failures", None):
        return dict(found)
    notes = [_RAISED_ON.match(str(note)) for note in getattr(error, "__notes__", ())]
    return {found[1]: error for found in notes if found}  # of a class that forbids attributes


def _list(failures: dict[str, BaseException]) -> str:
    return "; ".join(f"{_describe(error)} on {name}" for name, error in failures.items())


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    short = text if len(text) <= _MOST else f"{text[:_MOST]}..."
    return f"{type(error).__qualname__}({short!r})" if short else type(error).__qualname__
