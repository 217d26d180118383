"""Python stacks of task processes: this module asks for them. See `tfmagic.runs.stack_files`."""

from collections.abc import Iterable, Mapping

from tfmagic.failures import ipython_tracebacks
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import SignalAsked, Wait
from tfmagic.runs.folder import RunFolder, attempt_mark
from tfmagic.runs.stack_files import group_stacks, read_stacks, stack_offsets
from tfmagic.supervisor.state import SIGUSR1, ClusterState, Phase
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import files, own_code


def can_answer(state: ClusterState, task: TaskId) -> bool:
    """Check whether the task's process has its fault handler: before, the signal would end it."""
    return state.tasks[task].phase in (Phase.READY, Phase.RUNNING)


def take_stacks(supervisor: Supervisor, run: RunFolder, tasks: Iterable[TaskId]) -> dict[str, str]:
    """Ask the task processes that can answer for their stacks; return these by task name."""
    asked = [task for task in tasks if can_answer(supervisor.state, task)]
    before = stack_offsets(run, asked)
    for task in asked:
        supervisor.ask(SignalAsked(task, SIGUSR1))
    return read_stacks(run, before)


def fatal_stack(run: RunFolder, task: TaskId, attempt: int) -> str:
    """Return the stack of the thread in which the task crashed, the innermost call first, or ""."""
    _, found, text = files.text_of(run.stacks_path(task)).rpartition(attempt_mark(attempt))
    _, fatal, text = text.partition("Fatal Python error:")
    _, current, text = text.partition("Current thread")
    return "\n".join(own_code.users_lines(text.split("\n\n")[0])) if found and fatal and current else ""


def describe(taken: Mapping[str, str], state: ClusterState, tasks: Iterable[TaskId]) -> str:
    """Return the stacks of these tasks as text, equal ones once; a task that did not answer is named."""
    silent = [
        f"{task}: no answer; its process is "
        f"{'stopped' if can_answer(state, task) else state.tasks[task].phase.value}"
        for task in tasks
        if task.name not in taken
    ]
    return "\n".join([text for text in (name_groups(taken, state), *silent) if text])


def name_groups(stacks: Mapping[str, str], state: ClusterState) -> str:
    """Return `group_stacks` with the notebook's names of cells, and the object each task waits for."""
    waits = {}
    for cell in state.cells.values():
        for task in cell.waiting_for:
            mark = cell.progress.get(task)
            place = None if mark is None else mark.place
            if place is not None and place.wait is not Wait.NONE:
                inside = f"in {place.inside}" if place.inside else ""
                waits[task.name] = f"  {f'waits {inside}'.strip()}: {place.wait.value}\n"
    return ipython_tracebacks.name_cells(group_stacks(stacks, waits))


def read_grouped(run: RunFolder, dumps: Mapping[TaskId, int]) -> str:
    """Read the stacks that these tasks were asked for; return them grouped, with the names of cells."""
    if not dumps:
        return ""
    return ipython_tracebacks.name_cells(group_stacks(read_stacks(run, dict(sorted(dumps.items())))))
