"""Which file a DataLossError of TensorFlow means, and what has likely happened to it.

    message (an offset, no file) + names of files that data sets of this process read ──→ look there ──→ hint

Called by the task program when a cell has failed with that error, and with no other. The message names no
file: `tfmagic.tfrecord.data_loss_suspects` has those that it may be. Never raises; reads the files up to that
offset, at a gigabyte a second or so, a compressed one more slowly.

What was cut when it was read may be whole when it is looked at: its writer went on, or closed it, or is in
this very process, whose C buffers are written out when a cell ends (fflush of everything, and TensorFlow's
writers are among it). So where no file is damaged there, one is looked for that was written meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tfmagic.system.open_files import find_writers
from tfmagic.tfrecord import blocks, framing, manifests, scan_workers, shards
from tfmagic.tfrecord.data_loss_suspects import Suspect, find_suspects
from tfmagic.tfrecord.framing import HEADER
from tfmagic.tfrecord.scan_workers import Segment

_OFFSET = re.compile(r"(truncated|corrupted) record at (\d+)")
_PATIENCE_S = 20.0  # with looking; then the general hint must do
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
        message = str(error)
        if type(error).__name__ != "DataLossError":
            return ""
        if found := _OFFSET.search(message):
            return _explain_offset(error, found[1], int(found[2]), seconds)
        if "inflate() failed" in message:
            is_head = "incorrect header check" in message
            return _look(find_suspects(error), lambda suspect: _trouble_of(suspect, is_head))
        return ""
    except Exception:  # an explanation must not hide what it explains
        return ""


def _explain_offset(error: BaseException, how: str, offset: int, seconds: float) -> str:
    suspects = list(find_suspects(error))
    if told := _look(suspects, lambda suspect: _damage_at(suspect, offset)):
        return told
    plain = [suspect.path for suspect in suspects if not suspect.read_as]
    return _explain_as_grown(plain, offset, seconds) if how == "truncated" else ""


def _look(suspects: Iterable[Suspect], what_of: Callable[[Suspect], str]) -> str:
    """What is found of the first file of which something is."""
    until = time.monotonic() + _PATIENCE_S
    for suspect in suspects:
        with contextlib.suppress(OSError, ValueError, KeyError):  # of one file; there are others
            if what := what_of(suspect):
                return f"{suspect.path} {what}"
        if time.monotonic() > until:
            break
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


def _damage_at(suspect: Suspect, offset: int) -> str:
    """What is wrong with a record there, and why; "" where all is well."""
    path, packed = suspect.path, blocks.detect(suspect.path)
    if packed and offset == 0 and not suspect.read_as:
        return f"is damaged at byte 0: {_PACKED.format(packed, packed)}"
    if packed and suspect.read_as == "":
        return ""
    if not packed and (suspect.read_as or path.stat().st_size < offset - HEADER):
        return ""
    found = scan_workers.look_at(Segment(str(path), packed or "", 0, offset + 1)).scan
    for loss in found.losses:
        # TensorFlow counts from the data, where these do not hold (tsl/lib/io/record_reader.cc)
        if loss.start in (offset, offset - HEADER):
            if packed is None and loss.start == 0 and loss.end == path.stat().st_size:
                return "is not a TFRecord file: no record in it holds"
            where = " of what is unpacked" if packed else ""
            cause = _cause(path, loss.kind)
            return (
                f"is damaged at byte {offset:,}{where}: {_WHAT[loss.kind]}, record {loss.record:,}. {cause}"
            )
    return ""


def _trouble_of(suspect: Suspect, is_head: bool) -> str:
    """Why a file cannot be unpacked; "" where it can, or where nobody tries to."""
    path, packed = suspect.path, blocks.detect(suspect.path)
    if suspect.read_as == "" or path.stat().st_size == 0:
        return ""
    if not packed:
        what = "holds plain records" if packed == "" else "is no TFRecord file"
        kind = suspect.read_as or "a compressed one"
        return f"{what}, and is read as {kind}. {_SEEN}" if is_head or suspect.read_as else ""
    if suspect.read_as and packed != suspect.read_as:
        return f"is a {packed} stream, and is read as {suspect.read_as}. {_SEEN}"
    trouble = scan_workers.look_at(Segment(str(path), packed)).trouble
    if trouble is None:
        return ""
    cause = _cause(path, "truncated" if "cut short" in trouble[0] else "data CRC")
    return f"is damaged: its {packed} stream cannot be unpacked at byte {trouble[1]:,}: {trouble[0]}. {cause}"


_SEEN = "tfmagic.tfrecord.read_shards sees by itself how a file is compressed"
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
    save = f"python -m tfmagic tfrecord salvage {path} DST saves what is whole"
    if kind == "truncated":
        return f"A truncated copy, or its writer was killed, or had not closed it then; {save}"
    return f"Either two tasks wrote it, or bytes have changed. {cure}; {save}"
