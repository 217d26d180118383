"""What a process has inherited from its parent, and what a fork of another process would have otherwise.

A fork of another process serves this one only if all of these are equal: some cannot be changed afterwards,
others only with rights.
"""

import contextlib
import ctypes
import os
import platform
import signal
from pathlib import Path

_OF_STATUS = (  # lines of proc(5)'s status
    "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
    "Seccomp_filters", "Umask", "Cpus_allowed", "Mems_allowed", "THP_enabled",
)  # fmt: skip
_FILES = ("cgroup", "limits", "oom_score_adj", "personality", "coredump_filter", "attr/current")
_SYSCALLS = {"x86_64": (250, 239), "aarch64": (219, 236)}  # keyctl and get_mempolicy, which the libc has not
_SESSION_KEYRING = -3
_GET_TIMERSLACK = 30  # of prctl
_NODES = 1024  # at most, in the mask of a memory policy
_INTERRUPT = 1 << (signal.SIGINT - 1)  # our helpers ignore it


def inherited_facts(pid: int = 0) -> dict[str, str]:
    """Return users, rights, namespaces, control group, limits, processors and priority of a process.

    Args:
        pid: The process; by default this one, of which more facts are known.

    Raises:
        OSError: It has ended, or has rights that this process does not have.
    """
    known = {} if pid else _known_to_itself()
    pid = pid or os.getpid()
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    facts = {name: status[name].strip() for name in _OF_STATUS if name in status}
    facts["SigIgn"] = f"{int(status['SigIgn'], 16) & ~_INTERRUPT:x}"
    facts["root"] = os.readlink(proc / "root")
    facts["nice"] = f"{os.getpriority(os.PRIO_PROCESS, pid)} {os.sched_getscheduler(pid)}"
    facts |= {f"ns/{name}": os.readlink(proc / "ns" / name) for name in os.listdir(proc / "ns")}
    for name in _FILES:
        with contextlib.suppress(OSError):  # not every Linux has it
            facts[name] = (proc / name).read_text()
    return facts | known


def _known_to_itself() -> dict[str, str]:
    """Return what only a process itself can ask for: session keyring, timer slack and memory policy.

    A call that the system refuses, as in many containers, gives the same error in each process there.
    """
    libc = ctypes.CDLL(None)
    facts = {"timer slack": str(libc.prctl(_GET_TIMERSLACK, 0, 0, 0, 0))}
    if (calls := _SYSCALLS.get(platform.machine())) is not None:
        keyctl, get_mempolicy = calls
        facts["session keyring"] = str(libc.syscall(keyctl, 0, _SESSION_KEYRING, 0))
        mode, nodes = ctypes.c_int(), ctypes.create_string_buffer(_NODES // 8)
        libc.syscall(
            get_mempolicy, ctypes.byref(mode), nodes, ctypes.c_ulong(_NODES), None, ctypes.c_ulong(0)
        )
        facts["memory policy"] = f"{mode.value} {nodes.raw.hex().rstrip('0')}"
    return facts
