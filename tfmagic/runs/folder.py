"""The state folder and the run folders in it: paths, creation, and deletion of old runs.

    <state dir>/runs/<run>/run.json          who started it, when, its cluster and its shape
    <state dir>/runs/<run>/processes.jsonl   its processes: see `tfmagic.runs.orphans`
    <state dir>/runs/<run>/<task>.log        everything that the task wrote, in order (`RunFolder.put_logs`)
    <state dir>/runs/<run>/<task>.stderr     which parts of the log its Python error stream has written
    <state dir>/runs/<run>/<task>.stacks     the Python stacks that it was asked for
    <state dir>/runs/<run>/<task>.displays   its rich displays, and
    <state dir>/runs/<run>/cells.jsonl       the cells: see `tfmagic.runs.cell_records`
    <state dir>/runs/<run>/hints.jsonl       hints on them: see `tfmagic.runs.given_hints`
    <state dir>/runs/<run>/timeline.jsonl    what the tasks did, and when: see `tfmagic.features.pictures`
    <state dir>/runs/<run>/story.msgpack     what the loop saw and did: see `tfmagic.supervisor.story`
    <state dir>/runs/<run>/<task>-<n>.scratch   temporary files of its n-th process, deleted with it

Folders are 0700 and files 0600. When a run starts, old runs are deleted: see `tfmagic.runs.kernels`.
"""

import contextlib
import functools
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from tfmagic.errors import ClusterSpecError, LaunchError
from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.system import files
from tfmagic.system.process_identity import identify
from tfmagic.system.safe_path import user_name, why_replaceable

SCRATCH = ".scratch"
STDERR = ".stderr"
GAVE_UP = 1  # the exit code of a task that ended itself
_END_REASON = "--- the task ends itself: "


def file_size(path: str | os.PathLike[str]) -> int:
    """Return the length of a regular file in bytes, 0 if there is none yet."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def file_sizes(folder: str) -> dict[str, int]:
    """Return the length in bytes of each file in a folder, by name."""
    return {entry.name: entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()}


def append_text(path: str | Path, text: str) -> None:
    """Append to a file in one write. If it fails (full disk), the text is lost without an error."""
    with contextlib.suppress(OSError):
        files.append(path, text)


def state_dir(configured: str = "") -> Path:
    """Return ``TFMAGIC_STATE_DIR``, else `configured`, else the platform's folder for state.

    A user without a home (in a container, whose password file lacks it) gets one of the temporary folders.
    """
    chosen = os.environ.get("TFMAGIC_STATE_DIR") or configured
    try:
        return Path(chosen).expanduser() if chosen else platformdirs.user_state_path("tfmagic")
    except RuntimeError:
        return Path(tempfile.gettempdir(), f"tfmagic-{os.getuid()}")


class RunFolder:
    """The folder of one cluster, from its start to its end."""

    def __init__(self, folder: Path):
        self.folder, self._path = folder, os.fspath(folder)
        self.restored: bool = False  # deleted and created again, which was not reported yet
        self._notes: dict[str, str] = {}  # written by this process: the content of each file

    def __str__(self) -> str:
        return self.folder.name

    @property
    def cluster(self) -> str:
        """The name of the cluster; "" where run.json does not have it."""
        return str(read_meta(self.folder).get("cluster", ""))

    @property
    def notebook(self) -> str:
        """The notebook that started it, else the folder in which it was started; "" where none is known."""
        return str(read_meta(self.folder).get("notebook", ""))

    def is_of(self, folder: str) -> bool:
        """Check whether a notebook or a program in this folder, a real path, has started it."""
        return bool(self.notebook) and os.path.realpath(os.path.dirname(self.notebook)) == folder

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """The tasks that have a log, or the file of stacks that each process begins."""
        names = {path.stem for end in ("log", "stacks") for path in self.folder.glob(f"*-*.{end}")}
        return tuple(sorted(parse_task(name) for name in names if is_task_name(name)))

    @functools.cached_property
    def _logs(self) -> str:
        return str(read_meta(self.folder).get("logs") or self.folder)

    def put_logs(self, folder: Path) -> None:
        """Let the tasks of this run, before they start, write their logs into another folder."""
        self._logs = str(folder)
        self._change_meta(logs=self._logs)

    def take(self) -> None:
        """Note that this process has attached to the run."""
        kernel = identify(os.getpid())
        assert kernel is not None
        self._change_meta(**kernel.as_json(), notebook=_notebook())

    def _change_meta(self, **facts: object) -> None:
        meta = json.dumps({**read_meta(self.folder), **facts})
        files.replace_text(self.folder / "run.json", meta, 0o600)
        self._notes["run.json"] = meta

    def log_path(self, task: TaskId) -> Path:
        return Path(f"{self._logs}/{task.name}.log")

    def log_bytes(self, task: TaskId) -> int:
        """Return the length of the task's log."""
        return file_size(f"{self._logs}/{task.name}.log")

    def stacks_path(self, task: TaskId) -> Path:
        return self.folder / f"{task.name}.stacks"

    def end_reason(self, task: TaskId, attempt: int) -> str:
        """Return the text of `write_end_reason` in this attempt of the task, or ""."""
        text = files.text_of(self.stacks_path(task))
        _, found, reason = text.rpartition(attempt_mark(attempt))[2].rpartition(_END_REASON)
        return reason.strip() if found else ""

    def clear_scratch(self, name: str = "*") -> None:
        """Delete the temporary files of this run's processes, or of one of them."""
        for folder in self.folder.glob(f"{name}{SCRATCH}"):
            shutil.rmtree(folder, ignore_errors=True)

    def open_log(self, task: TaskId) -> int:
        """Return a descriptor that appends to the task's log."""
        self.restore()
        return files.open_to_append(self.log_path(task))

    def note(self, name: str, text: str) -> None:
        """Append to a file that `restore` writes again. Raise OSError if it fails."""
        self._notes[name] = self._notes.get(name, "") + text
        files.append(self.folder / name, text)

    def restore(self) -> None:
        """Create the folder again if it was deleted."""
        if os.path.exists(self._path):
            return
        self.restored = True
        with contextlib.suppress(LaunchError):  # the state folder has become another user's
            _make_private(self.folder.parent.parent)
            self.folder.mkdir(mode=0o700)
        for name, text in self._notes.items():
            append_text(self.folder / name, text)


