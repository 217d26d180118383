"""How a cluster that outlives its kernel is found again: ``kept.json`` in its run folder.

It has no token: a kernel that attaches needs Ray's as any other. The file is deleted when the cluster is
stopped.
"""

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from tfmagic.system import files

_FILE = "kept.json"
_BEATS = (_FILE, "status.json")  # written as long as a kernel is attached


@dataclass(frozen=True, slots=True)
class OpenCell:
    """A cell whose results no kernel has taken."""

    out: str = ""  #: The name to which the notebook binds its results, or "".
    timeout_s: float | None = None
    keep_going: bool = False
    prompt: int = 0


@dataclass(frozen=True, slots=True)
class KeptCluster:
    """What a kernel needs to attach to a cluster."""

    kept_as: str  #: The name by which the engine finds it.
    keep_s: float  #: How long it goes on without a kernel, in seconds.
    options: Mapping[str, Any]  #: The arguments of `Cluster`.
    addresses: Mapping[str, str]  #: Of each task, by name.
    cells: Mapping[int, OpenCell] = field(default_factory=dict)  #: By number.


class KeptFile:
    """The file of a cluster that runs. A full disk costs later changes of it, nothing else."""

    def __init__(self, folder: Path, content: KeptCluster):
        self._path, self._content = folder / _FILE, content
        self._write()

    def begin(self, number: int, cell: OpenCell) -> None:
        """Note a cell before it is sent."""
        self._change(cells={**self._content.cells, number: cell})

    def settle(self, number: int) -> None:
        """Note that this kernel has taken the results of a cell."""
        self._change(cells={n: cell for n, cell in self._content.cells.items() if n != number})

    def move(self, addresses: Mapping[str, str]) -> None:
        """Note new addresses of the tasks."""
        self._change(addresses=addresses)

    def delete(self) -> None:
        """Note that the cluster was stopped."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _change(self, **changes: Any) -> None:
        self._content = replace(self._content, **changes)
        with contextlib.suppress(OSError):
            self._write()

    def _write(self) -> None:
        text = msgspec.json.encode(self._content).decode()
        files.replace_text(self._path, text, 0o600)


def read_kept(folder: Path) -> KeptCluster | None:
    """Return a sentence on attaching to a run; None if it ended with its kernel, or was stopped."""
    try:
        content = json.loads(files.read_text(folder / _FILE))
        return msgspec.convert(content, KeptCluster, strict=False)
    except (OSError, ValueError, msgspec.ValidationError):
        return None


def kept_until(folder: Path) -> float | None:
    """Return when a run ends if no kernel attaches, in seconds since the epoch; None if it is not kept."""
    kept = read_kept(folder)
    if kept is None:
        return None
    return max(_written(folder / name) for name in _BEATS) + kept.keep_s


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # perhaps deleted just now
        return 0.0


def is_kept(folder: Path) -> bool:
    """Check whether the tasks of a run can still live although its kernel has ended."""
    until = kept_until(folder)
    return until is not None and time.time() < until
