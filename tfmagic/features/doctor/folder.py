"""Check whether the state folder can take the tasks' logs, and what earlier kernels left in it."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

from tfmagic.errors import LaunchError
from tfmagic.features.doctor.findings import Case, Finding, note, refused, trouble
from tfmagic.runs import folder as runs
from tfmagic.runs import kernels, orphans
from tfmagic.runs.cell_records import LOST, read_records
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.kernels import KernelState
from tfmagic.system.advice import Step
from tfmagic.system.memory import format_bytes

_TIGHT_BYTES = 1 << 30
_FULL_BYTES = 100 << 20
NETWORK = re.compile(
    r"nfs\d*|cifs|smb\w*|9p|afs|ceph|lustre|beegfs|gpfs|glusterfs|fuse\.(sshfs|\w*gluster\w*)"
)


def state_folder(case: Case) -> Iterator[Finding]:
    """Check whether the folder is writable, how much space it has, its owner and its file system."""
    base = runs.state_dir(case.setting("state_dir"))
    what = f"state folder {base}"
    try:
        runs.check_writable(base)
    except LaunchError as error:
        yield refused(what, str(error))
        return
    found = list(_problems(case, base))
    yield from found or [Finding(f"{what}: {format_bytes(_free_bytes(base))} free")]


def _free_bytes(base: Path) -> int:
    system = os.statvfs(base)
    return system.f_bavail * system.f_frsize


def _problems(case: Case, base: Path) -> Iterator[Finding]:
    free, tasks = _free_bytes(base), len(case.shape.tasks)
    logs = case.setting("max_log_bytes") * tasks
    what = f"state folder {base}: {format_bytes(free)} free"
    fix = f"make room, or put it elsewhere:  {_in('/path/on/another/disk')}"
    if free < _FULL_BYTES:
        yield trouble(what, f"the tasks' output will soon be lost: {fix}")
    elif free < max(_TIGHT_BYTES, logs):
        yield note(
            what,
            f"the logs of {tasks} tasks can take {format_bytes(logs)}: {fix}   or keep less:  "
            f"{Step('configure', max_log_bytes=free // 2 // tasks)}",
        )
    kind = file_system(base)
    if NETWORK.fullmatch(kind):
        yield note(
            f"state folder {base} is on a network file system ({kind})",
            "it is slow there, lines that a task and its children append can be torn (open(2), O_APPEND), "
            "and processes that a killed kernel left are found on its own machine only: put it on a local "
            f"disk:  {_in(f'/tmp/tfmagic-{os.getuid()}')}",
        )


def _in(folder: str) -> Step:
    return Step("set", TFMAGIC_STATE_DIR=folder)


def file_system(path: Path) -> str:
    """Return the type of the file system that holds a path; "" if it is unknown."""
    mounts, resolved = psutil.disk_partitions(all=True), path.resolve()
    over = [mount for mount in reversed(mounts) if resolved.is_relative_to(mount.mountpoint)]
    # the last mount on a place counts
    return max(over, key=lambda mount: len(mount.mountpoint)).fstype if over else ""


def leftovers(case: Case) -> Iterator[Finding]:
    """Find processes and logs that ended kernels left. Reads every run, so it is too slow before a start."""
    base = runs.state_dir(case.setting("state_dir"))
    found = orphans.find(base)
    if found:
        pids = ", ".join(str(left.process.pid) for left in found[:5])
        yield note(
            f"{len(found)} process{'es' if len(found) > 1 else ''} of kernels that are gone: pid {pids}",
            f"the next start ends them:  {Step('clean up')}",
        )
    states = {run: kernels.kernel_state(run) for run in runs.find_runs(base)}
    if gone := [run for run, state in states.items() if state is KernelState.GONE]:
        yield _kept_runs(case, gone)
    if far := [run for run, state in states.items() if state is KernelState.ELSEWHERE]:
        hosts = ", ".join(sorted({kernels.host_elsewhere(run) for run in far}))
        yield Finding(
            f"{_count(len(far), 'run')} of other machines or containers ({hosts}); whether they live is not "
            f"known here, so they are deleted {kernels.QUIET_DAYS} days later than runs of this machine"
        )


def _kept_runs(case: Case, gone: list[RunFolder]) -> Finding:
    """Describe the logs of ended kernels, which of them were cut short, and when they are deleted."""
    size = sum(kernels.folder_bytes(run.folder) for run in gone)
    what = f"{_count(len(gone), 'earlier run')}, {format_bytes(size)} in {gone[0].folder.parent}"
    cut_short = [run for run in gone if any(r.verdict == LOST for r in read_records(run))]
    days, limit = case.setting("keep_runs_days"), case.setting("keep_runs_bytes")
    kept = (
        f"runs go after {days:g} days or above {format_bytes(limit)} in all "
        "(TFCluster.keep_runs_days, keep_runs_bytes)"
    )
    if not cut_short:
        return Finding(f"{what}; {kept}")
    names = ", ".join(map(str, cut_short[-3:]))
    return note(
        f"{what}; in {_count(len(cut_short), 'run')} the kernel ended before the cell: {names}",
        f"{Step('attach', cut_short[-1])}   shows what there is; {kept}",
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("s" if number > 1 else "")
