"""How much memory there is, and whether the kernel has killed somebody for want of it.

Linux counts its out-of-memory kills for the machine (``/proc/vmstat``, oom_kill) and for each control
group (``memory.events`` in version 2, ``memory.oom_control`` in version 1; see the kernel's admin-guide,
cgroup-v2.rst and cgroup-v1/memory.rst). A count that has grown, and a process that ended by SIGKILL,
belong together.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")


def limit_bytes(cgroups: Path = _CGROUPS) -> int:
    """The memory that this process and its tasks may use together: the machine's, or its container's."""
    found = [psutil.virtual_memory().total]
    for folder in _folders(cgroups):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit():
                found.append(int(text))
    return min(found)


def count_oom_kills(cgroups: Path = _CGROUPS, vmstat: Path = Path("/proc/vmstat")) -> int:
    """How many processes the kernel has killed for want of memory; only its growth means something."""
    texts = [_read(vmstat)]
    for folder in _folders(cgroups):
        texts += [_read(folder / "memory.events"), _read(folder / "memory.oom_control")]
    lines = (line.split() for text in texts for line in text.splitlines())
    return sum(int(words[1]) for words in lines if len(words) == 2 and words[0] == "oom_kill")


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
