"""Profiles of cells and calls: which tasks are traced, and what they send.

A task that runs the cell traces it. With parameter servers only the coordinator runs the cell, and the
others serve it in threads of TensorFlow's own: an empty cell before it begins their traces, and another one
after it ends them.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.cells.task_variables import cell_numbers
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell, Trace
from tfmagic.protocol.task_profile import TaskProfile
from tfmagic.supervisor.state import CellState, ClusterState, Phase

PROFILE_S = 60.0  # a trace is cut then: TensorFlow keeps it in memory
_BEGIN_S = 10.0
_END_S = 60.0  # to write and read a trace

RunEmpty = Callable[[Iterable[TaskId], RunCell], Job]
"""Starts a cell that does nothing but this part of a trace on these tasks."""


def traced(commands: Mapping[TaskId, RunCell], seconds: float) -> Mapping[TaskId, RunCell]:
    """Return the commands of a cell that is traced for at most so many seconds; 0: that is not traced."""
    if not seconds:
        return commands
    how = {"trace": Trace.WHOLE, "trace_s": seconds}
    return {task: msgspec.structs.replace(command, **how) for task, command in commands.items()}


def begin(job: Job, state: ClusterState, run_empty: RunEmpty) -> Job | None:
    """Begin to trace the idle ps and worker tasks that serve the cell of `job` and do not run it."""
    if not job.options.profile_s or not any(task.type == "ps" for task in state.tasks):
        return None
    busy = {task for cell in state.cells.values() for task in cell.waiting_for}
    serving = [
        task
        for task, seen in state.tasks.items()
        if task.type in ("ps", "worker") and seen.phase is Phase.READY and task not in {*busy, *job.tasks}
    ]
    if not serving:
        return None
    how = RunCell(next(cell_numbers), prompt=job.command.prompt, group=job.number)
    how = msgspec.structs.replace(how, trace=Trace.BEGIN, trace_s=job.options.profile_s)
    begun = run_empty(serving, how)
    begun.done.wait(_BEGIN_S)
    return begun


def end(job: Job, outcome: CellState, run_empty: RunEmpty) -> dict[str, TaskProfile]:
    """End the traces of the tasks that serve the cell; return what each task has traced, by name."""
    ends = dict(outcome.outcomes)
    if job.servers is not None:
        ended = run_empty(job.servers.tasks, RunCell(next(cell_numbers), trace=Trace.END))
        ended.done.wait(_END_S)
        ends |= {} if ended.outcome is None else ended.outcome.outcomes
    lost = TaskProfile(problem="its process ended")
    return {task.name: getattr(end, "profile", None) or lost for task, end in sorted(ends.items())}
