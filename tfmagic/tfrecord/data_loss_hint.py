"""Find the file that a DataLossError of TensorFlow is about, and what has probably happened to it.

    names of files in the data sets of this process ─┐
    message of the error (an offset, no file) ───────┴→ look at that offset in each file ──→ hint

The task program calls `explain` when a cell has failed with that error. It reads the files up to that offset,
at about a gigabyte a second (compressed files more slowly), and never raises. The message names no file, and
TensorFlow has closed the file by then (measured with 2.21): only the data sets know it.

A file that was cut when it was read can be whole when it is examined: its writer continued, or closed it, or
is in this very process, whose C buffers are flushed when a cell ends (those of TensorFlow's writers too). So
if no file is damaged at the offset, a file is searched that was written since.
"""

import contextlib
import gc
import os
import re
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from tfmagic.system.open_files import find_writers
from tfmagic.tfrecord import manifests, record_stream, verifying
from tfmagic.tfrecord.framing import HEADER

_OFFSET = re.compile(r"(truncated|corrupted) record at (\d+)")
_PATIENCE_S = 20.0  # for examining files; after that the general hint must do
_SLACK_S = 2.0  # file systems store times coarsely
_MAX_FILES = 10_000

_Candidate = tuple[Path, str | None]
"""A file, and the compression with which it is read: "", "GZIP" or "ZLIB"; None if that is unknown."""


def explain(error: BaseException, seconds: float = 60.0) -> str:
    """Return the file, the offset and the likely cause in a sentence or two; "" if no file has such damage.

    The cell that raised the error ran for `seconds`: a file that was written during that time can be the one.
    """
    try:
        message = str(error)
        found = _OFFSET.search(message)
        if type(error).__name__ != "DataLossError" or not (found or "inflate() failed" in message):
            return ""
        candidates, until = list(_find_candidates(error.__traceback__)), time.monotonic() + _PATIENCE_S
        for path, read_as in candidates:
            with contextlib.suppress(OSError, ValueError, KeyError):  # one file; there are others
                if found:
                    text = _describe_damage(path, read_as, int(found[2]))
                else:
                    text = _describe_stream(path, read_as, "incorrect header check" in message)
                if text:
                    return f"{path} {text}"
            if time.monotonic() > until:
                break
        if found and found[1] == "truncated":
            return _explain_as_grown(candidates, int(found[2]), seconds)
        return ""
    except Exception:  # an explanation must not hide the error that it explains
        return ""


# ---- which files ---------------------------------------------------------------------------------


def _find_candidates(trace: TracebackType | None) -> Iterator[_Candidate]:
    """Yield the files that data sets read: those of the failed frames first, then of the newest data sets.

    The order matters: data sets of an earlier cell that failed still exist (its frames are kept for the
    debugger), and their files can have the same kind of damage.
    """
    if (tensorflow := sys.modules.get("tensorflow")) is None:
        return
    kind, near = tensorflow.data.Dataset, list[Any]()
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            held = getattr(value, "__dict__", None)  # an iterator has its data set there
            values = (value, *(held.values() if type(held) is dict else ()))
            # the type, since the __class__ of a proxy can raise
            near[:0] = [item for item in values if issubclass(type(item), kind)]
        trace = trace.tb_next
    objects = (item for generation in range(3) for item in reversed(gc.get_objects(generation)))
    newest = [item for item in objects if issubclass(type(item), kind)]
    read_as: dict[int, str] = {}
    for dataset in newest:
        way = getattr(dataset, "_compression_type", 0)
        if way is None or isinstance(way, str):  # in a graph it is a tensor without a value
            read_as.update(dict.fromkeys(map(id, _with_inputs([dataset])), way or ""))
    found = (
        (Path(name.removeprefix("file://")), read_as.get(id(dataset)))
        for dataset in (*_with_inputs(near), *newest)
        for name in _strings_of(dataset)
    )
    for path, compression in islice(dict.fromkeys(found), _MAX_FILES):
        if path.is_file():
            yield path, compression
        elif compression is not None:
            return  # these records are gone, and can be those that failed: older ones are not looked at


def _with_inputs(datasets: list[Any]) -> Iterator[Any]:
    """Yield data sets and those that they are made from, each once."""
    seen: set[int] = set()
    waiting = datasets[::-1]
    while waiting:
        dataset = waiting.pop()
        if id(dataset) not in seen:
            seen.add(id(dataset))
            yield dataset
            inputs = getattr(dataset, "_inputs", None)
            waiting += inputs() if callable(inputs) else []


