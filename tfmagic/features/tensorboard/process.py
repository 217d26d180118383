"""Start TensorBoard for a cluster (`Cluster.tensorboard`); it ends with the cluster or with the kernel.

    kernel ── start_killed_with_us ──→ TensorBoard ── info file: port ──→ TensorBoardProcess.url

Processes that TensorBoard starts end with it. TensorBoard's own `manager.start` is not used, because its
processes stay behind when the kernel ends. TensorBoard runs as if TensorFlow were not installed: measured
here, it answers after 1.1 s instead of 5.7 s, with 84 MB instead of 703 MB. The kernel imports only its
notebook view, which `%tensorboard` uses too.
"""

import contextlib
import http.client
import importlib.util
import json
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

from tfmagic.errors import LaunchError, TfmagicError
from tfmagic.runs import trace_folders
from tfmagic.runs.folder import SCRATCH, RunFolder
from tfmagic.system import files
from tfmagic.system.advice import Step
from tfmagic.system.helper_process import kill_session, start_killed_with_us

POINTER = "tensorboard.logdir"  # the file in which `tfmagic.logdir.tensorboard_dir` notes its folder
_START_S = 60.0
_ANSWER_S = 5.0  # for an answer of a running TensorBoard
_LOOK_S = 0.05
_PROGRAM = """\
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
sys.argv = ["tensorboard", *sys.argv[1:]]
from tensorboard.main import run_main
run_main()
"""


class TensorBoardProcess:
    """A TensorBoard that runs.

    Attributes:
        logdir: The folder that it shows.
        url: Its address.
    """

    def __init__(self, logdir: str, host: str, port: int, process: subprocess.Popen[bytes], run: RunFolder):
        self.logdir: str = logdir
        self.host: str = host
        self.port: int = port
        self._process, self._run = process, run

    def __repr__(self) -> str:
        return f"<TensorBoard {self.url} of {self.logdir}, {'running' if self.running else 'ended'}>"

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def at_work(self) -> bool:
        return False  # no task notices it

    def answers(self) -> bool:
        """Check whether it answers within 5 s: a stopped or stuck TensorBoard still has its port."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"{self.url}data/environment", timeout=_ANSWER_S):
                return self.running
        except (OSError, http.client.HTTPException):
            return False

    def shows(self, logdir: str, port: int | None, host: str) -> bool:
        """Return whether it shows this folder at this address; None stands for any port."""
        return self.logdir == logdir and self.host == host and port in (None, self.port)

    def show(self, height: int = 800) -> None:
        """Display it as ``%tensorboard`` does: in a frame of `height` pixels, or else its address.

        TENSORBOARD_PROXY_URL is honoured.
        """
        from tensorboard import notebook

        notebook.display(port=self.port, height=height)

    def close(self) -> None:
        """End it. Do nothing if it has ended."""
        kill_session(self._process)
        self._run.clear_scratch(_scratch_name())


def start_tensorboard(logdir: str, port: int | None, host: str, run: RunFolder) -> TensorBoardProcess:
    """Start TensorBoard, on a free port by default, and wait until it answers; see also `find_logdir`.

    Raises:
        TfmagicError: It is not installed.
        LaunchError: The port is taken, or it ended at once; the message has its last lines.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise TfmagicError(f"TensorBoard is not installed:  {Step('install', 'tensorboard')}")
    if port is not None:
        _check_port(host, port)
    scratch = run.folder / f"{_scratch_name()}{SCRATCH}"
    scratch.mkdir(mode=0o700, exist_ok=True)
    log = run.folder / "tensorboard.log"
    options = ["--logdir", logdir, "--host", host, "--port", str(port or 0), "--reload_interval", "2"]
    env = {**os.environ, "TMPDIR": str(scratch)}  # so that `%tensorboard` never finds a stale info file
    with open(files.open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as out:
        process = start_killed_with_us(
            "tfmagic-helper", _PROGRAM, *options, stdout=out.fileno(), stderr=out.fileno(), env=env
        )
    try:
        deadline = time.monotonic() + _START_S
        started = TensorBoardProcess(logdir, host, 0, process, run)
        while not started.answers():
            _check_life(process, log, deadline)
            time.sleep(_LOOK_S)
            with contextlib.suppress(OSError, ValueError, KeyError):  # not there yet, or half written
                info = scratch / ".tensorboard-info" / f"pid-{process.pid}.info"
                started.port = int(json.loads(info.read_text())["port"])
    except BaseException:
        kill_session(process)
        raise
    return started


def _scratch_name() -> str:
    return f"tensorboard-{os.getpid()}"


def find_logdir(logdir: str | None, run: RunFolder) -> str:
    """Return the named folder as a path, or by default the last one that a task of the run has noted.

    Without one, it is that of the traces of cells. Raise TfmagicError where there is none.
    """
    if logdir is None:
        logdir = files.text_of(run.folder / POINTER)
        if not logdir and (traces := trace_folders.find_traces(run)):
            return traces
        if not logdir:
            raise TfmagicError(
                "no cell of this cluster has asked for tfmagic.logdir.tensorboard_dir(base) yet; say which "
                f"folder:  {Step('tensorboard', 'LOGDIR')}"
            )
    if "://" in logdir:
        return logdir
    path = Path(logdir).expanduser().absolute()
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise TfmagicError(f"TensorBoard shows a folder, and {path} {what}")
    return str(path)


def _check_port(host: str, port: int) -> None:
    """Raise a short error for a port that is taken: TensorBoard's own fills a page."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise LaunchError(
                f"TensorBoard cannot have port {port} at {host}: {error}. Leave --port out for a free one"
            ) from error


def _check_life(process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
    """Raise `LaunchError` if TensorBoard has ended, or the time is up."""
    if (code := process.poll()) is None and time.monotonic() < deadline:
        return
    lines = files.read_text(log).splitlines()[-5:]
    what = f"did not answer within {_START_S:.0f} s" if code is None else f"ended with exit code {code}"
    raise LaunchError("\n".join([f"TensorBoard {what}:", *lines]))
