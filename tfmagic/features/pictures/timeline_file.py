"""What the tasks of a run did, and when: lines of JSON in its folder, appended as it happens.

    <run>/timeline.jsonl       the newest records: see the classes below
    <run>/timeline.old.jsonl   the records before, once there were more than `HALF_BYTES`; older ones are lost

The kernel's supervisor writes it, so it is there for a run whose kernel was killed. Times are in seconds
since the epoch. A line that was cut short, or that another version wrote, is skipped.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import Any

import msgspec

from tfmagic.runs.folder import RunFolder, file_size
from tfmagic.system import files

HALF_BYTES = 2_000_000  # of two files
SOURCE_CHARACTERS = 4000
ENDED_WELL = "exited with code 0"  #: The note on a process that ended by itself between cells, as scripts do.
_NAME, _OLD_NAME = "timeline.jsonl", "timeline.old.jsonl"


class _Record(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind"):
    """The base class of records; `t` is when it happened."""

    t: float


class CellBegan(_Record, frozen=True, tag="cell"):
    """A cell or call was sent to its tasks."""

    cell: int  #: Its number in the run.
    tasks: tuple[str, ...]
    prompt: int = 0  #: The number that the notebook shows, or 0.
    source: str = ""  #: The beginning of its text; "" for a call.


class TaskPart(msgspec.Struct, frozen=True, array_like=True):
    """How a task ended its part of a cell: done, failed, interrupted, died or stopped."""

    how: str
    t: float
    note: str = ""


class CellEnded(_Record, frozen=True, tag="end"):
    """A cell has ended; `parts` has each task that had begun it."""

    cell: int
    parts: dict[str, TaskPart]
    note: str = ""


class Change(_Record, frozen=True, tag="task"):
    """What a task does from now on."""

    task: str
    doing: str  #: A `Doing`: one that this version knows, or a word of another one.
    attempt: int = 1  #: The number of its process.
    cell: int = 0
    line: int = 0  #: The line at which it was seen last, in `file` or, if that is "", in the cell.
    file: str = ""
    what: str = ""  #: The barrier or the call in which it waits.
    whom: tuple[str, ...] = ()  #: The tasks for which it waits.
    note: str = ""
    pid: int = 0  #: Of its process; in a cell only the changes before it have pid and host.
    host: str = ""


class Mark(_Record, frozen=True, tag="mark"):
    """Something happened to tasks: interrupt, signal, ended, restart, flood, host, network or stop."""

    what: str
    tasks: tuple[str, ...] = ()
    note: str = ""


Record = CellBegan | CellEnded | Change | Mark
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


class TimelineFile:
    """Appends records to the files of a run."""

    def __init__(self, run: RunFolder):
        self._folder = run.folder
        self._size = file_size(run.folder / _NAME)

    @property
    def is_full(self) -> bool:
        """Whether the next records belong into a new file."""
        return self._size >= HALF_BYTES

    def turn(self) -> None:
        """Begin a new file. The present one becomes the old one."""
        with contextlib.suppress(OSError):
            os.replace(self._folder / _NAME, self._folder / _OLD_NAME)
        self._size = 0

    def append(self, records: Iterable[Record]) -> bool:
        """Write records at once; return whether that worked (the disk can be full, the folder deleted)."""
        text = "".join(map(_encode, records))
        try:
            files.append(self._folder / _NAME, text)
        except OSError:
            return False
        self._size += len(text)
        return True


def _encode(record: Record) -> str:
    try:
        return _encoder.encode(record).decode() + "\n"
    except UnicodeEncodeError:  # a text of the user's that is no Unicode
        return _encoder.encode(_cleaned(msgspec.to_builtins(record))).decode() + "\n"


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(inner) for key, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_timeline(run: RunFolder) -> list[Record]:
    """Return the records of a run in the order of their times."""
    found: list[Record] = []
    for name in (_OLD_NAME, _NAME):
        for line in files.text_of(run.folder / name).splitlines():
            with contextlib.suppress(msgspec.MsgspecError, ValueError):
                found.append(_decoder.decode(line))
    return sorted(found, key=lambda record: record.t)
