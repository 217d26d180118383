"""Which file a DataLossError of TensorFlow means, and what has likely happened to it.

    message (an offset, no file) + names of files that data sets of this process read ──→ look there ──→ hint

Called by the task program when a cell has failed with that error, and with no other. Finds data sets by the
garbage collector, since the message and the frames do not name them. Never raises;
reads the files up to that offset, at a gigabyte a second or so.

What was cut when it was read may be whole when it is looked at: its writer went on, or closed it, or is in
this very process, whose C buffers are written out when a cell ends (fflush of everything, and TensorFlow's
writers are among it). So where no file is damaged there, one is looked for that was written meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfmagic.openers import find_writers
from tfmagic.tfrecord import blocks, framing, manifests, segments, shards
from tfmagic.tfrecord.framing import HEADER
from tfmagic.tfrecord.segments import Segment

_OFFSET = re.compile(r"(truncated|corrupted) record at (\d+)")
_MAX_FILES = 10_000
_SLACK_S = 2.0  # a file's time is as coarse as its file system


def explain(error: BaseException, seconds: float = 60.0) -> str:
    """The file, the offset and the likely cause.

    Args:
        error: What was raised.
        seconds: How long the cell took that raised it: a file that was written since may be the one.

    Returns:
        A sentence or two; "" where no file of this process has such damage.
    """
    try:
        found = _OFFSET.search(str(error))
        if type(error).__name__ != "DataLossError" or found is None:
            return ""
        offset = int(found[2])
        candidates = list(_candidates())
        for path in candidates:
            with contextlib.suppress(OSError, ValueError, KeyError):  # of one file; there are others
                if what := _damage_at(path, offset):
                    return f"{path} is damaged at byte {offset:,}: {what}"
        return _explain_as_grown(candidates, offset, seconds) if found[1] == "truncated" else ""
    except Exception:  # an explanation must not hide what it explains
        return ""


def _explain_as_grown(candidates: list[Path], offset: int, seconds: float) -> str:
    """Which file has a whole record there now, and was written since; "" for none."""
    grown: list[tuple[bool, float, Path]] = []
    for path in candidates:
        with contextlib.suppress(OSError, ValueError):
            changed = path.stat().st_mtime
            writers = find_writers(path)
            if (writers or changed > time.time() - seconds - _SLACK_S) and _is_whole_at(path, offset):
                grown.append((bool(writers), changed, path))
    if not grown:
        return ""
    is_open, _, path = max(grown)
    cause = _cause(path, "truncated") if is_open else _CLOSED_SINCE
    return f"{path} ended at byte {offset:,} within a record when it was read; it is whole there now. {cause}"


def _is_whole_at(path: Path, offset: int) -> bool:
    """Whether a record begins there and ends within the file."""
    fd = blocks.open_file(path)
    try:
        head = os.pread(fd, HEADER, offset)
        length = framing.length_at(head, 0) if len(head) == HEADER else None
        return length is not None and offset + length + framing.FRAME <= os.fstat(fd).st_size
    finally:
        os.close(fd)


def _candidates() -> Iterator[Path]:
    """Files whose names the data sets of this process hold, then those that it has open."""
    tensorflow = sys.modules.get("tensorflow")
    seen: set[str] = set()
    kinds: tuple[type, ...] = (tensorflow.data.Dataset,) if tensorflow is not None else ()
    for item in gc.get_objects() if kinds else ():
        if issubclass(type(item), kinds):  # a proxy's __class__ may raise
            for name in _strings_of(item):
                if name not in seen and len(seen) < _MAX_FILES:
                    seen.add(name)
                    if os.path.isfile(name):
                        yield Path(name)
    for number in os.listdir("/proc/self/fd"):  # of a writer or a reader that is still there
        with contextlib.suppress(OSError, ValueError):
            name = os.readlink(f"/proc/self/fd/{number}")
            # a log is no records from its first byte on, and would be "damaged" there
            if name not in seen and os.path.isfile(name) and blocks.detect(Path(name)) == "":
                seen.add(name)
                yield Path(name)


def _strings_of(dataset: Any) -> Iterator[str]:
    """What string tensors a data set holds: file names, or what it makes them of."""
    for value in list(vars(dataset).values()):
        for tensor in value if isinstance(value, list | tuple) else [value]:
            if getattr(tensor, "dtype", None) == "string" and hasattr(tensor, "numpy"):
                array = tensor.numpy()
                values = array.ravel()[:_MAX_FILES].tolist() if hasattr(array, "ravel") else [array]
                yield from (os.fsdecode(name) for name in values if 0 < len(name) < 4096)


def _damage_at(path: Path, offset: int) -> str:
    """What is wrong there, and why; "" where all is well."""
    packed = blocks.detect(path)
    if packed:
        return _PACKED.format(packed, packed) if offset == 0 else ""
    if path.stat().st_size < offset - HEADER:
        return ""
    found = segments.look_at(Segment(str(path), "", 0, offset + 1)).scan
    for loss in found.losses:
        # TensorFlow counts from the data, where these do not hold (tsl/lib/io/record_reader.cc)
        if loss.start in (offset, offset - HEADER):
            return f"{_WHAT[loss.kind]}, record {loss.record:,}. {_cause(path, loss.kind)}"
    return ""


_PACKED = 'it is a {} stream that is read as plain records. Say compression_type="{}", or use read_shards'
_WHAT = {
    "truncated": "it ends within a record",
    "length CRC": "the length of a record does not hold (length CRC)",
    "data CRC": "the data of a record do not hold (data CRC)",
}
_MEET = "Close the writer and meet at tfmagic.barrier(), or use ShardWriter, whose files appear whole"
_CLOSED_SINCE = f"It was read before its writer closed it. {_MEET}"


def _cause(path: Path, kind: str) -> str:
    writers = find_writers(path)
    cure = "Let each task write a file of its own with tfmagic.tfrecord.ShardWriter"
    if len(writers) > 1:
        return f"Processes {' and '.join(map(str, writers))} write it at once: two writers. {cure}"
    if writers:
        return (
            f"It is still being written, by process {writers[0]}: it was read before its writer closed it. "
            f"{_MEET}"
        )
    known = manifests.entries_of([path]).get(path) if shards.parse_name(path) else None
    if known is not None and path.stat().st_size != known.bytes:
        return f"It had {known.bytes:,} bytes when it was written: a truncated copy. Copy it again"
    save = f"python -m tfmagic tfrecord salvage {path} DST saves the rest"
    if kind == "truncated":
        return f"A truncated copy, or its writer was killed, or had not closed it then; {save}"
    return f"Either two tasks wrote it, or bytes have changed. {cure}; {save}"
