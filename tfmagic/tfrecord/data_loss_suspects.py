"""Which files TensorFlow may mean where it names none: what the data sets of this process read.

    frames of the error ──→ iterators, data sets ─┐
    the garbage collector, newest first ──────────┴→ inputs of inputs ──→ names of files, how they are read
    files that this process has open ─────────────────────────────────→ the same

The order matters: of an earlier cell that failed, data sets are still there (its frames are kept for the
debugger), and their files may have the same kind of damage.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tfmagic.tfrecord import blocks

_MAX_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Suspect:
    """A file, and what it is read as: "", "GZIP" or "ZLIB"; None where nobody says so."""

    path: Path
    read_as: str | None


def find_suspects(error: BaseException) -> Iterator[Suspect]:
    """The likely ones first; the same file once for each way in which it is read."""
    tensorflow = sys.modules.get("tensorflow")
    seen: set[tuple[str, str | None]] = set()
    if tensorflow is not None:
        near, all_of_them = _find_datasets(tensorflow.data.Dataset, error.__traceback__)
        read_as = _ways_of_reading(all_of_them)
        for dataset in (*near, *all_of_them):
            for name in (name.removeprefix("file://") for name in _strings_of(dataset)):
                key = (name, read_as.get(id(dataset)))
                if key not in seen and len(seen) < _MAX_FILES:
                    seen.add(key)
                    if os.path.isfile(name):
                        yield Suspect(Path(name), key[1])
    names = {name for name, _ in seen}
    for number in os.listdir("/proc/self/fd"):  # of a writer or a reader that is still there
        with contextlib.suppress(OSError, ValueError):
            name = os.readlink(f"/proc/self/fd/{number}")
            # a log is no records from its first byte on, and would be "damaged" there
            if name not in names and os.path.isfile(name) and blocks.detect(Path(name)) == "":
                names.add(name)
                yield Suspect(Path(name), None)


def _find_datasets(kind: type, trace: TracebackType | None) -> tuple[list[Any], list[Any]]:
    """Those that the frames of an error lead to, the innermost first; and all, the newest first."""
    near: list[Any] = []
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            held = getattr(value, "__dict__", None)  # an iterator has its data set there
            for item in (value, *(held.values() if type(held) is dict else ())):
                if issubclass(type(item), kind):  # a proxy's __class__ may raise
                    near.insert(0, item)
        trace = trace.tb_next
    newest = [
        item
        for generation in range(3)
        for item in reversed(gc.get_objects(generation))
        if issubclass(type(item), kind)
    ]
    return list(_with_inputs(near)), newest


def _with_inputs(datasets: Iterable[Any]) -> Iterator[Any]:
    """Data sets and what they are made from, each once."""
    seen: set[int] = set()
    waiting = list(reversed(list(datasets)))
    while waiting:
        dataset = waiting.pop()
        if id(dataset) not in seen:
            seen.add(id(dataset))
            yield dataset
            inputs = getattr(dataset, "_inputs", None)
            waiting += inputs() if callable(inputs) else []


def _ways_of_reading(datasets: list[Any]) -> dict[int, str]:
    """What a TFRecordDataset reads its files as, under the id of the data set that has their names."""
    ways: dict[int, str] = {}
    for dataset in datasets:
        if "TFRecordDataset" in type(dataset).__name__:
            with contextlib.suppress(Exception):  # of a graph: a tensor without a value
                way: Any = getattr(dataset, "_compression_type", None)
                way = way.numpy().decode() if hasattr(way, "numpy") else way
                ways.update(dict.fromkeys(map(id, _with_inputs([dataset])), way or ""))
    return ways


def _strings_of(dataset: Any) -> Iterator[str]:
    """What string tensors a data set holds: file names, or what it makes them of."""
    for value in list(vars(dataset).values()):
        for tensor in value if isinstance(value, list | tuple) else [value]:
            if getattr(tensor, "dtype", None) == "string" and hasattr(tensor, "numpy"):
                array = tensor.numpy()
                values = array.ravel()[:_MAX_FILES].tolist() if hasattr(array, "ravel") else [array]
                yield from (os.fsdecode(name) for name in values if 0 < len(name) < 4096)
