"""What line commands say of a fault: what was done, to which tasks, and the line that undoes it."""

import signal
from collections.abc import Mapping, Sequence

from tfmagic.features.faults.lab import FaultLab
from tfmagic.frontends.notebook.reports import names_of
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.system.memory import format_bytes


def injury(kind: str, pids: Mapping[TaskId, int], after: Mapping[TaskId, int], amount: float) -> str:
    """Describe what a fault has done to the tasks, and how to undo it.

    Args:
        pids: The tasks, with their processes before it.
        after: Their processes after it.
    """
    names, words = names_of(pids), " ".join(task.name for task in pids)
    match kind:
        case "pause":
            return f"paused {names} (SIGSTOP); %tfcluster resume {words} continues"
        case "resume":
            return f"continued {names} (SIGCONT)"
        case "slow" if amount == 1:
            return f"{names} at full speed again"
        case "slow":
            return f"made {names} {amount:g} times slower; %tfcluster slow {words} 1 ends that"
        case "flood":
            each = f"{int(amount):,} bytes ({format_bytes(amount)})"
            return f"{names}: {each}{' each' if len(pids) > 1 else ''} on the way to the error stream"
    living = [task for task, pid in pids.items() if after[task] == pid]
    ended = [task for task in pids if task not in living]
    parts = [f"sent {signal.Signals(signal.SIGTERM if kind == 'preempt' else int(amount)).name} to {names}"]
    if ended:
        parts.append(f"{names_of(ended)} ended; %tfcluster revive gives new processes")
    if living:
        parts.append(f"{names_of(living)} did not end by it, and can save and go on")
    return "; ".join(parts)


def partition(lab: FaultLab, kind: str, hosts: Sequence[str]) -> str:
    """Return which hosts were cut off or joined again, with their tasks, and the next step."""
    if not hosts:
        return "these hosts are cut off already" if kind == "partition" else "no host was cut off"
    named = ", ".join(f"{host} ({names_of(lab.tasks_on(host))})" for host in hosts)
    if kind == "heal":
        return f"joined {named} to the others again"
    return f"cut {named} off from the others; %tfcluster heal {' '.join(hosts)} joins again"
