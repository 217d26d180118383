"""Finds and ends processes that outlived the kernel of their run.

    <run>/processes.jsonl    a line for each process of tfmagic's: {"role", "pid", "start", "boot", "mark"}

The kernel, the reaper and the launcher each end the other processes of a run. This module is for the case
that all three were killed together, or stopped. `tfmagic reap`, the doctor and each new run call it. It knows
a process by its identity (pid, start time, boot), by descent from such a process, or by the mark: a random
word, new for each launcher, in the environment that every process below it inherits. It never goes by a
name, and touches no process of another user, nor a run whose kernel lives or can live on another machine.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfmagic.runs.folder import RunFolder
from tfmagic.runs.kernels import KernelState, kernel_state
from tfmagic.system import files
from tfmagic.system.process_identity import Identity, Stat, from_json, kill_all, read_stat, this_boot

MARK = "TFMAGIC_LAUNCHER"  # the environment variable
NO_MARK = "0" * 32  # of a process that gets one later
_END_S = 2.0
_FILE = "processes.jsonl"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that outlived its kernel."""

    run: str  #: The name of the run folder.
    role: str  #: A task's name, "reaper" or "launcher"; "" for a process that one of these has started.
    process: Identity


def new_mark() -> str:
    """Return a mark for the processes below a new launcher."""
    return secrets.token_hex(len(NO_MARK) // 2)


def note_process(run: RunFolder, role: str, process: Identity, mark: str) -> None:
    """Note a process of a run."""
    with contextlib.suppress(OSError):  # a full disk
        run.note(_FILE, json.dumps({"role": role, **process.as_json(), "mark": mark}) + "\n")


def noted(run: RunFolder) -> dict[str, Identity]:
    """Return the last process that was noted for each role of a run: a task's name, reaper or launcher."""
    return {role: process for role, process, _ in _read_notes(run)}


def lineage(pid: int) -> tuple[Identity, ...]:
    """Return a process, its parent and its grandparent; fewer where one of them has ended."""
    found: list[Identity] = []
    while len(found) < 3 and (stat := read_stat(pid)) is not None:
        found.append(stat.identity)
        pid = stat.parent
    return tuple(found)


def find(base: Path) -> list[Leftover]:
    """Return the processes that live although the kernel of their run is gone. Change nothing."""
    return [left for run in _abandoned(base) for left in _living(run)]


def reap(base: Path) -> list[Leftover]:
    """Kill what `find` finds until it finds nothing; return what was killed."""
    return [left for run in _abandoned(base) for left in _reap_run(run)]


def _reap_run(run: RunFolder) -> list[Leftover]:
    seen: dict[Identity, Leftover] = {}

    def look() -> list[Identity] | None:
        seen.update({left.process: left for left in _living(run)})
        return [process for process in seen if process.alive] or None

    killed = kill_all(look, _END_S)
    if look() is None:  # then the run need not be searched again
        run.clear_scratch()
        with contextlib.suppress(OSError):
            (run.folder / _FILE).unlink()
    return [seen[process] for process in killed]


def end_marked(mark: str) -> None:
    """Kill every process that inherited this mark, but this one. For a kernel whose launcher has died."""

    def look() -> list[Identity] | None:
        found = [s for s in _our_processes() if s.pid != os.getpid() and _has_mark(s.pid, {mark})]
        return [stat.identity for stat in found] or None

    kill_all(look, _END_S)


def _abandoned(base: Path) -> list[RunFolder]:
    """Return runs of this user with notes, whose kernel is gone. Another user's notes could name anything."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted((base / "runs").glob(f"*/{_FILE}")):
            run = RunFolder(path.parent)
            with contextlib.suppress(FileNotFoundError):  # it was pruned just now; the others are looked at
                if path.lstat().st_uid == os.getuid() and kernel_state(run) is KernelState.GONE:
                    found.append(run)
    return found


def _living(run: RunFolder) -> list[Leftover]:
    notes = [note for note in _read_notes(run) if note[1].boot == this_boot()]
    marks = {mark for _, _, mark in notes if mark}
    if not notes or os.environ.get(MARK, "") in marks:  # this process is a descendant of the run
        return []
    stats = {stat.pid: stat for stat in _our_processes()}
    starts = {pid: stat.start for pid, stat in stats.items()}
    roles = {process.pid: role for role, process, _ in notes if starts.get(process.pid) == process.start}
    found = set(roles) | {pid for pid in stats if pid not in roles and _has_mark(pid, marks)}
    found |= {s.pid for s in stats.values() if s.session in roles or s.group in roles}
    while more := {s.pid for s in stats.values() if s.parent in found} - found:
        found |= more
    found -= {0, 1, os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [Leftover(str(run), roles.get(pid, ""), stats[pid].identity) for pid in sorted(found)]


def _read_notes(run: RunFolder) -> Iterator[tuple[str, Identity, str]]:
    """Yield the role, identity and mark of each noted process."""
    for line in files.text_of(run.folder / _FILE).splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a crash cut the line short
            content = json.loads(line)
            yield str(content["role"]), from_json(content), str(content.get("mark", ""))


def _our_processes() -> Iterable[Stat]:
    """Yield the living processes of this user."""
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            stat = read_stat(pid) if os.stat(f"/proc/{pid}").st_uid == os.getuid() else None
            if stat is not None and stat.state not in "ZX":
                yield stat


def _has_mark(pid: int, marks: set[str]) -> bool:
    with contextlib.suppress(OSError):
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return any(f"{MARK}={mark}".encode() in environ for mark in marks)
    return False