def is_task_name(name: str) -> bool:
    """Check whether this is a task's name as tfmagic writes it; `int` alone accepts other digits, too."""
    try:
        return parse_task(name).name == name
    except (ClusterSpecError, ValueError):
        return False


def write_end_reason(stacks_path: str, reason: str) -> None:
    """Note in a task process why it ends itself now. By path, since the cell can have closed descriptors."""
    append_text(stacks_path, f"\n{_END_REASON}{' '.join(reason.split())}\n")


def attempt_mark(attempt: int) -> str:
    """Return the line that begins the stacks of a task's attempt."""
    return f"--- attempt {attempt} ---"


def create_run(base: Path, cluster: str, facts: Mapping[str, object], name: str = "") -> RunFolder:
    """Create an empty run folder with its run.json, called by the time and the cluster if not by `name`.

    Raise LaunchError where the folder cannot be created or written.
    """
    with _writing(base):
        name = name or f"{time.strftime('%Y%m%d-%H%M%S')}-{cluster}-{os.getpid()}"
        folder = _make_unique(_make_private(base), name)
        kernel = identify(os.getpid())
        assert kernel is not None
        run, meta = RunFolder(folder), {"started": time.time(), "cluster": cluster, "notebook": _notebook()}
        run.note("run.json", json.dumps({**kernel.as_json(), **meta, **facts}))
    return run


def _notebook() -> str:
    """Return the path of the notebook, as Jupyter's server or VS Code gives it, else the present folder."""
    of_code = vars(sys.modules["__main__"]).get("__vsc_ipynb_file__")
    found = os.environ.get("JPY_SESSION_NAME") or of_code
    try:
        return str(found or os.path.join(os.getcwd(), ""))
    except FileNotFoundError:  # the folder was deleted
        return ""


def check_writable(base: Path) -> None:
    """Refuse a state folder that cannot be written: raise LaunchError with the reason."""
    with _writing(base):
        probe = _make_private(base) / f".probe-{os.getpid()}"
        files.append(probe, "x")
        probe.unlink()


@contextlib.contextmanager
def _writing(base: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LaunchError(
            f"the state folder {base} cannot be written ({error.strerror or error}); nothing was "
            "started. Free or repair it, or set TFMAGIC_STATE_DIR to a folder that can."
        ) from error


def _make_private(base: Path) -> Path:
    """Return the folder of all runs, with access for this user alone; create it and the state folder."""
    runs = base / "runs"
    check_private(base)
    if not base.exists():
        for part in (*reversed(base.parents), base):  # whatever the umask is: others could replace it
            part.mkdir(mode=0o700, exist_ok=True)
    runs.mkdir(exist_ok=True, mode=0o700)
    check_private(base)  # another user can have been faster
    fd = os.open(runs, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_mode & 0o077:  # it was not created here
            os.fchmod(fd, 0o700)
    finally:
        os.close(fd)
    return runs


def check_private(base: Path) -> None:
    """Raise LaunchError for a state folder in which another user could replace the files of a run."""
    runs = base / "runs"
    with _writing(base):
        reason = why_replaceable(base)
        if not reason and os.path.lexists(runs):
            found = os.lstat(runs)
            if not stat.S_ISDIR(found.st_mode):
                reason = f"{runs} is not a folder"
            elif found.st_uid != os.geteuid():
                reason = f"{runs} belongs to {user_name(found.st_uid)}"
    if reason:
        raise LaunchError(
            f"the state folder {base} is not used: {reason}, so another user could put other files in the "
            "place of the logs. Correct the owner and the mode, or set TFMAGIC_STATE_DIR to a folder of your "
            f"own, such as /tmp/tfmagic-{os.geteuid()}"
        )


def _make_unique(runs: Path, name: str) -> Path:
    for suffix in ("", *(f".{n}" for n in range(2, 1000))):
        folder = runs / (name + suffix)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise FileExistsError(f"too many runs called {name}")


def find_runs(base: Path) -> list[RunFolder]:
    """Return the runs that are kept, the newest last."""
    return [
        RunFolder(folder) for folder in sorted((base / "runs").glob("*")) if (folder / "run.json").exists()
    ]


def find_run(base: Path, name: str = "") -> RunFolder:
    """Return the run of that name or beginning, else the newest of that cluster; without a name the newest.

    Raises:
        LookupError: There is none, or the beginning is that of several.
    """
    found = find_runs(base)
    if not found:
        raise LookupError(f"there is no run in {base / 'runs'}")
    if not name:
        return found[-1]
    exact = [run for run in found if str(run) == name]
    begins = exact or [run for run in found if str(run).startswith(name)]
    if len(begins) > 1:
        some = ", ".join(map(str, begins[:5])) + (", ..." if len(begins) > 5 else "")
        raise LookupError(f"{name!r} is the beginning of {len(begins)} runs: {some}")
    matches = begins or [run for run in found if run.cluster == name]
    if not matches:
        raise LookupError(f"there is no run or cluster {name!r} in {base / 'runs'}")
    return matches[-1]


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the content of run.json; {} where it is missing, half written, or not an object."""
    try:
        meta = json.loads(files.read_text(folder / "run.json"))
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}
