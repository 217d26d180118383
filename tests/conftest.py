"""Fixtures of all tests: a state folder of their own, a real shell, and a guard against leaks.

A process that imports TensorFlow costs four to seven seconds, so tests share such processes:

- `notebook`: the launcher of the test's own process;
- `kernel`: one ipykernel, cleared after each test;
- `commands`: a process for `tfmagic` commands;
- `lessons`: a kernel for the notebooks of the course;
- `pair`: the two kernels of tests/same.

A test starts a process of its own only if it tests the start or the end of that process. A further case of
the same code is marked with `soak`.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from commands import Commands
    from kernels import Kernel  # its imports would be imported by each task of a test module
    from lessons import Lessons
    from pages import Pages, Server
    from ray_nodes import RayNodes

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job: tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # below nohup: tests hang terminals up
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

ENDED_S = 30.0  # measured 0.1 s on an idle machine; a test must not fail because the machine is busy


class Failures:
    """Tells at once which test has failed, where and why: a run that is ended, or is still going, has told it."""

    def __init__(self, config: pytest.Config):
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            reporter = self._config.pluginmanager.get_plugin("terminalreporter")
            reporter.write_line(f"\nfailed: {report.nodeid} ({report.when})")
            if crash := getattr(report.longrepr, "reprcrash", None):
                reporter.write_line(f"  {crash.path}:{crash.lineno}: {crash.message[:1000]}")
            for entry in getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ()):
                if getattr(entry, "reprfileloc", None):  # groups of exceptions have none
                    reporter.write_line(f"  called at {entry.reprfileloc}")


def pytest_configure(config: pytest.Config) -> None:
    """Let this process import as little as those of the tests do; see `lean_imports`."""
    import lean.sitecustomize  # noqa: F401
    from hypothesis import HealthCheck, settings

    # the same examples in each run, whatever the machine's speed; `make chaos` draws others
    drawn = os.environ.get("SAME") == "all"
    too_slow = [HealthCheck.too_slow]
    settings.register_profile("tests", derandomize=not drawn, deadline=None, suppress_health_check=too_slow)
    settings.load_profile("tests")

    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config))
    if target := os.environ.get("TEST_TIMES"):
        from times import Times

        config.pluginmanager.register(Times(target))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect no garbage while the tests are imported: a quarter of that time, in each process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first, and draw the rest of the order from TEST_SEED."""
    from order import arrange
    from quarantine import excuse

    arrange(items)
    excuse(items)


@pytest.hookimpl(wrapper=True)
def _without_interrupt(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let a test fail whose KeyboardInterrupt got out: it would end the tests of all processes."""
    try:
        return (yield)
    except KeyboardInterrupt as error:
        if hasattr(item.config, "workerinput"):
            raise AssertionError("a KeyboardInterrupt left the test") from error
        raise


pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _without_interrupt


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep files together that share kernels."""
    from order import make_scheduler

    return make_scheduler(config, log)


def wait_until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Poll a condition outside (a process, a file) until it is true; fail after the time limit.

    A long wait, and one with a condition that costs time, polls less often: what is waited for needs the processor.
    """
    began = time.monotonic()
    while True:
        asked = time.monotonic()
        found = condition()
        now = time.monotonic()
        if found or now > began + timeout_s:
            assert found, "what the test waits for did not happen"
            return found
        time.sleep(min(max(0.005, 2 * (now - asked), (now - began) / 20), 0.25))


@contextmanager
def program(*command: Any, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process whose output is read as text; kill it if the test fails meanwhile.

    `with subprocess.Popen(...)` would wait for its end, for ever if the test failed because the process hangs:
    the time limit of a test does not end that wait.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def kill_at_once(*pids: int) -> None:
    """Kill processes of which none acts on the end of another one: they are stopped first.

    Children stand before their parent, whose end would let them go on.
    """
    processes = [psutil.Process(pid) for pid in pids]
    for process in processes:
        process.suspend()
    wait_until(lambda: all(process.status() == psutil.STATUS_STOPPED for process in processes))
    for process in processes:
        process.kill()


def alive(pids: Iterable[int]) -> set[int]:
    """Return the pids that still run; a zombie has ended."""
    return {pid for pid in pids if _runs(pid)}


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the inodes that are forced to the disk."""
    found: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: found.append(os.fstat(fd).st_ino) or fsync(fd))
    return found


