"""Profiles of cells and calls: which tasks are traced, and the comparison of what they send.

A task that runs the cell traces it. With parameter servers only the coordinator runs the cell, and the
others serve it in threads of TensorFlow's own: an empty cell before it begins their traces, and another one
after it ends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tfmagic.clusters.cells.job import Job, Options
from tfmagic.clusters.cells.task_variables import Prepared, cell_numbers
from tfmagic.clusters.tools import tensorboard
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell, Trace
from tfmagic.protocol.task_profile import TaskProfile
from tfmagic.supervisor.state import CellState, Phase
from tfmagic.views.time_shares import Profile, compare

if TYPE_CHECKING:
    from tfmagic.clusters.running_cluster import RunningCluster

PROFILE_S = 60.0  # a trace is cut then: TensorFlow keeps it in memory
_BEGIN_S = 10.0
_END_S = 60.0  # to write and read a trace


def traced(commands: Mapping[TaskId, RunCell], seconds: float) -> Mapping[TaskId, RunCell]:
    """Return the commands of a cell that is traced for at most so many seconds; 0: that is not traced."""
    if not seconds:
        return commands
    how = {"trace": Trace.WHOLE, "trace_s": seconds}
    return {task: msgspec.structs.replace(command, **how) for task, command in commands.items()}


def trace_servers(cluster: RunningCluster, job: Job) -> Job | None:
    """Begin to trace the idle ps and worker tasks that serve the cell of `job` and do not run it."""
    state = cluster.supervisor.state
    if not job.options.profile_s or not any(task.type == "ps" for task in state.tasks):
        return None
    busy = {task for cell in state.cells.values() for task in cell.waiting_for}
    serving = [
        task
        for task, seen in state.tasks.items()
        if task.type in ("ps", "worker") and seen.phase is Phase.READY and task not in {*busy, *job.tasks}
    ]
    how = {"trace_s": job.options.profile_s, "prompt": job.command.prompt, "group": job.number}
    return _run_empty(cluster, serving, Trace.BEGIN, _BEGIN_S, **how) if serving else None


def profile_of(cluster: RunningCluster, job: Job, outcome: CellState) -> Profile | None:
    """End the traces of the tasks that serve a cell; return where its time went, if it was traced."""
    if not job.options.profile_s:
        return None
    ends = dict(outcome.outcomes)
    if job.servers is not None:
        ended = _run_empty(cluster, job.servers.tasks, Trace.END, _END_S)
        ends |= {} if ended.outcome is None else ended.outcome.outcomes
    found = {task.name: _profile_in(end) for task, end in sorted(ends.items())}
    if cluster.supervisor.backend.runs_here:
        return compare(found, {}, tensorboard.profile_advice(cluster.run))
    hosts = {task.name: seen.host for task, seen in cluster.supervisor.state.tasks.items()}
    return compare(found, hosts)


def _profile_in(end: object) -> TaskProfile:
    return getattr(end, "profile", None) or TaskProfile(problem="its process ended")


def _run_empty(
    cluster: RunningCluster, tasks: Iterable[TaskId], trace: Trace, timeout_s: float, **fields: Any
) -> Job:
    """Run a cell that does nothing but this part of a trace, and wait for its end, but not longer."""
    command = RunCell(next(cell_numbers), trace=trace, **fields)
    job = cluster.begin(Prepared(dict.fromkeys(tasks, command)), Options(view="quiet"), detached=True)
    job.done.wait(timeout_s)
    return job
