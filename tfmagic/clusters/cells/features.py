"""The half that a feature has in the notebook's process: what it adds to each cluster, and to each cell.

    adapt, before_start: before tasks start ──→ remarks: before a cell runs there; record: while they live
    plan: what goes along with the cell ──→ begin: before the job is sent ──→ begun: after that
    find_hints: hints on its end ←── end: what belongs to the results ←── what the tasks report

`tfmagic.features` lists them. A hook that a feature does not override is left out once, not in each cell.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tfmagic.clusters.cells.cell_plan import CellPlan, Options
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.cells.results import TaskResults
from tfmagic.clusters.launch.checks import check_by
from tfmagic.clusters.launch.program import Program
from tfmagic.clusters.launch.recorders import Recorder
from tfmagic.clusters.launch.rules import Rule
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.protocol.cluster_spec import Shape, TaskId
from tfmagic.protocol.events import CellRaised, CellReturned
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.given_hints import Hint
from tfmagic.runs.schemas import FindingReport
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import features

Setting = Callable[[str], Any]
"""Returns the value of a setting of ``%config TFCluster``."""
RunEmpty = Callable[[CellPlan, Iterable[TaskId]], Job]
"""Starts a cell without code on these tasks, for the halves that features have there."""
Reports = Mapping[TaskId, object]
"""How the cell ended on each task: `CellReturned`, `CellRaised`, or the end of its process."""

OldModules = tuple[Mapping[str, Sequence[TaskId]], Collection[str]]

Variants = Sequence[tuple[str, Iterable[object]]]
"""The name of each variant of a cell, and the reports of its tasks."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a feature can use of the cluster whose cell it joins."""

    setting: Setting
    supervisor: Supervisor
    run_empty: RunEmpty


class Startable(Protocol):
    """A cluster, started or not."""

    shape: Shape
    task_settings: TaskSettings

    @property
    def running(self) -> bool:
        """Whether it runs."""

    def setting(self, name: str) -> Any:
        """Return a setting as it holds for this cluster."""


class Companion(Protocol):
    """What a feature has beside a cluster while it lives.

    Attributes:
        heard: The classes of events that matter to it; can grow.
    """

    heard: set[type]

    def hear(self, event: Any, state: Any) -> None:
        """Take an event; `state` is that before it. On the supervisor's thread."""

    def settle(self, cell: int) -> BaseException | None:
        """Return what a cell that has ended well raises. By the thread that waited for it; can wait."""

    def finish(self) -> None:
        """Begin to end. On the supervisor's thread, when its loop ends."""

    def close(self) -> Iterable[str]:
        """End, and return what the user should know. By the thread that stops the cluster; can wait."""


class CellFeature:
    """One feature.

    Attributes:
        name: Its key in `RunCell.extras`, and in those of `CellReturned` and `CellRaised`.
        options: Its options of ``%%tfcluster``, as arguments of `argparse.ArgumentParser.add_argument`. The
            values are in `Options.chosen`.
        arguments: The rules of those options that are also arguments of calls, whose signatures spell them.
        compared: The options that each cell has in a comparison of networks, where the line has not.
    """

    name = ""
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    arguments: ClassVar[Mapping[str, Rule]] = {}
    compared: ClassVar[Mapping[str, Any]] = {}

    def refuse(self, options: Options, is_detached: bool) -> str:
        """Return why a line cannot have these options together; "" if it can."""
        return ""

    def before_start(self, shell: Any, cluster: Startable) -> Iterable[str]:
        """Return what the user of a notebook is told before a cluster starts, line by line."""
        return ()

    def accompany(self) -> Companion | None:
        """Return what goes along with a new cluster."""
        return None

    def record(self, run: RunFolder) -> Recorder | None:
        """Return what records a run while it happens."""
        return None

    def adapt(self, program: Program, settings: TaskSettings, keras: int | None) -> TaskSettings:
        """Return the settings of tasks that are started for a program.

        Args:
            keras: The version that the user asked for; None if they have not.
        """
        return settings

    def remarks(
        self, program: Program, environ: Mapping[str, str], is_adapted: bool, told: set[str]
    ) -> Iterable[str]:
        """Return what the user is told of a program that is about to run, line by line.

        Args:
            environ: The variables that the import of TensorFlow in its tasks sees, before `adapt`.
            is_adapted: Whether the tasks were started for it.
            told: The names of which they were told before; gets the new ones.
        """
        return ()

    def findings(self, shell: Any, cluster: Startable) -> Iterable[FindingReport]:
        """Return what a report about a cluster says of this machine and environment."""
        return ()

    def plan(self, plan: CellPlan, setting: Setting) -> bytes | None:
        """Return what the half of each task gets with the cell; None for nothing."""
        return None

    def old_modules(
        self, found: Mapping[str, Sequence[TaskId]], known: Collection[str], context: Context
    ) -> None:
        """Tell of modules that have changed since tasks imported them; each change only once.

        Args:
            found: The tasks that have an old version, by module.
            known: All modules of the user's that tasks have.
        """

    def begin(self, job: Job, context: Context) -> None:
        """Prepare for a job that is about to be sent."""

    def begun(self, job: Job, context: Context) -> None:
        """Follow a job that has been sent, and has its view."""

    def end(self, job: Job, reports: Reports, context: Context) -> Any:
        """Take what the tasks have sent, and return what the results have under the feature's name, or None.

        Called by any thread, before the results are made or an exception is raised.
        """

    def renewed(self, context: Context) -> None:
        """Forget what the tasks have done: all of them get new processes."""

    def find_hints(self, reports: Reports) -> Iterable[Hint]:
        """Return hints on a cell, call or script that has ended."""
        return ()

    def compare(self, variants: Variants) -> Iterable[str]:
        """Return what is told of a cell that has ended in several clusters, line by line."""
        return ()

    def communication(self, results: TaskResults[Any]) -> float | None:
        """Return the share of the tasks' time that went into sending and receiving; None: not known."""
        return None

    def sent(self, report: object) -> bytes:
        """Return what the half of a task has sent with its report; empty for nothing."""
        if isinstance(report, CellReturned | CellRaised):
            return report.extras.get(self.name, b"")
        return b""