def _strings_of(dataset: Any) -> Iterator[str]:
    """Yield the strings in the tensors of a data set: file names, or what it makes file names from."""
    for value in list(vars(dataset).values()):
        for tensor in value if isinstance(value, list | tuple) else [value]:
            if getattr(tensor, "dtype", None) == "string" and hasattr(tensor, "numpy"):
                array = tensor.numpy()
                values = array.ravel()[:_MAX_FILES].tolist() if hasattr(array, "ravel") else [array]
                yield from (os.fsdecode(name) for name in values if 0 < len(name) < 4096)


# ---- what has happened to them -------------------------------------------------------------------


def _describe_damage(path: Path, read_as: str | None, offset: int) -> str:
    """Describe the damage of a record at this offset, and its cause; "" if it is intact."""
    packed, size = record_stream.detect(path), path.stat().st_size
    if packed and offset == 0 and not read_as:
        return (
            f"is damaged at byte 0: it is a {packed} stream that is read as plain records. Say "
            f'compression_type="{packed}", or use read_shards'
        )
    if (packed and read_as == "") or (not packed and (read_as or size < offset - HEADER)):
        return ""
    for damage in verifying.scan(path, stop=offset + 1)[0].damages:
        # TensorFlow counts from the data, if these are damaged (tsl/lib/io/record_reader.cc)
        if damage.offset in (offset, offset - HEADER):
            if packed is None and damage.offset == 0 and damage.end == size:
                return "is not a TFRecord file: no record in it is intact"
            where = " of what is unpacked" if packed else ""
            what, cause = _WHAT[damage.kind], _cause(path, damage.kind)
            return f"is damaged at byte {offset:,}{where}: {what}, record {damage.record:,}. {cause}"
    return ""


def _describe_stream(path: Path, read_as: str | None, is_head: bool) -> str:
    """Return why a file cannot be decompressed; "" if it can, or if it is read as plain records."""
    packed = record_stream.detect(path)
    if read_as == "" or path.stat().st_size == 0 or not (packed or read_as or is_head):
        return ""
    if not packed or (read_as and packed != read_as):
        what = {"": "holds plain records", None: "is no TFRecord file"}.get(packed, f"is a {packed} stream")
        seen = "tfmagic.tfrecord.read_shards sees by itself how a file is compressed"
        return f"{what}, and is read as {read_as or 'a compressed one'}. {seen}"
    if (trouble := verifying.scan(path)[1].trouble) is None:
        return ""
    cause = _cause(path, "truncated" if "cut short" in trouble[0] else "data CRC")
    return f"is damaged: its {packed} stream cannot be unpacked at byte {trouble[1]:,}: {trouble[0]}. {cause}"


def _explain_as_grown(candidates: list[_Candidate], offset: int, seconds: float) -> str:
    """Return which file has a whole record at this offset now, and was written since; "" for none."""
    grown: list[tuple[bool, float, Path]] = []
    for path in {path for path, read_as in candidates if not read_as}:
        with contextlib.suppress(OSError, ValueError):
            changed, writers = path.stat().st_mtime, find_writers(path)
            is_new = writers or changed > time.time() - seconds - _SLACK_S
            if is_new and verifying.scan(path, offset, offset + 1, is_aligned=True)[0].records:
                grown.append((bool(writers), changed, path))
    if not grown:
        return ""
    is_open, _, path = max(grown)
    cause = _cause(path, "truncated") if is_open else f"{_READ_BEFORE.capitalize()}. {_MEET}"
    return f"{path} ended at byte {offset:,} within a record when it was read; it is whole there now. {cause}"


_WHAT = {
    "truncated": "it ends within a record",
    "length CRC": "the checksum of a record's length is wrong (length CRC)",
    "data CRC": "the checksum of a record's data is wrong (data CRC)",
}
_READ_BEFORE = "it was read before its writer closed it"
_MEET = "Close the writer and meet at tfmagic.barrier(), or use ShardWriter, whose files appear whole"


def _cause(path: Path, kind: str) -> str:
    """Return why a file is damaged, and what to do."""
    writers = " and ".join(map(str, find_writers(path)))
    cure = "Let each task write a file of its own with tfmagic.tfrecord.ShardWriter"
    if "and" in writers:
        return f"Processes {writers} write it at once: two writers. {cure}"
    if writers:
        return f"It is still being written, by process {writers}: {_READ_BEFORE}. {_MEET}"
    known = manifests.entries_of([path]).get(path)
    if known is not None and path.stat().st_size != known.bytes:
        return f"It had {known.bytes:,} bytes when it was written: a truncated copy. Copy it again"
    save = f"python -m tfmagic tfrecord salvage {path} DST saves what is whole"
    if kind == "truncated":
        return f"A truncated copy, or its writer was killed, or had not closed it then; {save}"
    return f"Either two tasks wrote it, or bytes have changed. {cure}; {save}"
