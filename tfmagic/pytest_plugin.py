"""The pytest plugin: the fixture `tfcluster`, a running cluster for a test.

    @pytest.mark.tfcluster(workers=2, chief=True)
    def test_training(tfcluster):
        results = tfcluster.run(train, 0.01)

    collection: a test uses the fixture ──→ the launcher imports TensorFlow in the background; workers of
                                            xdist have one import for all (`tfmagic.backends.templates`)
    set-up: marker → ClusterRequest → ClusterLease → a running cluster
    failure: a section of the report for each task
    each=True: the body of the test runs on every task, by the hooks of a feature
    tear-down: running calls are interrupted; the cluster is stopped, or kept for the tests that share it

The marker names both the shape and the scope, so that one line is enough for a test, class or module. The
fixture itself always has the scope of a function, because a shared cluster is cleaned up after each test.

Pytest loads this as an entry point, in every session: modules that need a cluster are imported only when a
test asks for one. All of it runs on pytest's thread.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tfmagic.system import features

if TYPE_CHECKING:
    from tfmagic.backends.launcher_client import LauncherProcess
    from tfmagic.clusters.cluster import Cluster
    from tfmagic.frontends.cluster_lease import ClusterLease, ClusterRequest

_MARKER = (
    "tfcluster(workers=2, ps=0, chief=False, evaluator=False, scope='function', each=False, **more): the "
    "cluster of the fixture tfcluster, with the arguments of tfmagic.Cluster; scope is function, class, "
    "module or session: the tests there that want the same cluster share it, one after the other; each=True "
    "runs the body of the test on every task"
)
_CLIENT = "tfmagic.backends.launcher_client"
_NAMES = ("tfmagic", "tfmagic.pytest_plugin")  # as an entry point, and with -p or pytest_plugins
_OUR_ROOT = Path(__file__).parents[1]  # of tfmagic's own tests, which show all frames
_RAISES_FOR_USERS = ("tfmagic.clusters.", "tfmagic.multi_process_runner.")  # also Python's own exceptions
_NODES = {"class": pytest.Class, "module": pytest.Module, "session": pytest.Session}

_launchers: pytest.StashKey[tuple[LauncherProcess, ...]] = pytest.StashKey()  # that ran before this session
_shared: pytest.StashKey[dict[str, Cluster]] = pytest.StashKey()  # of a node, by the key of the request
_lease: pytest.StashKey[ClusterLease] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the option, and block a second registration under the other name, which pytest would refuse."""
    plugins = pluginmanager.list_name_plugin()
    mine = {name for name, plugin in plugins if getattr(plugin, "__name__", "") == __name__}
    for name in set(_NAMES) - mine:
        pluginmanager.set_blocked(name)
    about = "seconds after which a call on a tfcluster without a timeout of its own is stopped; 0: never"
    parser.getgroup("tfmagic").addoption("--tfcluster-timeout", type=float, metavar="SECONDS", help=about)
    parser.addini("tfcluster_timeout", about, default="0")
    about = (
        "seconds after which workers of xdist drop the import of TensorFlow that they share, if unused; 0: no"
    )
    parser.addini("tfcluster_keep_warm", about, default="600")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    for hooks in features.halves("pytest_hooks"):
        config.pluginmanager.register(hooks)
    _timeout_s(config)
    _keep_warm_s(config)
    client = sys.modules.get(_CLIENT)
    config.stash[_launchers] = client.running() if client is not None else ()


def _timeout_s(config: pytest.Config) -> float:
    given = config.getoption("--tfcluster-timeout")
    return _seconds("tfcluster_timeout", config.getini("tfcluster_timeout") if given is None else given)


def _keep_warm_s(config: pytest.Config) -> float:
    return _seconds("tfcluster_keep_warm", config.getini("tfcluster_keep_warm"))


def _seconds(name: str, text: object) -> float:
    try:
        seconds = float(str(text))
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf"):
        raise pytest.UsageError(f"{name} is a number of seconds, 0 or more, not {text!r}")
    return seconds


# ---- collection ---------------------------------------------------------------------------------


