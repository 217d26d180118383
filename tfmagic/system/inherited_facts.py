"""What a process has inherited from its parent, and what a fork of another process would have otherwise.

A fork of another process serves this one only if all of these are equal: some cannot be changed afterwards,
others only with rights.
"""

import contextlib
import os
import signal
from pathlib import Path

_OF_STATUS = (  # lines of proc(5)'s status
    "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
    "Seccomp_filters", "Umask", "Cpus_allowed", "Mems_allowed",
)  # fmt: skip
_FILES = ("cgroup", "limits", "oom_score_adj", "personality", "coredump_filter", "attr/current")
_INTERRUPT = 1 << (signal.SIGINT - 1)  # our helpers ignore it


def inherited_facts() -> dict[str, str]:
    """Return users, rights, namespaces, control group, limits, processors and priority of this process."""
    proc = Path("/proc/self")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    facts = {name: status[name].strip() for name in _OF_STATUS if name in status}
    facts["SigIgn"] = f"{int(status['SigIgn'], 16) & ~_INTERRUPT:x}"
    facts["root"] = os.readlink(proc / "root")
    facts["nice"] = f"{os.getpriority(os.PRIO_PROCESS, 0)} {os.sched_getscheduler(0)}"
    facts |= {f"ns/{name}": os.readlink(proc / "ns" / name) for name in os.listdir(proc / "ns")}
    for name in _FILES:
        with contextlib.suppress(OSError):  # not every Linux has it
            facts[name] = (proc / name).read_text()
    return facts
