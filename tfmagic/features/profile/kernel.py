"""Profiles of cells and calls: which tasks are traced, and what they send.

A task that runs the cell traces it. With parameter servers only the coordinator runs the cell, and the
others serve it in threads of TensorFlow's own: an empty cell before it begins their traces, and another one
after it ends them.
"""

import weakref
from typing import Any, ClassVar

from tfmagic.clusters.cells.cell_plan import CellPlan, Options
from tfmagic.clusters.cells.features import CellFeature, Context, Reports, Setting
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.cells.results import TaskResults
from tfmagic.clusters.launch.arguments import parse_seconds
from tfmagic.clusters.launch.rules import Rule, require, take_number
from tfmagic.features.profile import shares
from tfmagic.features.profile.records import FOLDER, Asked, TaskProfile, Trace, decode_profile, encode
from tfmagic.features.profile.shares import Profile
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs import trace_folders
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor.state import ClusterState, Phase
from tfmagic.system import features

PROFILE_S = 60.0  # a trace is cut then: TensorFlow keeps it in memory
_BEGIN_S = 10.0
_END_S = 60.0  # to write and read a trace
_QUIET = Options(view="quiet")


class Profiles(CellFeature):
    """The option ``--profile`` and the argument `profile` of calls."""

    name = "profile"
    options: ClassVar = {
        "--profile": {
            "metavar": "SECONDS",
            "help": f"show where the time went; trace the first SECONDS ({PROFILE_S:.0f}) of the cell",
            "type": parse_seconds,
            "nargs": "?",
            "const": PROFILE_S,
        }
    }

    arguments: ClassVar = {
        "profile": Rule(
            "True, False or a number of seconds above 0",
            lambda value: value if value is True else require(take_number(value), lambda n: n > 0),
        )
    }
    compared: ClassVar = {"profile": True}

    def __init__(self) -> None:
        # by job, the one that traces the tasks which serve it
        self._serving = weakref.WeakKeyDictionary[Job, Job]()

    def refuse(self, options: Options, is_detached: bool) -> str:
        """A profile that nothing shows needs a name."""
        if is_detached and _seconds_of(options) and not options.out:
            return "--detach shows no profile at the cell's end: give --out NAME, then NAME.profile has it"
        return ""

    def plan(self, plan: CellPlan, setting: Setting) -> bytes | None:
        """Ask the tasks of the cell for a trace."""
        seconds = _seconds_of(plan.options)
        return encode(Asked(Trace.WHOLE, seconds)) if seconds else None

    def begin(self, job: Job, context: Context) -> None:
        """Begin to trace the idle ps and worker tasks that serve the cell and do not run it."""
        state = context.supervisor.state
        if not _seconds_of(job.options) or not any(task.type == "ps" for task in state.tasks):
            return
        if serving := _idle_servers(state, job):
            asked = encode(Asked(Trace.BEGIN, _seconds_of(job.options)))
            extras = {self.name: asked}
            plan = CellPlan(prompt=job.command.prompt, group=job.number, extras=extras, options=_QUIET)
            begun = context.run_empty(plan, serving)
            begun.done.wait(_BEGIN_S)
            self._serving[job] = begun

    def end(self, job: Job, reports: Reports, context: Context) -> Profile | None:
        """End the traces of the tasks that serve the cell, and compare what all have traced."""
        if not _seconds_of(job.options):
            return None
        ends = dict(reports)
        if (served := self._serving.pop(job, None)) is not None:
            plan = CellPlan(extras={self.name: encode(Asked(Trace.END))}, options=_QUIET)
            ended = context.run_empty(plan, served.tasks)
            ended.done.wait(_END_S)
            ends |= {} if ended.outcome is None else ended.outcome.outcomes
        found = {task.name: self._profile_of(end) for task, end in sorted(ends.items())}
        supervisor = context.supervisor
        if supervisor.backend.runs_here:
            return shares.compare(found, {}, advice(job.run))
        hosts = {task.name: seen.host for task, seen in supervisor.state.tasks.items()}
        return shares.compare(found, hosts)

    def communication(self, results: TaskResults[Any]) -> float | None:
        """Return the mean share of the tasks."""
        tasks = () if results.profile is None else results.profile.tasks.values()
        found = [sum(task.shares[part] for part in ("transferring", "remote")) for task in tasks]
        return sum(found) / len(found) if found else None

    def _profile_of(self, report: object) -> TaskProfile:
        sent = self.sent(report)
        return decode_profile(sent) if sent else TaskProfile(problem="its process ended")


FEATURE = Profiles()


def advice(run: RunFolder) -> str:
    """Return where the traces of a run's cells are, or how to open them, and what it needs."""
    lacks = "" if trace_folders.has_plugin() else f"; it needs {trace_folders.PLUGIN}"
    folder = run.folder / FOLDER
    return f"the full traces:  {next(features.steps('show traces', folder), folder)}{lacks}"


def _seconds_of(options: Options) -> float:
    chosen = options.chosen.get("profile", 0.0)
    return PROFILE_S if chosen is True else float(chosen)


def _idle_servers(state: ClusterState, job: Job) -> list[TaskId]:
    busy = {task for cell in state.cells.values() for task in cell.waiting_for}
    return [
        task
        for task, seen in state.tasks.items()
        if task.type in ("ps", "worker") and seen.phase is Phase.READY and task not in {*busy, *job.tasks}
    ]