@functools.cache
def installed() -> tuple[CellFeature, ...]:
    """Return all features, in their order."""
    return tuple(module.FEATURE for module in features.halves("kernel"))


@functools.cache
def _that_have(hook: str) -> tuple[CellFeature, ...]:
    return tuple(each for each in installed() if getattr(type(each), hook) is not getattr(CellFeature, hook))


def chosen(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call that are for features, as their rules take them; False is none.

    Raises:
        TypeError, ValueError: As `check`; or the feature is not there.
    """
    given = {name: value for name, value in arguments.items() if value is not False}
    rules = {name: rule for each in installed() for name, rule in each.arguments.items()} if given else {}
    for name in given.keys() - rules.keys():
        raise TypeError(f"{name} belongs to a feature that this tfmagic does not have")
    return {name: check_by(rules[name], name, value) for name, value in given.items()}


def refuse(options: Options, is_detached: bool) -> str:
    """Return why a line cannot have the options of features that it has; "" if it can."""
    return next(filter(None, (each.refuse(options, is_detached) for each in _that_have("refuse"))), "")


def before_start(shell: Any, cluster: Startable) -> list[str]:
    """Return what the user of a notebook is told before a cluster starts, line by line."""
    return [line for each in _that_have("before_start") for line in each.before_start(shell, cluster)]


def recorders(run: RunFolder) -> list[Recorder]:
    """Return what records a run while it happens."""
    found = (each.record(run) for each in _that_have("record"))
    return [recorder for recorder in found if recorder is not None]


def companions() -> list[Companion]:
    """Return what goes along with a new cluster."""
    found = (each.accompany() for each in _that_have("accompany"))
    return [companion for companion in found if companion is not None]


def adapt(program: Program, settings: TaskSettings, keras: int | None) -> TaskSettings:
    """Return the settings of tasks that are started for a program; see `CellFeature.adapt`."""
    for each in _that_have("adapt"):
        settings = each.adapt(program, settings, keras)
    return settings


def remarks(program: Program, environ: Mapping[str, str], is_adapted: bool, told: set[str]) -> Iterator[str]:
    """Yield what the user is told of a program that is about to run; see `CellFeature.remarks`."""
    for each in _that_have("remarks"):
        yield from each.remarks(program, environ, is_adapted, told)


def findings(shell: Any, cluster: Startable) -> list[FindingReport]:
    """Return what a report about a cluster says of this machine and environment."""
    return [found for each in _that_have("findings") for found in each.findings(shell, cluster)]


def extras_of(plan: CellPlan, setting: Setting) -> dict[str, bytes]:
    """Return what goes along with a cell, by feature."""
    found = {each.name: each.plan(plan, setting) for each in _that_have("plan")}
    return {**{name: record for name, record in found.items() if record is not None}, **plan.extras}


def old_modules(find: Callable[[], OldModules], context: Context) -> None:
    """Tell of modules that have changed, if a feature does."""
    if listeners := _that_have("old_modules"):
        found, known = find()
        for each in listeners if found else ():
            each.old_modules(found, known, context)


def begin(job: Job, context: Context) -> None:
    """Let each feature prepare for a job."""
    for each in _that_have("begin"):
        each.begin(job, context)


def begun(job: Job, context: Context) -> None:
    """Let each feature follow a job."""
    for each in _that_have("begun"):
        each.begun(job, context)


def end(job: Job, reports: Reports, context: Context) -> None:
    """Let each feature take what the tasks have sent."""
    for each in _that_have("end"):
        job.found[each.name] = each.end(job, reports, context)


def renewed(context: Context) -> None:
    """Let each feature forget what tasks have done that get new processes."""
    for each in _that_have("renewed"):
        each.renewed(context)


def find_hints(reports: Reports) -> list[Hint]:
    """Return the hints of all features on a cell, call or script that has ended."""
    return [hint for each in _that_have("find_hints") for hint in each.find_hints(reports)]


def compared() -> dict[str, Any]:
    """Return the options of features that a cell has in a comparison of networks."""
    return {name: value for each in installed() for name, value in each.compared.items()}


def communication(results: TaskResults[Any]) -> float | None:
    """Return the share of the tasks' time that went into sending and receiving; None: not known."""
    found = (each.communication(results) for each in _that_have("communication"))
    return next((share for share in found if share is not None), None)


def compare(variants: Variants) -> list[str]:
    """Return the lines of all features about a cell that has ended in several clusters."""
    return [line for each in _that_have("compare") for line in each.compare(variants)]
