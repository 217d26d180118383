"""The kernel of a run: whether it lives, and which runs are deleted since it does not.

Machines and containers can share the state folder, as in a home folder on a network. Of a kernel elsewhere it
is not known whether it lives. So nothing of its run is touched until no file in it has changed for
`QUIET_DAYS` more than the usual age.
"""

import contextlib
import enum
import math
import os
import shutil
import time
from pathlib import Path

from tfmagic.runs.folder import RunFolder, read_meta
from tfmagic.runs.kept import is_kept
from tfmagic.system.process_identity import Identity, booted_at, from_json, this_machine

QUIET_DAYS = 3  # a kernel writes its status every 10 s; its machine can be asleep over a weekend


class KernelState(enum.Enum):
    """What is known here of the kernel that started a run, or attached to it last."""

    LIVES = "lives"
    GONE = "gone"
    ELSEWHERE = "elsewhere"  #: It belongs to another machine or container: whether it lives is unknown.


def kernel_of(run: RunFolder) -> Identity | None:
    """Return the process that has started the run or attached to it; None where run.json does not name it."""
    try:
        return from_json(read_meta(run.folder))
    except (ValueError, KeyError, TypeError):
        return None


def kernel_state(run: RunFolder) -> KernelState:
    """Return the state of the kernel of a run; LIVES where run.json does not name it."""
    if (kernel := kernel_of(run)) is None:
        return KernelState.LIVES  # a kernel is just creating it
    if kernel.is_elsewhere and not _was_rebooted(kernel, run.folder):
        return KernelState.ELSEWHERE
    return KernelState.LIVES if kernel.alive else KernelState.GONE


def _was_rebooted(kernel: Identity, folder: Path) -> bool:
    """Check whether this machine has been restarted since. Copies of a virtual machine share name and id."""
    is_named_alike = bool(kernel.machine) and (kernel.host, kernel.machine) == this_machine()
    return is_named_alike and last_change(folder) < booted_at()


def kernel_lives(run: RunFolder) -> bool:
    """Check whether the kernel of a run is known to live."""
    return kernel_state(run) is KernelState.LIVES


def host_elsewhere(run: RunFolder) -> str:
    """Return the host of a kernel of which it is not known whether it lives; "" for any other kernel."""
    if kernel_state(run) is not KernelState.ELSEWHERE:
        return ""
    kernel = kernel_of(run)
    return kernel.host if kernel is not None and kernel.host else "another machine"


def last_change(folder: Path) -> float:
    """Return when a file of a run was last written, in seconds since the epoch; inf where it is unknown."""
    found = [-math.inf]
    try:
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
                found.append(entry.stat(follow_symlinks=False).st_mtime)
    except OSError:  # of a network file system
        return math.inf
    return max(found)


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder and its subfolders; links are not followed."""
    sizes = 0
    for path in (f"{at}/{name}" for at, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(OSError):
            sizes += os.lstat(path).st_size
    return sizes


def old_runs(base: Path, keep_days: float, keep_bytes: int) -> list[RunFolder]:
    """Return the oldest runs that exceed the age or the total size, and whose kernel is gone.

    A run whose tasks outlive their kernel stays.
    """
    found, old = [], []
    for folder in (base / "runs").glob("*"):
        try:
            found.append((float(read_meta(folder)["started"]), folder_bytes(folder), RunFolder(folder)))
        except (ValueError, KeyError, TypeError):
            continue  # a kernel is just creating it, or it is not a run
    total = sum(size for _, size, _ in found)
    for started, size, run in sorted(found, key=lambda entry: entry[0]):
        too_old, too_large = time.time() - started > keep_days * 86400, total > keep_bytes
        if (too_old or too_large) and _is_over(run, 0 if too_large else keep_days):
            old.append(run)
            total -= size
    return old


def _is_over(run: RunFolder, keep_days: float) -> bool:
    """Check whether nothing uses a run any more."""
    state = kernel_state(run)
    if state is KernelState.ELSEWHERE:
        return time.time() - last_change(run.folder) > (keep_days + QUIET_DAYS) * 86400
    return state is KernelState.GONE and not is_kept(run.folder)


def prune_runs(base: Path, keep_days: float, keep_bytes: int) -> list[RunFolder]:
    """Delete the `old_runs`; return them."""
    old = old_runs(base, keep_days, keep_bytes)
    for run in old:
        shutil.rmtree(run.folder, ignore_errors=True)
    return old
