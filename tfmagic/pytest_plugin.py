"""The pytest plugin: the fixture `tfcluster`, a running cluster for a test.

    @pytest.mark.tfcluster(workers=2, chief=True)
    def test_training(tfcluster):
        results = tfcluster.run(train, 0.01)

    collection: a test uses the fixture ──→ the launcher imports TensorFlow in the background
    set-up: marker → Wish → Loan → started       failure: a section of the report for each task
    tear-down: what goes on is interrupted, the cluster stopped, or kept for the tests that share it

The marker says both the shape and the scope, so that one line of a test, class or module says all; and the
fixture is always a function's, since a shared cluster is looked at before and after each test.

Importing this costs pytest some milliseconds; what needs a cluster is imported when a test has asked for one.
It runs on pytest's thread and starts none of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tfmagic.backends.launcher_client import LauncherProcess
    from tfmagic.clusters.cluster import Cluster
    from tfmagic.frontends.testing.cluster_pool import ClusterLease, ClusterPool, ClusterRequest

_MARKER = (
    "tfcluster(workers=2, ps=0, chief=False, evaluator=False, scope='function', **more): the cluster of the "
    "fixture tfcluster, with the arguments of tfmagic.Cluster; scope is function, class, module or session: "
    "the tests there that want the same cluster share it, one after the other"
)
_NAMES = ("tfmagic", "tfmagic.pytest_plugin")  # as an entry point, and with -p or pytest_plugins

_lender: pytest.StashKey[ClusterPool] = pytest.StashKey()
_launchers: pytest.StashKey[tuple[LauncherProcess, ...]] = pytest.StashKey()
_loan: pytest.StashKey[ClusterLease] = pytest.StashKey()
_failed: pytest.StashKey[bool] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Called when this is registered: under its other name it would be a second time, an error of pytest."""
    mine = [
        name
        for name, plugin in pluginmanager.list_name_plugin()
        if getattr(plugin, "__name__", "") == __name__
    ]
    for name in set(_NAMES) - set(mine):
        pluginmanager.set_blocked(name)
    about = "seconds after which a call on a tfcluster without a timeout of its own is stopped; 0: never"
    parser.getgroup("tfmagic").addoption("--tfcluster-timeout", type=float, metavar="SECONDS", help=about)
    parser.addini("tfcluster_timeout", about, default="0")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    _timeout_s(config)


def _timeout_s(config: pytest.Config) -> float:
    given = config.getoption("--tfcluster-timeout")
    text = config.getini("tfcluster_timeout") if given is None else given
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf"):
        raise pytest.UsageError(f"tfcluster_timeout is a number of seconds, 0 or more, not {text!r}")
    return seconds


# ---- collection ---------------------------------------------------------------------------------


def pytest_collection_finish(session: pytest.Session) -> None:
    """Warm the launcher of the first test that needs one."""
    option = session.config.option
    if option.collectonly or getattr(option, "setupplan", False):
        return
    for item in session.items:
        if "tfcluster" in getattr(item, "fixturenames", ()):
            with contextlib.suppress(pytest.fail.Exception):  # told when the test is set up: others go on
                _warm(session.config, _wish_of(item))
                return


def _wish_of(item: Any) -> ClusterRequest:
    """What the marker and the parameter of a test say; fails it where that makes no sense."""
    __tracebackhide__ = True
    from tfmagic.frontends.testing import cluster_pool

    marker = item.get_closest_marker("tfcluster")
    arguments, keywords = (marker.args, marker.kwargs) if marker else ((), {})
    params = item.callspec.params if hasattr(item, "callspec") else {}
    try:
        return cluster_pool.read_wish(arguments, keywords, params.get("tfcluster"))
    except Exception as error:  # the arguments are anybody's
        problem = str(error)
    pytest.fail(
        f"{item.nodeid}: the cluster of its marker tfcluster cannot be made: {problem}", pytrace=False
    )


def _warm(config: pytest.Config, wish: ClusterRequest) -> None:
    from tfmagic.backends import launcher_client

    config.stash.setdefault(_launchers, launcher_client.running())
    launcher_client.warm(wish.make("warm").make.flavour)


# ---- the fixture --------------------------------------------------------------------------------


@pytest.fixture
def tfcluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running `tfmagic.Cluster`: two workers, or as the nearest marker `tfcluster` says."""
    __tracebackhide__ = True
    item = request.node
    loan = _prepare(item)
    item.stash[_loan] = loan
    try:
        yield loan.begin()
    finally:
        loan.end(item.stash.get(_failed, False))


def _prepare(item: Any) -> ClusterLease:
    __tracebackhide__ = True
    from tfmagic.backends import launcher_client
    from tfmagic.frontends.testing.cluster_pool import ClusterPool

    wish, config = _wish_of(item), item.config
    config.stash.setdefault(_launchers, launcher_client.running())
    lender = config.stash.setdefault(_lender, ClusterPool(_timeout_s(config)))
    owner = _owner(item, wish.scope)
    if owner is not None and not isinstance(owner, pytest.Session):
        owner.addfinalizer(lambda: lender.close(owner.nodeid))
    return lender.prepare(wish, "" if owner is None else owner.nodeid, item.nodeid)


def _owner(item: Any, scope: str) -> Any:
    """The node whose tests share the cluster; None where it is for this test alone."""
    match scope:
        case "function":
            return None
        case "class":  # a function outside of a class is one by itself, as with pytest's own scope
            return item.getparent(pytest.Class) or item
        case "module":
            return item.getparent(pytest.Module) or item
    return item.session


def pytest_sessionfinish(session: pytest.Session) -> None:
    _close(session.config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what this session has started, and nothing that was there before it."""
    _close(config)
    kept = config.stash.get(_launchers, None)
    if kept is not None:
        from tfmagic.backends import launcher_client

        launcher_client.close_idle(but=kept)


def _close(config: pytest.Config) -> None:
    lender = config.stash.get(_lender, None)
    if lender is not None:
        lender.close()


# ---- the report ---------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    loan = item.stash.get(_loan, None)
    if loan is None:
        return report
    if report.failed:
        item.stash[_failed] = True
    wanted = report.failed or (report.when == "call" and set(item.config.option.reportchars) & set("AP"))
    if wanted:
        _add_sections(item.config, loan, report)
    return report


def _add_sections(config: pytest.Config, loan: ClusterLease, report: pytest.TestReport) -> None:
    from tfmagic.frontends.testing import task_output

    tasks = loan.cluster.tasks
    was_shown = config.option.capture == "no" and not hasattr(config, "workerinput")
    if not _writes_captured_to_xml(config):  # which takes these sections alone
        cleared = [
            (
                title,
                task_output.without_lines_of(tasks, text) if title.startswith("Captured stdout") else text,
            )
            for title, text in report.sections
        ]
        report.sections = [(title, text) for title, text in cleared if text]
    report.sections += task_output.describe_tasks(loan, with_output=not was_shown)


def _writes_captured_to_xml(config: pytest.Config) -> bool:
    wanted: Any = config.getini("junit_logging") if getattr(config.option, "xmlpath", None) else "no"
    return wanted in ("system-out", "out-err", "all")
