"""Run the body of a test on every task: ``@pytest.mark.tfcluster(workers=2, each=True)``.

    collection: the test gets the fixture `tfcluster`, whether or not it names it
    set-up:     its fixtures are evaluated in pytest's process; what cannot work is refused
    call:       one call of the body on every task ── the root cause, skip or xfail is that of the test
    report:     a section for each task that failed; the tasks' warnings are pytest's

`tfmagic.pytest_plugin` registers this in every session: it imports what needs a cluster when a test runs.
"""

import inspect
import sys
import traceback
import warnings
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tfmagic.features.testing import fixtures

if TYPE_CHECKING:
    from tfmagic.clusters.cluster import Cluster

_CLUSTER = "tfcluster"


def _is_for_each(node: Any) -> bool:
    marker = node.get_closest_marker(_CLUSTER)
    return marker is not None and marker.kwargs.get("each") is True


# ---- collection and set-up ----------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let the fixture have parameters, though the function does not name it."""
    if _is_for_each(metafunc.definition) and _CLUSTER not in metafunc.fixturenames:
        metafunc.fixturenames.append(_CLUSTER)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let the test have a cluster."""
    names = getattr(item, "fixturenames", None)
    if names is not None and _is_for_each(item) and _CLUSTER not in names:
        item.fixturenames = [*names, _CLUSTER]  # type: ignore[attr-defined]  # the list is that of other tests, too


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test that cannot run on tasks, before its fixtures are made."""
    if _is_for_each(item) and (why := _why_not(item)):
        raise pytest.fail.Exception(fixtures.refusal(item.name, *why), pytrace=False)


def _why_not(item: Any) -> tuple[str, str] | None:
    """Return why a test cannot run on tasks, and what can be done instead."""
    if type(item) is not pytest.Function:
        instead = "use a function or a plain class, or the fixture tfcluster without each"
        return f"a {type(item).__name__} runs by itself, in pytest's process", instead
    if inspect.iscoroutinefunction(item.obj) or inspect.isasyncgenfunction(item.obj):
        return "an async function is not supported there", "use def, and asyncio.run in the body"
    if _CLUSTER in _argument_names(item):
        instead = "leave the argument out (tfmagic.current_task() tells the task), or leave each=True out"
        return "there is no cluster to be used there", instead
    return None


def _argument_names(item: Any) -> tuple[str, ...]:
    return item._fixtureinfo.argnames  # as pytest's own call


# ---- the call -----------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Call the body on every task."""
    if not _is_for_each(pyfuncitem):
        return None
    from tfmagic.errors import CaptureError
    from tfmagic.features.testing import kernel, on_tasks

    item, cluster = pyfuncitem, pyfuncitem.funcargs[_CLUSTER]
    given = {name: item.funcargs[name] for name in _argument_names(item)}
    arguments = fixtures.sort_arguments(item.name, given)
    kernel.FEATURE.take_warnings()
    what = (item.obj, arguments.values, arguments.made, f"the start of {item.name}", list(warnings.filters))
    culprit = ""
    try:
        returned = [*filter(None, cluster.run(on_tasks.run_body, *what, on="all").values())]
    except CaptureError as error:
        main = vars(sys.modules["__main__"])
        if not hasattr(error, "failures"):  # nothing was run
            culprit = fixtures.find_culprit(item.name, item.obj, arguments.values, main)
        if not culprit:
            raise
    except (pytest.skip.Exception, pytest.xfail.Exception) as outcome:
        _raise_outcome(outcome, cluster)
    finally:
        for seen, tasks in kernel.FEATURE.take_warnings().items():
            _warn(seen, sorted(tasks))
    if culprit:
        raise pytest.fail.Exception(culprit, pytrace=False)
    if returned:
        text = f"Test functions should return None, but {item.nodeid} returned {returned[0]} on a task."
        warnings.warn(pytest.PytestReturnNotNoneWarning(text), stacklevel=1)
    return True


def _raise_outcome(outcome: Any, cluster: "Cluster") -> NoReturn:
    """Raise a skip or an xfail with the names of its tasks; a failure of another task counts more."""
    kinds = (pytest.skip.Exception, pytest.xfail.Exception)
    failures: Mapping[str, BaseException] = outcome.failures
    roots = [name for name, record in cluster.failures().items() if record.root]
    for name in roots:
        if not isinstance(failed := failures[name], kinds):
            failed.failures = failures  # type: ignore[attr-defined]
            raise failed
    names = [name for name, error in failures.items() if isinstance(error, kinds)]
    outcome.msg = f"{outcome.msg} (on {', '.join(names)})"
    raise outcome


def _warn(seen: Any, tasks: Iterable[object]) -> None:
    """Give a warning of tasks to pytest, whose filters have let it through there."""
    category = next(filter(None, (_find_class(*names) for names in seen.classes)), UserWarning)
    text = f"{seen.text} (on {', '.join(map(str, tasks))})"
    try:
        message = category(text)
    except Exception:  # a class of the user's that takes other arguments
        message = UserWarning(f"{seen.classes[0][1]}: {text}")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn_explicit(message, type(message), seen.file, seen.line)


def _find_class(module: str, name: str) -> type[Warning] | None:
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, Warning) else None


# ---- the report ---------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a section for each task that failed."""
    report = yield
    if report.failed and call.excinfo is not None and _is_for_each(item):
        error = call.excinfo.value
        for task, failure in getattr(error, "failures", {}).items():
            is_shown = failure is error
            lines = ["(the failure above)\n"] if is_shown else traceback.format_exception(failure)
            report.sections.append((f"Failure on {task}", "".join(lines)))
    return report
