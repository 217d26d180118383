"""Profiles of cells and calls: which tasks are traced, and what they send.

A task that runs the cell traces it. With parameter servers only the coordinator runs the cell, and the
others serve it in threads of TensorFlow's own: an empty cell before it begins their traces, and another one
after it ends them.
"""

from collections.abc import Callable, Iterable

from tfmagic.clusters.cells.cell_plan import CellPlan, Options
from tfmagic.clusters.cells.job import Job
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Trace
from tfmagic.protocol.task_profile import TaskProfile
from tfmagic.supervisor.state import CellState, ClusterState, Phase

PROFILE_S = 60.0  # a trace is cut then: TensorFlow keeps it in memory
_BEGIN_S = 10.0
_END_S = 60.0  # to write and read a trace
_QUIET = Options(view="quiet")

RunEmpty = Callable[[CellPlan, Iterable[TaskId]], Job]
"""Starts a cell that does nothing but this part of a trace on these tasks."""


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
    plan = CellPlan(
        prompt=job.command.prompt,
        group=job.number,
        trace=Trace.BEGIN,
        trace_s=job.options.profile_s,
        options=_QUIET,
    )
    begun = run_empty(plan, serving)
    begun.done.wait(_BEGIN_S)
    return begun


def end(job: Job, outcome: CellState, run_empty: RunEmpty) -> dict[str, TaskProfile]:
    """End the traces of the tasks that serve the cell; return what each task has traced, by name."""
    ends = dict(outcome.outcomes)
    if job.servers is not None:
        ended = run_empty(CellPlan(trace=Trace.END, options=_QUIET), job.servers.tasks)
        ended.done.wait(_END_S)
        ends |= {} if ended.outcome is None else ended.outcome.outcomes
    lost = TaskProfile(problem="its process ended")
    return {task.name: getattr(end, "profile", None) or lost for task, end in sorted(ends.items())}