@contextmanager
def _state_dir_at(folder: Path) -> Iterator[Path]:
    before = os.environ.get("TFMAGIC_STATE_DIR")
    os.environ["TFMAGIC_STATE_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["TFMAGIC_STATE_DIR"]
    else:
        os.environ["TFMAGIC_STATE_DIR"] = before


@pytest.fixture(autouse=True, scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the run folders of the tests apart from the user's."""
    with _state_dir_at(tmp_path_factory.mktemp("state")) as folder:
        yield folder


@pytest.fixture(scope="module")
def own_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the runs of a module apart: `%tfcluster attach` of a later test finds those that were kept."""
    with _state_dir_at(tmp_path_factory.mktemp("state")) as folder:
        yield folder


@pytest.fixture(autouse=True, scope="session")
def lean_imports() -> Iterator[None]:
    """Let the processes of the tests import TensorFlow in less time: see support/lean/sitecustomize.py."""
    before = os.environ.get("PYTHONPATH")
    lean = str(Path(__file__).parent / "support" / "lean")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [lean, before]))
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(autouse=True)
def as_before(lean_imports: None, state_dir: Path) -> Iterator[None]:
    """Fail a test that changes what the tests of its process share."""
    from process_wide import restored

    with restored():
        yield
    kept = list(state_dir.glob("runs/*/kept.json"))
    for path in kept:
        path.unlink()
    assert not kept, f"a later test would attach to what this one has kept: own_state_dir ({kept})"


def _threads() -> set[threading.Thread]:
    """Return the threads of tfmagic's that end with what they serve: a launcher is for all tests, for example."""
    lasting = ("tfmagic-reaper", "tfmagic-ray", "tfmagic-kept-memory")
    found = {thread for thread in threading.enumerate() if thread.name.startswith("tfmagic")}
    return {thread for thread in found if thread.name not in lasting}


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves task processes, threads or environment variables behind."""
    keep = {"cluster_of_module", "pair", "shared_kernel", "shell"} & set(request.fixturenames)
    before = (_task_processes(), set(threading.enumerate()), _variables())
    yield
    if keep:
        return
    wait_until(lambda: _task_processes() <= before[0], ENDED_S)
    wait_until(lambda: _threads() <= before[1], ENDED_S)
    assert _variables() == before[2]


def _variables() -> dict[str, str]:
    """Return the environment, without what pytest and, before its version 7, ipykernel set."""
    others = ("PYTEST_CURRENT_TEST", "PYDEVD_USE_FRAME_EVAL")
    return {name: value for name, value in os.environ.items() if name not in others}


def _task_processes() -> set[int]:
    """Return the pids below our launchers: task processes and the processes that they started."""
    from tfmagic.system.processes import children, descendants  # psutil reads all of /proc: 2 ms a test

    reapers = [pid for pid in children(os.getpid()) if b"launcher.main" in _command(pid)]
    launchers = [pid for reaper in reapers for pid in children(reaper)]
    return {pid for launcher in launchers for pid in descendants(launcher)}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


class Notebook:
    """A real IPython shell with the extension loaded; `run` types cells into it."""

    def __init__(self, shell: Any):
        self.shell = shell

    @property
    def magics(self) -> Any:
        """The clusters of the extension that is loaded now: `%unload_ext` and `%load_ext` make others."""
        return self.shell.magics_manager.registry["TFClusterMagics"].notebook

    @property
    def ns(self) -> dict[str, Any]:
        return self.shell.user_ns

    def run(self, cell: str) -> str:
        """Run a cell as typed and return its standard output. Raise what the cell raises."""
        out = io.StringIO()
        with redirect_stdout(out):
            line, newline, body = cell.partition("\n")
            if line.startswith("%%"):
                name, _, rest = line[2:].partition(" ")
                self.shell.run_cell_magic(name, rest, body + newline)
            elif line.startswith("%"):
                name, _, rest = line[1:].partition(" ")
                self.shell.run_line_magic(name, rest)
            else:
                self.shell.run_cell(cell, store_history=False).raise_error()
        return out.getvalue()

    def cluster(self, name: str = "default") -> Any:
        return self.magics.clusters[name]


@pytest.fixture(scope="session")
def shell() -> Iterator[Notebook]:
    """Return the one shell of the session: IPython allows only one."""
    from IPython.core.interactiveshell import InteractiveShell
    from process_wide import other_shell

    with other_shell(None, sys.modules["__main__"]):  # for other tests there is none
        ip = InteractiveShell.instance()
        ip.run_line_magic("load_ext", "tfmagic")
        notebook = Notebook(ip)
    yield notebook
    with other_shell(ip, ip.user_module):
        notebook.magics.stop_all()


@pytest.fixture
def notebook(shell: Notebook) -> Iterator[Notebook]:
    """Return a shell without variables and clusters: that of the process, during the test."""
    from process_wide import other_shell

    with other_shell(shell.shell, shell.shell.user_module):
        shell.shell.reset(new_session=False)
        yield shell
        shell.magics.stop_all()
        shell.magics.clusters.clear()
        shell.magics.detached._jobs.clear()  # jobs without a waiter


@pytest.fixture(scope="session")
def kept_kernels() -> Iterator[list[Kernel]]:
    """Return a list of at most one kernel, which the last test that used one has left alive."""
    kept: list[Kernel] = []
    yield kept
    for made in kept:
        made.close()


@contextmanager
def lend_kernel(kept: list[Kernel]) -> Iterator[Kernel]:
    """Yield the kept kernel, or a new one, and keep it again if the test has not ended it."""
    from kernels import Kernel

    used = kept.pop() if kept else Kernel()
    used.outputs(used.client.execute("%load_ext tfmagic", store_history=False))
    yield used
    if not kept and used.serves_others():
        kept.append(used)
    else:
        used.close()


@pytest.fixture
def kernel(kept_kernels: list[Kernel]) -> Iterator[Kernel]:
    """Return a kernel without variables and clusters, and with the extension loaded. A test can end it."""
    with lend_kernel(kept_kernels) as lent:
        yield lent


@pytest.fixture(scope="module")
def shared_kernel(kept_kernels: list[Kernel]) -> Iterator[Kernel]:
    """Return one kernel for a module, with the extension loaded and two workers running."""
    with lend_kernel(kept_kernels) as lent:
        lent.run("%tfcluster start --workers 2")
        yield lent


@pytest.fixture(scope="session")
def lessons() -> Iterator[Lessons]:
    """Return a kernel for the notebooks of the course."""
    from lessons import Lessons

    made = Lessons(Path(__file__).parents[1] / "notebooks")
    yield made
    made.close()


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """Return the process that runs `tfmagic` commands."""
    from commands import Commands

    made = Commands()
    yield made
    made.close()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a plain kernel and one with a task, which run the same programs: see tests/same."""
    from pairs import Pair

    made = Pair(tmp_path_factory.mktemp("same"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[RayNodes]:
    """Return a Ray cluster of this machine with a head of 8 CPUs, for a module; tests can add nodes."""
    from ray_nodes import RayNodes

    from tfmagic.backends.remote import driver_client

    with RayNodes() as nodes:
        nodes.start(cpus=8)
        yield nodes
        driver_client.close_idle()  # Ray's part of a driver listens


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return Debian's Chromium, for a module."""
    from pages import ARGUMENTS, chromium
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS, headless=True)
        yield made
        made.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a Jupyter server, for a module."""
    from pages import Server

    server = Server(tmp_path_factory.mktemp("lab"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def pages(browser: Any, lab: Server) -> Iterator[Pages]:
    """Share one browser context, so that JupyterLab's megabytes of scripts are fetched and compiled once."""
    from pages import Pages

    made = browser.new_context(viewport={"width": 1280, "height": 1000})
    yield Pages(made, lab)
    made.close()
