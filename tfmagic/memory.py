"""How much memory there is, and whether the kernel has killed somebody for want of it.

Linux counts its out-of-memory kills for the machine (``/proc/vmstat``, oom_kill) and for each control
group (``memory.events`` in version 2, ``memory.oom_control`` in version 1; see the kernel's admin-guide,
cgroup-v2.rst and cgroup-v1/memory.rst). A count that has grown, and a process that ended by SIGKILL,
belong together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tfmagic.capture import format_bytes

_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
_LOW_SHARE, _LOW_BYTES = 0.05, 1 << 30  # below both, the system begins to look for somebody to kill


def limit_bytes(cgroups: Path = _CGROUPS) -> int:
    """The memory that this process and its tasks may use together: the machine's, or its container's."""
    found = [psutil.virtual_memory().total]
    for folder in _folders(cgroups):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit():
                found.append(int(text))
    return min(found)


def free_bytes(cgroups: Path = _CGROUPS) -> int:
    """The memory that they may still take: of the machine, or of what its container has left."""
    found = [psutil.virtual_memory().available]
    for folder in _folders(cgroups):
        for limit, used in _LIMITS:
            allowed, taken = _read(folder / limit).strip(), _read(folder / used).strip()
            if allowed.isdigit() and taken.isdigit():
                # the page cache counts as used there, and is given back when somebody needs it
                found.append(int(allowed) - int(taken) + _cache_bytes(folder))
    return max(min(found), 0)


def shortage(uses: Mapping[str, int | None], cgroups: Path = _CGROUPS) -> str:
    """A warning before the memory is used up, with who has most of it; "" while there is enough.

    Args:
        uses: What each task uses, in bytes, by name.
    """
    free, limit = free_bytes(cgroups), limit_bytes(cgroups)
    if free > min(_LOW_SHARE * limit, _LOW_BYTES):
        return ""
    known = {name: used for name, used in uses.items() if used}
    most = max(known, key=lambda name: known[name], default="")
    whose = f"; {most} has most of it, {format_bytes(known[most])}" if most else ""
    return f"memory is nearly used up: {format_bytes(free)} of {format_bytes(limit)} are left{whose}"


def count_oom_kills(cgroups: Path = _CGROUPS, vmstat: Path = Path("/proc/vmstat")) -> int:
    """How many processes the kernel has killed for want of memory; only its growth means something."""
    texts = [_read(vmstat)]
    for folder in _folders(cgroups):
        texts += [_read(folder / "memory.events"), _read(folder / "memory.oom_control")]
    lines = (line.split() for text in texts for line in text.splitlines())
    return sum(int(words[1]) for words in lines if len(words) == 2 and words[0] == "oom_kill")


def _cache_bytes(folder: Path) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return int(value)
    return 0


def _folders(cgroups: Path) -> Iterator[Path]:
    """The folders of this process' control groups, and those that contain them."""
    seen = set()
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        folder = root / path.lstrip("/")
        while folder.is_relative_to(root) and folder not in seen:
            seen.add(folder)
            yield folder
            folder = folder.parent


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not there, or not ours to read
        return ""
