"""Run the body of a test on every task: ``@pytest.mark.tfcluster(workers=2, each=True)``.

    collection: the test gets the fixture `tfcluster`, whether or not it names it
    set-up:     its fixtures are evaluated in pytest's process; what cannot work is refused
    call:       one call of the body on every task ── the root cause, skip or xfail is that of the test
    report:     a section for each task that failed; the tasks' warnings are pytest's

`tfmagic.pytest_plugin` registers this in every session: it imports what needs a cluster when a test runs.
"""

import functools
import inspect
import sys
import traceback
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.unittest import TestCaseFunction

from tfmagic.features.testing import fixtures
from tfmagic.system import own_code

if TYPE_CHECKING:
    from tfmagic.clusters.cluster import Cluster

_CLUSTER = "tfcluster"
_OUTCOMES = (pytest.skip.Exception, pytest.xfail.Exception)


def _is_for_each(node: Any) -> bool:
    marker = node.get_closest_marker(_CLUSTER)
    return marker is not None and marker.kwargs.get("each", False) is not False  # the fixture refuses others


# ---- collection and set-up ----------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let the fixture have parameters, though the function does not name it."""
    if _is_for_each(metafunc.definition) and _CLUSTER not in metafunc.fixturenames:
        metafunc.fixturenames.append(_CLUSTER)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Let the tests have a cluster, also those that a conftest has marked."""
    yield
    for item in items:
        _give_cluster(item)


def _give_cluster(item: pytest.Item) -> None:
    names = getattr(item, "fixturenames", None)
    if names is None or not _is_for_each(item):
        return
    if isinstance(item, TestCaseFunction):  # unittest's own preparations are made on the tasks
        names = [name for name in names if not name.startswith("_unittest_setUpClass_fixture")]
        item.runtest = functools.partial(_call, item)  # type: ignore[method-assign]
    if _CLUSTER not in names:
        names = [*names, _CLUSTER]
    item.fixturenames = names  # type: ignore[attr-defined]  # a new list: others share the old one


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test that cannot run on tasks, before its fixtures are made."""
    if _is_for_each(item) and (why := _why_not(item)):
        raise pytest.fail.Exception(fixtures.refusal(item.name, *why), pytrace=False)


def _why_not(item: Any) -> tuple[str, str] | None:
    """Return why a test cannot run on tasks, and what can be done instead."""
    if isinstance(item, TestCaseFunction):
        if hasattr(item.cls, "setup_method") or hasattr(item.cls, "teardown_method"):
            return "setup_method and teardown_method would not run there", "call them setUp and tearDown"
    elif type(item) is not pytest.Function:
        instead = "use a function or a class, or the fixture tfcluster without each"
        return f"a {type(item).__name__} runs by itself, in pytest's process", instead
    if inspect.iscoroutinefunction(item.obj) or inspect.isasyncgenfunction(item.obj):
        return "an async function is not supported there", "use def, and asyncio.run in the body"
    if getattr(item.obj, "is_hypothesis_test", False):
        instead = (
            "let the test use the fixture tfcluster without each, and call tfcluster.run for each example"
        )
        return "hypothesis would draw other examples on each task", instead
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
    _call(pyfuncitem)
    return True


def _call(item: Any) -> None:
    from tfmagic.features.testing import kernel

    kernel.FEATURE.take_warnings()
    try:
        failure, returned = _run(item)
    finally:
        for seen, tasks in kernel.FEATURE.take_warnings().items():
            _warn(seen, sorted(tasks))
    if failure is not None:
        raise failure
    if returned:
        text = f"Test functions should return None, but {item.nodeid} returned {returned} on a task."
        item.warn(pytest.PytestReturnNotNoneWarning(text))


def _run(item: Any) -> tuple[BaseException | None, str]:
    """Run the body; return what the test raises, or None, and the type of what the body has returned."""
    from tfmagic.errors import CaptureError
    from tfmagic.features.testing import on_tasks

    cluster = item.funcargs[_CLUSTER]
    given = {name: item.funcargs[name] for name in _argument_names(item)}
    arguments = fixtures.sort_arguments(item.name, given)
    verbosity = item.config.get_verbosity(pytest.Config.VERBOSITY_ASSERTIONS)
    settings = (f"the start of {item.name}", list(warnings.filters), verbosity)
    body = item.obj
    if isinstance(item, TestCaseFunction):
        body = functools.partial(on_tasks.run_case, item.cls, item.name)
    what = (body, arguments.values, arguments.made, *settings)
    try:
        types = cluster.run(on_tasks.run_body, *what, on="all")
    except CaptureError as error:
        if hasattr(error, "failures"):  # of a task
            return _placed(error, item), ""
        main = vars(sys.modules["__main__"])
        culprit = fixtures.find_culprit(item.name, body, arguments.values, main)
        return (pytest.fail.Exception(culprit, pytrace=False) if culprit else error), ""
    except _OUTCOMES as outcome:
        vars(outcome)["_use_item_location"] = isinstance(item, TestCaseFunction)  # as pytest's own skip of it
        return _choose_outcome(outcome, cluster), ""
    except BaseException as error:
        return _placed(error, item), ""
    return None, next(filter(None, types.values()), "")


def _choose_outcome(outcome: Any, cluster: "Cluster") -> BaseException:
    """Return a skip or an xfail, with the names of its tasks; or the failure of another task."""
    failures: Mapping[str, BaseException] = outcome.failures
    for name, record in cluster.failures().items():
        if record.root and not isinstance(failed := failures[name], _OUTCOMES):
            failed.failures = failures  # type: ignore[attr-defined]  # as that of the root cause
            return failed
    names = sorted(name for name, error in failures.items() if isinstance(error, _OUTCOMES))
    outcome.msg = f"{outcome.msg} (on {', '.join(names)})"
    return outcome


def _placed(error: BaseException, item: Any) -> BaseException:
    """Return an error of no code of the user's, such as the death of a task, with the line of the test."""
    if own_code.users_frames(error.__traceback__) is not None:
        return error
    path, line, _ = item.reportinfo()
    code = compile("\n" * (line or 0) + "raise error", str(path), "exec").replace(co_name=item.name)
    error.__traceback__ = None
    try:
        exec(code, {"error": error})
    except BaseException as raised:
        return raised.with_traceback(raised.__traceback__ and raised.__traceback__.tb_next)
    raise AssertionError("it raises")


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
        report.sections += _describe_failures(call.excinfo.value)
    return report


def _describe_failures(root: BaseException) -> Iterator[tuple[str, str]]:
    """Yield a title and a text for each task that failed; equal failures have one text."""
    places = {_text_of(root): "above"}
    for task, error in getattr(root, "failures", {}).items():
        place = places.get(text := _text_of(error))
        places.setdefault(text, f"on {task}")
        yield f"Failure on {task}", text if place is None else f"(the same as {place})\n"


def _text_of(error: BaseException) -> str:
    """Return an exception as text, without the notes that name its task and others."""
    below = own_code.below(error.__traceback__, (__file__,))  # without the frames of pytest that led here
    users = own_code.users_frames(below)
    lines = "".join(traceback.format_exception(type(error), error, users)).splitlines(True)
    return "".join(line for line in lines if not line.lstrip(" |").startswith(("raised on ", "also on ")))
