"""The folder of tfmagic's own code, and the only place that cuts frames out of what users see of their code.

    task       launcher ─ program ──────────┐                     ┌─ signal handler
                                            ├─ the user's frames ─┤
    notebook   IPython ─ magic ─ cluster ───┘                     └─ threading, where we wait

A frame of the first kind *leads* to the user's code. Frames are dropped, never changed.
"""

import itertools
import linecache
import os
import threading
from pathlib import Path
from types import TracebackType

OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The package's folder, with a separator at its end."""

_PATCHES = os.path.join(OUR_FOLDER, "task", "tensorflow") + os.sep
_LOOP = os.path.join("asyncio", "base_events.py")
_IPYTHON = f"{os.sep}IPython{os.sep}core{os.sep}"
_MAGIC_CALLS = (
    "%%tfcluster",
    "get_ipython().run_cell_magic('tfcluster'",
    "await get_ipython().run_cell_magic('_tfcluster_async'",
)


def is_ours(file: str) -> bool:
    """Check whether a frame of this file is tfmagic's."""
    return file.startswith(OUR_FOLDER)


def leads_to_user(file: str, function: str = "") -> bool:
    """Check whether a frame above the user's code is tfmagic's, or runs a script or a cell for it."""
    return file.startswith((OUR_FOLDER, "<frozen runpy")) or (
        function == "run_until_complete" and file.endswith(_LOOP)
    )


def entries_of(frames: TracebackType | None) -> list[TracebackType]:
    """Return the entries of a traceback, the outermost first."""
    entries = []
    while frames is not None:
        entries.append(frames)
        frames = frames.tb_next
    return entries


def linked(entries: list[TracebackType]) -> TracebackType | None:
    """Return a traceback of these entries alone."""
    made = None
    for entry in reversed(entries):
        line = entry.tb_lineno or 0  # code can be without lines
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, line)
    return made


def without_leading(frames: TracebackType | None) -> TracebackType | None:
    """Drop the frames that lead to the user's code, but not the last frame."""
    entries = entries_of(frames)
    users = (e for e in entries if not leads_to_user(_file_of(e), e.tb_frame.f_code.co_name))
    return next(users, entries[-1] if entries else None)


def without_patches(entries: list[TracebackType]) -> list[TracebackType]:
    """Drop our frames that stand in the place of another package's function, but not the last frame."""
    return [entry for entry in entries[:-1] if not _file_of(entry).startswith(_PATCHES)] + entries[-1:]


def without_handler(frames: TracebackType | None) -> TracebackType | None:
    """Drop our frames below the user's code: those of a signal handler, or of a function that it called."""
    return linked([*itertools.dropwhile(_is_of_ours, reversed(entries_of(frames)))][::-1])


def below(frames: TracebackType | None, files: tuple[str, ...]) -> TracebackType | None:
    """Drop all frames down to the last one of a file whose path begins with one of `files`."""
    entries = entries_of(frames)
    last = max((n for n, entry in enumerate(entries, 1) if _file_of(entry).startswith(files)), default=0)
    return entries[last] if last < len(entries) else None


def users_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the user's frames alone: without tfmagic's, IPython's, and the call of a magic."""
    kept: list[TracebackType] = []
    is_inside = False
    for entry in entries_of(frames):
        if _is_of_ours(entry):
            is_inside = True
            while kept and _calls_magic(kept[-1]):
                kept.pop()
        elif _IPYTHON in _file_of(entry):
            continue
        elif not is_inside or entry.tb_frame.f_globals is not vars(threading):
            is_inside = False  # in threading we wait: a signal handler of the user's has raised
            kept.append(entry)
    return linked(kept)


def _file_of(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _is_of_ours(entry: TracebackType) -> bool:
    module = entry.tb_frame.f_globals.get("__name__")  # dataclasses compile methods under another file name
    return is_ours(_file_of(entry)) or (isinstance(module, str) and module.startswith("tfmagic."))


def _calls_magic(entry: TracebackType) -> bool:
    is_module = entry.tb_frame.f_code.co_name.startswith(("<module>", "<cell line: "))  # in IPython 7 and 8
    return is_module and linecache.getline(_file_of(entry), entry.tb_lineno).startswith(_MAGIC_CALLS)


def users_lines(dump: str) -> list[str]:
    """Return the user's frames of one thread in a fault handler's dump, the innermost first."""
    frames = [line for line in dump.splitlines() if line.lstrip().startswith("File ")]
    files = {line: line.partition('"')[2].partition('"')[0] for line in frames}
    while frames and (files[frames[-1]] == "<string>" or leads_to_user(files[frames[-1]])):  # the launcher's
        frames.pop()
    return [line for line in frames if not is_ours(files[line])]


def files_on_tasks() -> frozenset[str]:
    """Return the files whose frames lead to the user's code on a task."""
    found = (*Path(OUR_FOLDER, "task").rglob("*.py"), *Path(OUR_FOLDER, "features").glob("*/on_tasks.py"))
    return frozenset({*map(str, found), "<string>"})
