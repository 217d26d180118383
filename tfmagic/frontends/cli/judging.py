"""From how the tasks ended to the verdict on the run."""

from __future__ import annotations

from tfmagic.clusters.one_shot_tasks import OneShotTasks
from tfmagic.failures import hints, stacks
from tfmagic.failures.deaths import describe_end
from tfmagic.failures.root_cause import also_failed, find_failures
from tfmagic.frontends.cli.doctor import in_a_shell
from tfmagic.frontends.cli.parsers import program_name
from tfmagic.frontends.cli.verdicts import Ending, Verdict, exit_code, place_of
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellRaised, CellReturned, TaskExited, TaskLost
from tfmagic.protocol.payload import PackedError
from tfmagic.runs.log_reader import tail_lines
from tfmagic.runs.tensorflow_noise import is_noise
from tfmagic.supervisor.state import Outcome

_TAIL_LINES = 20


def failed_tasks(errands: OneShotTasks) -> dict[TaskId, Outcome]:
    """How the tasks failed whose last process did, the root cause first."""
    cell = errands.failures()
    return {
        task: outcome
        for task, outcome in find_failures(cell).items()
        if errands.known[task].failed_at is not None
    }


def judge(errands: OneShotTasks, ending: Ending, seconds: float) -> Verdict:
    """The verdict on a run whose tasks have all ended."""
    failed = failed_tasks(errands)
    root = next(iter(failed), None)
    code = exit_code(ending, None if root is None else failed[root])
    where = f"{program_name()} logs {errands.life.run}"
    if root is None or ending in (Ending.INTERRUPTED, Ending.TERMINATED):
        return Verdict(ending, code, seconds=seconds, where=where)
    outcome = failed[root]
    others = [(task, how) for task, how in failed.items() if task != root]
    notes = [*also_failed(errands.failures(), outcome, others), *_advice(outcome)]
    ended = [t for t, errand in errands.known.items() if errand.terminated and t not in failed]
    return Verdict(ending, code, root, *_tell(errands, root, outcome), notes, ended, seconds, where)


def _tell(errands: OneShotTasks, task: TaskId, outcome: Outcome) -> tuple[str, str, str]:
    """Why a task failed, where, and its traceback or what it last said."""
    match outcome:
        case CellRaised(error=packed):
            return f"raised {_headline(packed)}", place_of(packed.text), packed.text.rstrip()
        case TaskExited() | TaskLost():
            run = errands.life.run
            stack = stacks.fatal_stack(run, task, outcome.attempt)
            tail = [line for line in tail_lines(run.log_path(task), _TAIL_LINES) if not is_noise(line)]
            details = ["its Python stack, the innermost call first:", stack] if stack else []
            details += ["its last lines of output:", *(f"  {line}" for line in tail)] if tail else []
            why = describe_end(outcome, errands.life.watch)
            return why, place_of(stack, innermost_first=True), "\n".join(details)
        case CellReturned():
            raise AssertionError("a task that returned has not failed")


def _headline(packed: PackedError) -> str:
    first = next(iter(packed.message.strip().splitlines()), "")
    return f"{packed.type_name}: {first}" if first else packed.type_name


def _advice(outcome: Outcome) -> list[str]:
    """The hint for a known trap, where it is of use without a notebook."""
    if not isinstance(outcome, CellRaised):
        return []
    advice = in_a_shell(hints.find_hint(outcome.error))
    return [f"hint: {advice}"] if advice and "%" not in advice else []