def pytest_collection_finish(session: pytest.Session) -> None:
    """Warm the launcher of the first test that needs one."""
    option = session.config.option
    if option.collectonly or getattr(option, "setupplan", False):
        return
    for item in session.items:
        if "tfcluster" in getattr(item, "fixturenames", ()):
            with contextlib.suppress(pytest.fail.Exception):  # raised again when this test is set up
                request = _request_of(item)
                from tfmagic.backends import launcher_client, templates

                if hasattr(session.config, "workerinput"):  # the workers of xdist share one import
                    templates.join(os.getppid(), _keep_warm_s(session.config), must_announce=False)
                launcher_client.warm(request.new_cluster().task_settings.flavour)
                return


def _request_of(item: Any) -> ClusterRequest:
    """Return the request of a test's marker and parameter; fail the test if they make no sense."""
    from tfmagic.frontends import cluster_lease

    marker = item.get_closest_marker("tfcluster")
    arguments, keywords = (marker.args, marker.kwargs) if marker else ((), {})
    params = item.callspec.params if hasattr(item, "callspec") else {}
    try:
        return cluster_lease.read_request(arguments, keywords, params.get("tfcluster"))
    except Exception as error:  # the arguments can be anything
        problem = str(error)
    pytest.fail(
        f"{item.nodeid}: the cluster of its marker tfcluster cannot be made: {problem}", pytrace=False
    )


# ---- the fixture --------------------------------------------------------------------------------


@pytest.fixture
def tfcluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running `tfmagic.Cluster`: two workers, or as the nearest marker `tfcluster` says."""
    lease = request.node.stash[_lease] = _new_lease(request.node)
    try:
        yield lease.begin()
    finally:
        lease.end()


def _new_lease(item: Any) -> ClusterLease:
    from tfmagic.frontends.cluster_lease import ClusterLease

    request, timeout_s = _request_of(item), _timeout_s(item.config)
    if request.scope == "function":
        return ClusterLease(request.new_cluster(item.nodeid, timeout_s), shared=False)
    # outside of a class, a function is a class by itself, as with pytest's own scope
    owner = item.getparent(_NODES[request.scope]) or item
    clusters = owner.stash.setdefault(_shared, {})
    if request.key not in clusters:
        clusters[request.key] = request.new_cluster(owner.nodeid, timeout_s)
        owner.addfinalizer(lambda: clusters.pop(request.key).stop())
    return ClusterLease(clusters[request.key], shared=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the launchers that this session has started, and none that was there before it."""
    client = sys.modules.get(_CLIENT)
    if client is not None and _launchers in config.stash:
        client.close_idle(but=config.stash[_launchers])


# ---- the report ---------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo is not None and item.config.rootpath != _OUR_ROOT:
        _hide_our_frames()
        if isinstance(call.excinfo.value, pytest.skip.Exception):
            vars(call.excinfo.value).pop("__notes__", None)  # which task: it would be a part of the reason
    report = yield
    lease = item.stash.get(_lease, None)
    if lease is None:
        return report
    lease.failed = lease.failed or report.failed
    if report.failed or (report.when == "call" and set(item.config.option.reportchars) & set("AP")):
        _add_sections(item.config, lease, report)
    return report


def _hide_our_frames() -> None:
    """Let pytest show the user's frames alone, but where tfmagic has failed itself."""
    from tfmagic.errors import TfmagicError
    from tfmagic.system import own_code

    def is_for_users(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
        innermost = own_code.entries_of(excinfo.tb)[-1].tb_frame.f_code
        return issubclass(excinfo.type, TfmagicError) or not own_code.is_ours(innermost.co_filename)

    for name, module in list(sys.modules.items()):
        if name.startswith("tfmagic."):
            vars(module)["__tracebackhide__"] = name.startswith(_RAISES_FOR_USERS) or is_for_users


def _add_sections(config: pytest.Config, lease: ClusterLease, report: pytest.TestReport) -> None:
    from tfmagic.frontends import cluster_lease

    was_shown = config.option.capture == "no" and not hasattr(config, "workerinput")
    has_xml = getattr(config.option, "xmlpath", None)
    if not (has_xml and config.getini("junit_logging") in ("system-out", "out-err", "all")):
        # the XML report takes nothing but these sections
        report.sections = list(cluster_lease.without_lines_of(lease.cluster.tasks, report.sections))
    report.sections += cluster_lease.describe_tasks(lease, with_output=not was_shown)
