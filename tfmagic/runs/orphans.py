"""What runs have left behind: noted while they live, found and ended when their kernel is gone.

    <run>/processes.jsonl    a line for each process of ours: {"role", "pid", "start", "boot", "mark"}

Normally nothing is left: kernel, keeper and launcher each end the rest. This is for the case that all of
them were killed together, or stopped. Processes are known by their identity (pid, start time, boot), by
descent from one that is, or by the mark: a random word, new for each launcher, in the environment that
whatever a task starts inherits. Never by a name, never another user's, and none of a run whose kernel lives.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfmagic.runs.folder import RunFolder, kernel_lives
from tfmagic.system import files
from tfmagic.system.process_identity import (
    Identity,
    Stat,
    from_json,
    kill_all,
    read_stat,
    this_boot,
)

MARK = "TFMAGIC_LAUNCHER"  # the environment variable
_END_S = 2.0
_FILE = "processes.jsonl"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that outlived its kernel.

    Attributes:
        run: The name of the run folder.
        role: A task's name, "keeper" or "launcher"; "" for what these have started.
        process: Which one it is.
    """

    run: str
    role: str
    process: Identity


@dataclass(frozen=True, slots=True)
class _Note:
    role: str
    process: Identity
    mark: str


def note_process(run: RunFolder, role: str, process: Identity, mark: str) -> None:
    """Note a process of a run. A full disk costs the note, not the run."""
    line = json.dumps({"role": role, **process.as_json(), "mark": mark}) + "\n"
    with contextlib.suppress(OSError):
        files.append(run.folder / _FILE, line)


def lineage(pid: int) -> tuple[Identity, ...]:
    """A process, its parent and its grandparent; fewer where one of them has ended."""
    found: list[Identity] = []
    while len(found) < 3 and (stat := read_stat(pid)) is not None:
        found.append(_identity(stat))
        pid = stat.parent
    return tuple(found)


def find(base: Path) -> list[Leftover]:
    """The processes that live although the kernel of their run is gone. Changes nothing."""
    return [left for run in _abandoned(base) for left in _living(run)]


def reap(base: Path) -> list[Leftover]:
    """SIGKILL what `find` finds, until nothing is found; what was ended."""
    return [left for run in _abandoned(base) for left in _reap_run(run)]


def _reap_run(run: RunFolder) -> list[Leftover]:
    seen: dict[Identity, Leftover] = {}

    def look() -> list[Identity] | None:
        seen.update({left.process: left for left in _living(run)})
        return [process for process in seen if process.alive] or None

    killed = kill_all(look, _END_S)
    if look() is None:  # not to be looked at again
        run.clear_scratch()
        with contextlib.suppress(OSError):
            (run.folder / _FILE).unlink()
    return [seen[process] for process in killed]


def end_marked(mark: str) -> None:
    """SIGKILL whatever inherited this mark, until there is none. For when nobody else is left to do it."""

    def look() -> list[Identity] | None:
        found = [s for s in _our_processes() if s.pid != os.getpid() and _has_mark(s.pid, {mark})]
        return [_identity(stat) for stat in found] or None

    kill_all(look, _END_S)


def _abandoned(base: Path) -> list[RunFolder]:
    """Runs with notes of ours, whose kernel is gone. Notes that somebody else wrote might name anything."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted((base / "runs").glob(f"*/{_FILE}")):
            if path.stat().st_uid == os.getuid() and not kernel_lives(RunFolder(path.parent)):
                found.append(RunFolder(path.parent))
    return found


def _living(run: RunFolder) -> list[Leftover]:
    notes = [note for note in _notes(run) if note.process.boot == this_boot()]
    marks = {note.mark for note in notes if note.mark}
    if not notes or os.environ.get(MARK, "") in marks:  # we are one of its descendants
        return []
    stats = {stat.pid: stat for stat in _our_processes()}
    roles = {
        note.process.pid: note.role
        for note in notes
        if note.process.pid in stats and stats[note.process.pid].start == note.process.start
    }
    found = set(roles) | {pid for pid in stats if pid not in roles and _has_mark(pid, marks)}
    found |= {s.pid for s in stats.values() if s.session in roles or s.group in roles}
    while more := {s.pid for s in stats.values() if s.parent in found} - found:
        found |= more
    found -= {0, 1, os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [Leftover(str(run), roles.get(pid, ""), _identity(stats[pid])) for pid in sorted(found)]


def _notes(run: RunFolder) -> Iterator[_Note]:
    with contextlib.suppress(OSError):
        for line in (run.folder / _FILE).read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that a crash cut short
                content = json.loads(line)
                yield _Note(str(content["role"]), from_json(content), str(content.get("mark", "")))


def _our_processes() -> Iterable[Stat]:
    """The living processes of this user."""
    user = os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                stat = read_stat(int(name)) if os.stat(f"/proc/{name}").st_uid == user else None
                if stat is not None and stat.state not in "ZX":
                    yield stat


def _has_mark(pid: int, marks: set[str]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read().split(b"\0")
    except OSError:
        return False
    return any(f"{MARK}={mark}".encode() in environ for mark in marks)


def _identity(stat: Stat) -> Identity:
    return Identity(stat.pid, stat.start, this_boot())
