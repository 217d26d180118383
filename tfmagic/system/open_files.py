"""Find the processes that have a file open, for reading or for writing, in /proc.

Processes of other users, and of other machines that share the disk, are not found.
"""

import contextlib
import os


def find_openers(path: str | os.PathLike[str]) -> dict[int, list[int]]:
    """Return the flags of open(2) of each descriptor on this file, by pid, this process included."""
    try:
        wanted = os.stat(path)
    except OSError:
        return {}
    pids = sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return {pid: flags for pid in pids if (flags := _open_flags(pid, wanted))}


def may_write(flags: list[int]) -> bool:
    """Check whether one of these descriptors is for writing."""
    return any(flag & os.O_ACCMODE != os.O_RDONLY for flag in flags)


def _open_flags(pid: int, wanted: os.stat_result) -> list[int]:
    flags = []
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError, StopIteration, ValueError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), wanted):
                    with open(f"/proc/{pid}/fdinfo/{fd}") as file:
                        line = next(line for line in file if line.startswith("flags:"))
                    flags.append(int(line.split()[1], 8))
    return flags


def find_writers(path: str | os.PathLike[str]) -> list[int]:
    """Return the pids of the processes that have this file open for writing, in order."""
    return [pid for pid, flags in find_openers(path).items() if may_write(flags)]
