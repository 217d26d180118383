"""Let living tasks leave their TensorFlow cluster and join another one, with their Python state."""

from collections.abc import Callable, Iterable

from tfmagic.clusters.cells import waiting
from tfmagic.clusters.cells.cell_plan import CellPlan, Options
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.launch.cluster_processes import ClusterProcesses
from tfmagic.errors import TfmagicError
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.system import notices
from tfmagic.system.advice import Step

_REJOIN_S = 70.0  # mostly milliseconds, but TensorFlow can take up to 60 s to delete an iterator
_MANY_RESETS = 8  # measured: a process survives about ten, of 97 threads and 41 MiB each


def rejoin(processes: ClusterProcesses, begin_on: Callable[[CellPlan, Iterable[TaskId]], Job]) -> None:
    """Give all tasks new addresses: living processes forget their former peers, and keep the rest.

    Args:
        begin_on: Starts a cell on tasks.

    Raises:
        RuntimeError: A task holds an object that would not survive; the message names it.
        TfmagicError: As `renew_addresses`, or a task has not answered yet.
    """
    tf_configs = processes.renew_addresses()
    plan = CellPlan(tf_configs=tf_configs, want_value=True, options=Options(view="quiet"))
    job = begin_on(plan, tf_configs)
    try:
        has_ended = waiting.wait(job, _REJOIN_S)
    finally:
        job.ctrl_c.release()
    if not has_ended:
        known = processes.supervisor.state.cells.get(job.number)
        late = [task.name for task in tf_configs if known is not None and task in known.waiting_for]
        where, again = Step("stacks", *late), Step("restart", *late)
        raise TfmagicError(
            f"{' '.join(late)} did not take new addresses within {_REJOIN_S:g} s; it goes on, and later "
            f"cells wait for it. Where it is:  {where} ; a new process:  {again}"
        )
    resets = job.settle().results
    often = [name for name, count in resets.items() if (count or 0) >= _MANY_RESETS]
    if often:
        most = max(resets[name] for name in often)
        warning = (
            f"tfmagic: {', '.join(often)} got new peers {most} times in the same process, each of which "
            f"keeps 97 idle threads and 41 MiB; near ten, take new processes:  {Step('restart')}"
        )
        notices.say(warning)
