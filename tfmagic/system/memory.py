"""Memory of the machine or container: its limit, what is free, and how often Linux has killed for lack of it.

Linux counts its out-of-memory kills for the machine (``/proc/vmstat``, oom_kill) and for each control
group (``memory.events`` in version 2, ``memory.oom_control`` in version 1; see the kernel's admin-guide,
cgroup-v2.rst and cgroup-v1/memory.rst). When a count has grown and a process has ended by SIGKILL at the
same time, the process was killed for lack of memory.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_KILLED_FIRST = 500  # counts as much as half of the machine's memory
_LOW_SHARE, _LOW_BYTES = 0.05, 1 << 30  # below both, Linux soon kills a process


def limit_bytes(cgroups: Path = _CGROUPS) -> int:
    """Return the memory that this process and its tasks can use together: of the machine or container."""
    found = [psutil.virtual_memory().total]
    for folder in cgroup_folders(cgroups):
        found += _numbers(folder, "memory.max", "memory.limit_in_bytes")
    return min(found)


def free_bytes(cgroups: Path = _CGROUPS) -> int:
    """Return the memory that is left: on the machine, or under its container's limit.

    A control group also counts the files that it has read. Linux drops those that are not in use when memory
    is needed ("inactive_file" of ``memory.stat``), so they count as free.
    """
    found = [psutil.virtual_memory().available]
    for folder in cgroup_folders(cgroups):
        limits = _numbers(folder, "memory.max", "memory.limit_in_bytes")
        used = _numbers(folder, "memory.current", "memory.usage_in_bytes")
        if limits and used:
            stat = dict(line.split() for line in read_text(folder / "memory.stat").splitlines())
            unused = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
            found.append(max(limits[0] - used[0] + unused, 0))
    return min(found)


def shortage(uses: Mapping[str, int | None], cgroups: Path = _CGROUPS) -> str:
    """Return a warning that names the task which `uses` the most bytes; "" while there is enough memory."""
    free, limit = free_bytes(cgroups), limit_bytes(cgroups)
    if free > min(_LOW_SHARE * limit, _LOW_BYTES):
        return ""
    known = {name: used for name, used in uses.items() if used}
    most = max(known, key=lambda name: known[name], default="")
    whose = f"; {most} has most of it, {format_bytes(known[most])}" if most else ""
    return f"memory is nearly used up: {format_bytes(free)} of {format_bytes(limit)} are left{whose}"


def count_oom_kills(cgroups: Path = _CGROUPS, vmstat: Path = Path("/proc/vmstat")) -> int:
    """Return the number of processes that Linux has killed for lack of memory; only its growth matters."""
    texts = [read_text(vmstat)]
    for folder in cgroup_folders(cgroups):
        texts += [read_text(folder / "memory.events"), read_text(folder / "memory.oom_control")]
    lines = (line.split() for text in texts for line in text.splitlines())
    return sum(int(words[1]) for words in lines if len(words) == 2 and words[0] == "oom_kill")


def be_killed_first() -> None:
    """Let Linux kill this process, and not its kernel or their server, when memory is used up (proc(5))."""
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        path.write_text(str(min(int(path.read_text()) + _KILLED_FIRST, 1000)))


def cgroup_folders(cgroups: Path = _CGROUPS, controller: str = "memory") -> Iterator[Path]:
    """Yield the folders of this process' control groups and of the groups around them, the outermost last."""
    yield from _folders_of(read_text(Path("/proc/self/cgroup")), cgroups, controller)


@functools.lru_cache(maxsize=8)  # a cluster at rest asks each second
def _folders_of(groups: str, cgroups: Path, controller: str) -> tuple[Path, ...]:
    seen: dict[Path, None] = {}
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroups / controller if controllers else cgroups
        folder = root / path.lstrip("/")
        while folder.is_relative_to(root) and folder not in seen:
            seen[folder] = None
            folder = folder.parent
    return tuple(seen)


def _numbers(folder: Path, *names: str) -> list[int]:
    """Return the numbers in those of the files that exist and hold one."""
    return [int(text) for name in names if (text := read_text(folder / name).strip()).isdigit()]


def read_text(path: Path) -> str:
    """Return a file of the system; "" if it is missing, or not readable for this user."""
    try:
        return path.read_text()
    except OSError:
        return ""


def format_bytes(size: float) -> str:
    """Return a size for people: ``64 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
