"""The state folder: the only place that knows its layout.

    <state dir>/runs/<run>/run.json          who started it, when, its cluster and its shape
    <state dir>/runs/<run>/processes.jsonl   its processes: see `tfmagic.runs.orphans`
    <state dir>/runs/<run>/<task>.log        everything that the task wrote, in its order
    <state dir>/runs/<run>/<task>.stacks     the Python stacks that it was asked for
    <state dir>/runs/<run>/<task>.displays   its rich displays, and
    <state dir>/runs/<run>/cells.jsonl       the cells: see `tfmagic.runs.cell_records`
    <state dir>/runs/<run>/<task>-<n>.scratch   temporary files of its n-th process, deleted with that

Folders are 0700 and files 0600. Old runs are pruned by age and size when a new one starts; a run
whose kernel is alive is left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from tfmagic.errors import ClusterSpecError, LaunchError
from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.system import files
from tfmagic.system.process_identity import from_json, identify

SCRATCH = ".scratch"
GAVE_UP = 1  # the exit code of a task that ended itself
_LAST_WORDS = "--- the task ends itself: "


def file_size(path: str | os.PathLike[str]) -> int:
    """The length of a file in bytes; 0 where there is none yet."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def state_dir(configured: str = "") -> Path:
    """``TFMAGIC_STATE_DIR``, else `configured`, else the platform's folder for state."""
    chosen = os.environ.get("TFMAGIC_STATE_DIR") or configured
    return Path(chosen).expanduser() if chosen else platformdirs.user_state_path("tfmagic")


class RunFolder:
    """The folder of one cluster's life."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._log_paths: dict[TaskId, Path] = {}
        self._log_names: dict[TaskId, str] = {}

    def __str__(self) -> str:
        return self.folder.name

    @property
    def cluster(self) -> str:
        """The name of the cluster; "" where the folder does not say."""
        try:
            return str(json.loads((self.folder / "run.json").read_text())["cluster"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """The tasks that have a log."""
        found = []
        for path in self.folder.glob("*-*.log"):
            with contextlib.suppress(ClusterSpecError):  # a file of somebody else's
                found.append(parse_task(path.stem))
        return tuple(sorted(found))

    def log_path(self, task: TaskId) -> Path:
        path = self._log_paths.get(task)
        if path is None:
            path = self._log_paths[task] = self.folder / f"{task.name}.log"
        return path

    def log_bytes(self, task: TaskId) -> int:
        """The length of the task's log."""
        name = self._log_names.get(task)
        if name is None:
            name = self._log_names[task] = str(self.log_path(task))
        return file_size(name)

    def stacks_path(self, task: TaskId) -> Path:
        return self.folder / f"{task.name}.stacks"

    def last_words(self, task: TaskId, attempt: int) -> str:
        """What a task process wrote before it gave itself up; "" if it did not. See `write_last_words`."""
        try:
            text = self.stacks_path(task).read_text("utf-8", "replace")
        except OSError:
            return ""
        _, found, words = text.rpartition(attempt_mark(attempt))[2].rpartition(_LAST_WORDS)
        return words.strip() if found else ""

    def clear_scratch(self, name: str = "*") -> None:
        """Delete what the processes of this run, or one of them, needed while they lived."""
        for folder in self.folder.glob(f"{name}{SCRATCH}"):
            shutil.rmtree(folder, ignore_errors=True)

    def open_log(self, task: TaskId) -> int:
        """A descriptor that appends to the task's log."""
        return files.open_to_append(self.log_path(task))


def write_last_words(stacks_path: str, why: str) -> None:
    """Note why this task process ends now, for whoever tells of its end.

    By the path: the cell may have closed every descriptor that there was.
    """
    with contextlib.suppress(OSError):  # the disk is full
        files.append(stacks_path, f"\n{_LAST_WORDS}{' '.join(why.split())}\n")


def attempt_mark(attempt: int) -> str:
    """The line that begins the stacks of a task's attempt."""
    return f"--- attempt {attempt} ---"


def create_run(base: Path, cluster: str, facts: Mapping[str, object]) -> RunFolder:
    """A new, empty run folder, proved to be writable.

    Raises:
        LaunchError: The folder cannot be made or written.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    try:
        runs = _make_private(base)
        folder = _make_unique(runs, f"{stamp}-{cluster}-{os.getpid()}")
        kernel = identify(os.getpid())
        assert kernel is not None
        meta = {**kernel.as_json(), "started": time.time(), "cluster": cluster, **facts}
        path = folder / "run.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(meta))
    except OSError as error:
        raise _unwritable(base, error) from error
    return RunFolder(folder)


def _make_private(base: Path) -> Path:
    """The folder of all runs, for this user alone; so is the state folder where we make it."""
    runs = base / "runs"
    if not base.exists():
        base.parent.mkdir(parents=True, exist_ok=True)
        base.mkdir(mode=0o700, exist_ok=True)
    runs.mkdir(exist_ok=True, mode=0o700)
    if runs.stat().st_mode & 0o077:  # made by other hands
        runs.chmod(0o700)
    return runs


def _make_unique(runs: Path, name: str) -> Path:
    for suffix in ("", *(f".{n}" for n in range(2, 1000))):
        folder = runs / (name + suffix)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"too many runs called {name}")


def check_writable(base: Path) -> None:
    """Refuse a state folder that cannot be written.

    Raises:
        LaunchError: It cannot, and why.
    """
    try:
        probe = _make_private(base) / f".probe-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise _unwritable(base, error) from error


def _unwritable(base: Path, error: OSError) -> LaunchError:
    return LaunchError(
        f"the state folder {base} cannot be written ({error.strerror or error}); nothing was "
        "started. Free or repair it, or set TFMAGIC_STATE_DIR to a folder that can."
    )


def find_runs(base: Path) -> list[RunFolder]:
    """The runs that are kept, the newest last."""
    return [
        RunFolder(folder) for folder in sorted((base / "runs").glob("*")) if (folder / "run.json").exists()
    ]


def kernel_lives(run: RunFolder) -> bool:
    """Whether the process that started the run lives; also where the folder does not say which one."""
    try:
        meta = json.loads((run.folder / "run.json").read_text())
        if "start" not in meta:  # of an older version
            return os.path.exists(f"/proc/{int(meta['pid'])}")
        return from_json(meta).alive
    except (OSError, ValueError, KeyError, TypeError):
        return True  # half-made at this very moment


def old_runs(base: Path, keep_days: float, keep_bytes: int) -> list[RunFolder]:
    """The oldest runs that are over age or over the total size, and whose kernel is gone."""
    found, old = [], []
    for folder in (base / "runs").glob("*"):
        try:
            meta = json.loads((folder / "run.json").read_text())
            size = sum(entry.stat().st_size for entry in os.scandir(folder))
            found.append((float(meta["started"]), size, folder))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # half-made by a kernel at this very moment, or not ours
    total = sum(size for _, size, _ in found)
    for started, size, folder in sorted(found, key=lambda run: run[0]):
        too_old = time.time() - started > keep_days * 86400
        if (too_old or total > keep_bytes) and not kernel_lives(RunFolder(folder)):
            old.append(RunFolder(folder))
            total -= size
    return old


def prune_runs(base: Path, keep_days: float, keep_bytes: int) -> list[RunFolder]:
    """Delete them; which they were."""
    old = old_runs(base, keep_days, keep_bytes)
    for run in old:
        shutil.rmtree(run.folder, ignore_errors=True)
    return old
