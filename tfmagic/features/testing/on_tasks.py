"""Run the body of a test on a task: the function that pytest's process calls on every task.

    pytest's process ══ run_body ══→ filters of warnings → fixtures of the task → start barrier → the body
                                       └─→ SEEN: the warnings, which `task.py` reports

A fixture that acts in its process (`monkeypatch`, `caplog`, `capsys`, `recwarn`) is made here, and ended
after the body. Only this needs pytest on a task.
"""

import contextlib
import unittest
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfmagic.features.testing.asserts import explained
from tfmagic.features.testing.reports import SeenWarning
from tfmagic.protocol import task_context
from tfmagic.system import own_code

SEEN: list[SeenWarning] = []
"""The warnings of the body that runs, or has just ended."""


def run_body(
    body: Callable[..., object],
    values: Mapping[str, Any],
    made: Mapping[str, str],
    start: str,
    filters: Sequence[Any],
    verbosity: int,
) -> str:
    """Call the body of a test, and return the type of what it returned, or "" for None.

    Args:
        body: The function, or a bound method.
        values: Its arguments that have travelled.
        made: Its arguments that are made here: the name of each, and its key in `MAKERS`.
        start: The name of the barrier that lets no task begin before all are ready.
        filters: `warnings.filters` of pytest's process.
        verbosity: How much an assert says, as in pytest's process.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(explained(verbosity))
        stack.enter_context(_watched_warnings(filters))
        arguments = {name: stack.enter_context(MAKERS[kind]()) for name, kind in made.items()}
        task_context.meet(None, start)
        result = body(**values, **arguments)
    return "" if result is None else type(result).__name__


def run_case(case: type[unittest.TestCase], method: str) -> None:
    """Run a method of a test case of unittest with all that belongs to it: the body of such a test.

    `TestSuite.debug` raises what went wrong, and knows no expected failures.
    """
    import pytest

    marked = (case, getattr(case, method))
    is_expected = any(getattr(each, "__unittest_expecting_failure__", False) for each in marked)
    try:
        unittest.TestSuite([case(method)]).debug()
    except unittest.SkipTest as skip:
        pytest.skip(str(skip))
    except Exception as error:
        if is_expected:
            pytest.xfail("unittest.expectedFailure")
        entries = own_code.entries_of(error.__traceback__)
        users = [entry for entry in entries if "__unittest" not in entry.tb_frame.f_globals]
        raise error.with_traceback(own_code.linked(users))  # noqa: B904 - the same
    if is_expected:
        raise AssertionError("Unexpected success")


@contextlib.contextmanager
def _watched_warnings(filters: Sequence[Any]) -> Iterator[None]:
    """Let the filters of pytest's process hold, and keep the warnings that they let through."""
    SEEN.clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.resetwarnings()
        warnings.filters.extend(filters)  # type: ignore[attr-defined]  # a list, which typeshed calls a sequence
        try:
            yield
        finally:
            SEEN.extend(map(_seen, found))


def _seen(warning: warnings.WarningMessage) -> SeenWarning:
    classes = tuple((base.__module__, base.__qualname__) for base in type(warning.message).__mro__)
    return SeenWarning(classes, str(warning.message), warning.filename, warning.lineno)


# ---- fixtures that are made on the task ---------------------------------------------------------


@contextlib.contextmanager
def _monkeypatch() -> Iterator[Any]:
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        yield patch


@contextlib.contextmanager
def _recwarn() -> Iterator[Any]:
    import pytest

    with pytest.WarningsRecorder(_ispytest=True) as recorder:
        warnings.simplefilter("default")
        yield recorder


@contextlib.contextmanager
def _caplog() -> Iterator[Any]:
    from types import SimpleNamespace

    import pytest
    from _pytest import logging as of_pytest

    handler, stash = of_pytest.LogCaptureHandler(), pytest.Stash()
    stash[of_pytest.caplog_handler_key] = handler
    stash[of_pytest.caplog_records_key] = {"call": handler.records}
    item: Any = SimpleNamespace(stash=stash)  # all that the fixture reads of a test
    fixture = pytest.LogCaptureFixture(item, _ispytest=True)
    with of_pytest.catching_logs(handler):
        try:
            yield fixture
        finally:
            fixture._finalize()


@contextlib.contextmanager
def _capsys() -> Iterator[Any]:
    from _pytest import capture

    class Captured(capture.CaptureFixture):  # type: ignore[type-arg]  # of text
        @contextlib.contextmanager
        def disabled(self) -> Iterator[None]:  # there is no other capture to be suspended
            self._suspend()
            try:
                yield
            finally:
                self._resume()

    request: Any = None  # only pytest's `disabled` reads it
    fixture = Captured(capture.SysCapture, request, _ispytest=True)
    fixture._start()
    try:
        yield fixture
    finally:
        fixture.close()


MAKERS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "monkeypatch": _monkeypatch,
    "recwarn": _recwarn,
    "caplog": _caplog,
    "capsys": _capsys,
}
"""By the name of the fixture of pytest."""
