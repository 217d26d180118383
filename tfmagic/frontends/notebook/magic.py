"""``%%tfcluster`` and ``%tfcluster``: a line and a cell become calls of `Cluster`.

    line ── options ──────→ which cluster, which shape           (a mistake starts nothing)
    cell ── cell_source ──→ Python source and the names it reads (a syntax error starts nothing)
    Cluster.begin_cell ──→ wait, or await ──→ TaskResults ──→ --out, --pull   (a failure is raised as it was)

`registered` has the magics that IPython calls, and imports this module at their first use. A cell is a
generator that yields each job whose end it needs: the blocking magic waits for the job, and the magic that
`awaited_cells` puts in its place awaits it. Only the public interface of `Cluster` is used here, so that
Python code can do the same. Frames of tfmagic are cut out of what these methods raise.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

import msgspec
from IPython.core.error import UsageError
from IPython.display import display

from tfmagic.clusters.api.lines import COMMANDS
from tfmagic.clusters.attaching import attach
from tfmagic.clusters.cells import features
from tfmagic.clusters.cells.cell_plan import CellPlan
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.launch import kept_clusters
from tfmagic.clusters.launch.cluster_options import OPTIONS, ShapeOptions, TaskOptions, values_in
from tfmagic.clusters.launch.given_options import GivenOptions, other_than_default
from tfmagic.clusters.launch.program import Program
from tfmagic.errors import BackendError, ClusterSpecError
from tfmagic.frontends.notebook import (
    detached_cells,
    one_liners,
    plain_cells,
    reports,
    steps,
)
from tfmagic.frontends.notebook.cell_source import prepare_cell
from tfmagic.frontends.notebook.local_cell import LocalCell
from tfmagic.frontends.notebook.options import (
    DEFAULT_NAME,
    CellLine,
    HelpShown,
    parse_cell_line,
    parse_line,
)
from tfmagic.frontends.notebook.starting import Starting
from tfmagic.frontends.notebook.view_choice import can_update, check_view, choose_view, is_watched, publisher
from tfmagic.protocol.cluster_spec import ClusterShape, Selector, select
from tfmagic.runs.folder import RunFolder
from tfmagic.system import notices, own_code
from tfmagic.system.advice import did_you_mean
from tfmagic.system.features import halves
from tfmagic.views.progress import StartProgress
from tfmagic.views.task_widgets import WidgetPage

Steps = Generator[Job | LocalCell, Any, None]  # a job is answered with its `CellResult`
PreparedCell = tuple[CellPlan, frozenset[str]]  # with the names that it can need from the notebook


class NotebookClusters:
    """The clusters of this notebook by name, and what the magics do with them."""

    def __init__(self, shell: Any):
        self.shell = shell
        self.clusters: dict[str, Cluster] = {}
        self.shapes: dict[str, GivenOptions] = {}
        self.detached = detached_cells.DetachedJobs(shell)

    def run(self, line: str, cell: str | None) -> None:
        """Do what ``%%tfcluster`` and ``%tfcluster`` do."""
        if cell is None and (one := one_liners.split(line))[1]:
            line, cell = one
        try:
            if cell is None:
                name, options = parse_line(line)
                COMMANDS[name].run(self, **options)
            else:
                with contextlib.closing(self._cell_steps(parse_cell_line(line), cell)) as cell_steps:
                    steps.drive(cell_steps)
        except BaseException as error:
            if (shown := _shown_error(error)) is not None:
                raise shown  # noqa: B904

    async def run_async(self, line: str, cell: str) -> None:
        """Do what ``%%tfcluster`` does, while the notebook's event loop goes on."""
        try:
            with contextlib.closing(self._cell_steps(parse_cell_line(line), cell)) as cell_steps:
                await steps.drive_async(cell_steps)
        except BaseException as error:
            if (shown := _shown_error(error)) is not None:
                raise shown  # noqa: B904

    async def wait_async(self, line: str) -> None:
        """Do what ``%tfcluster wait`` does, while the notebook's event loop goes on."""
        try:
            _, wait = parse_line(line)
            print(await self.detached.wait_async(self.known(wait["name"]), wait["timeout"], wait["plain"]))
        except BaseException as error:
            if (shown := _shown_error(error)) is not None:
                raise shown  # noqa: B904

    # -- cells --

    def _cell_steps(self, options: CellLine, body: str) -> steps.Steps:
        """Run the cell; yield each job that must end before the next step."""
        notices.begin()
        check_view(options.view, self.shell)
        prepared, reads = prepare_cell("\n" * (options.line - 1) + body, self.shell)
        if options.plain:
            plain_cells.keep_as_typed(self.shell, prepared.source)
        if options.plain and not can_update(self.shell) and not hasattr(self.shell, "prompts"):
            print(f"tfmagic: on cluster {options.name}")  # a panel or a prompt has the name
        cell = (prepared, frozenset[str]() if options.no_capture else reads)
        if options.detach:
            used = self.cluster_for(options.name, options.shape, options.how.on)
            shown = yield from self.start_for(prepared, used, options.shape)
            plan = self.plan(options, cell, shown)
            self.detached.add(used, used.begin_cell(plan, detached=True), options.how.out or None)
        else:
            yield from self._run_tasks(options, cell)
        if options.local:
            yield LocalCell(prepared, self.shell)

    def _run_tasks(self, options: CellLine, cell: PreparedCell) -> Generator[Job | Starting, Any, None]:
        """Run the cell on the tasks, and bind what it returns."""
        for way in halves("ways"):
            if way.takes(options):
                yield from way.run(self, options, cell)
                return
        name, shape = options.name, options.shape
        cluster = self._fresh_cluster(name, shape) if options.fresh else None
        try:
            used = cluster or self.cluster_for(name, shape, options.how.on)
            shown = yield from self.start_for(cell[0], used, options.shape, goes_on=not options.fresh)
            job = used.begin_cell(self.plan(options, cell, shown))
            try:
                result = yield job
            except BaseException:
                if job.partial is not None:
                    detached_cells.bind(self.shell.user_ns, job.partial, options.how.out)
                raise
            finally:  # also of a cell that failed or was interrupted
                for found in job.found.values() if options.view != "quiet" else ():
                    if found is not None:
                        display(found)
        finally:
            if cluster is not None:
                cluster.stop()
        detached_cells.bind(self.shell.user_ns, result, options.how.out)

    def plan(self, options: CellLine, cell: PreparedCell, display_id: str, **more: Any) -> CellPlan:
        """Return the plan of a cell with the options of its line, and `more` for features."""
        prepared, reads = cell
        view = choose_view(options.view, self.shell, display_id, options.detach)
        how = options.how
        hides = options.view == "quiet"
        how = msgspec.structs.replace(how, view=view, hides=hides, chosen={**more, **how.chosen})
        return msgspec.structs.replace(
            options.plan,
            source=prepared.source,
            filename=prepared.filename,
            prompt=prepared.prompt,
            show_value=prepared.show_value,
            reads=reads,
            options=how,
        )

    # -- which cluster --

    def cluster_for(self, name: str, asked: GivenOptions, on: Selector) -> Cluster:
        """Return the running cluster that a line means, after a check of its shape; else a new one."""
        cluster = self.clusters.get(name)
        if cluster is not None and cluster.running:
            self.refuse_other_shape(name, asked)
        elif cluster is not None and cluster.idle_stop_s and not asked.given:
            notices.say(
                f"tfmagic: cluster {name} had ended{reports.idle_reason(cluster)}; it starts again, without "
                "the variables of its tasks"
            )
        elif name != DEFAULT_NAME and not asked.given:
            raise UsageError(
                f"no cluster {name!r} runs ({self.running_names()}); give its shape, such as "
                f"--cluster {name} --workers 2, or start it with %tfcluster start --cluster {name}"
            )
        else:
            cluster = self.new_cluster(name, asked)
        if on is not None:
            select(on, cluster.tasks)
        if cluster is not self.clusters.get(name):
            self.add(cluster, asked)
        return cluster

    def _fresh_cluster(self, name: str, asked: GivenOptions) -> Cluster:
        """Return a new cluster for one cell; what the line leaves out is as in the running one."""
        running = self.clusters.get(name)
        if running is not None and running.running:
            asked = asked.completed(self.shapes[name])
        return self.new_cluster(name, asked)

    def add(self, cluster: Cluster, asked: GivenOptions) -> None:
        """Make this the cluster of its name, and remember the shape that it was asked for."""
        shape = cluster.shape
        assert isinstance(shape, ClusterShape)  # always, of a line
        self.clusters[cluster.name] = cluster
        hosts = network.hosts if (network := cluster.task_settings.network) else None
        tasks = values_in(ShapeOptions, shape)
        counts = {**dict.fromkeys(tasks), **other_than_default(tasks).values}
        self.shapes[cluster.name] = asked.changed(**counts, hosts=hosts)

    def _present(self, name: str) -> GivenOptions:
        """Return the options of a cluster: as it was asked for, with those that its tasks have."""
        settings = self.clusters[name].task_settings
        return self.shapes[name].changed(**values_in(TaskOptions, settings))

    def refuse_other_shape(self, name: str, asked: GivenOptions) -> None:
        """Raise `UsageError` where the line asks for another shape than that of the running cluster."""
        if not asked.given:  # mostly
            return
        if differs := " ".join(asked.disagreements(self._present(name))):
            line = f"%tfcluster restart {' '.join(asked.words)}{reports.naming(name)}"
            raise UsageError(
                f"cluster {name!r} runs with {self.clusters[name].shape}, which is not {differs}; leave the "
                f"shape out to use it, or start it again with  {line}"
            )

    def new_cluster(self, name: str, asked: GivenOptions) -> Cluster:
        cluster = Cluster(**asked.values, name=name, namespace=self.shell.user_ns)
        if hasattr(self.shell, "kernel"):
            cluster.widget_page = WidgetPage(self.shell.kernel)
        return cluster

    def start_for(
        self, plan: CellPlan, cluster: Cluster, asked: GivenOptions, goes_on: bool = True
    ) -> Generator[Starting, None, str]:
        """Start a cluster as `start_shown`, for a cell; return the display id of its bar."""
        starts = not cluster.running
        program = Program(lambda: self._restart_line(cluster, asked), plan.source)
        environ = {**os.environ, **cluster.task_settings.env} if starts else cluster.imported_under
        if starts:
            keras = asked.values.get("keras")
            cluster.task_settings = features.adapt(program, cluster.task_settings, keras)
        display_id = yield from self._start_steps(cluster, goes_on)
        for text in features.remarks(program, environ, starts, cluster.told_late):
            notices.say(f"tfmagic: {text}")
        return display_id

    def _restart_line(self, cluster: Cluster, asked: GivenOptions) -> str:
        """Return the line that starts its tasks again; ``{}`` stands for a further option."""
        words = ["%tfcluster restart", *self.shapes.get(cluster.name, asked).words, "{}"]
        return " ".join(words) + reports.naming(cluster.name)

    def start_shown(self, cluster: Cluster) -> None:
        """Start a cluster, or wait for its start, with a progress bar."""
        for start in self._start_steps(cluster):
            start.run()

    def _start_steps(self, cluster: Cluster, goes_on: bool = True) -> Generator[Starting, None, str]:
        """Yield the start of a cluster; return the display id of its bar, "" where there is none.

        Programs that run notebooks get one line: some keep every update, others show none.
        """
        if cluster.running and not cluster.starting:
            return ""
        if not cluster.running:
            for line in features.before_start(self.shell, cluster):
                notices.say(f"tfmagic: {line}")
        is_page = can_update(self.shell) and is_watched(self.shell)
        publish = publisher(self.shell) if is_page else None
        is_logged = can_update(self.shell) and not is_page
        progress = StartProgress(cluster.name, str(cluster.shape), publish=publish, announces=is_logged)
        yield Starting(cluster, progress, goes_on)
        if cluster.task_settings.keep_s:
            notices.say(reports.kept(cluster, "this kernel"), is_error=False)
        return progress.display_id

    def attach(self, run: RunFolder) -> Cluster:
        """Take over the cluster of a run that was kept, and show the cells that go on."""
        kept = kept_clusters.find_run(run).cluster.options
        running = self.clusters.get(kept["name"])
        if running is not None and running.running:
            raise UsageError(
                f"cluster {kept['name']!r} runs here already, and run {run} has the same name; end the one "
                f"here first:  %tfcluster stop{reports.naming(kept['name'])}"
            )
        view = choose_view("auto", self.shell, detached=True)
        page = WidgetPage(self.shell.kernel) if hasattr(self.shell, "kernel") else None
        cluster = attach(run, view=view, namespace=self.shell.user_ns, widget_page=page)
        self.add(cluster, other_than_default({name: kept[name] for name in OPTIONS if name in kept}))
        for job in cluster.resumed:
            self.detached.add(cluster, job, job.options.out or None)
        return cluster

    def running_names(self) -> str:
        names = [name for name, cluster in self.clusters.items() if cluster.running]
        return "running: " + ", ".join(names) if names else "none runs"

    def known(self, name: str) -> Cluster:
        """Return the cluster of that name, running or stopped; raise `UsageError` if there is none."""
        if name not in self.clusters:
            question = did_you_mean(name, self.clusters)
            others = [f"--cluster {other}" for other, cluster in self.clusters.items() if cluster.running]
            or_name = f", or name another one with {' or '.join(others)}" if others else ""
            raise UsageError(
                f"there is no cluster {name!r} ({self.running_names()}){question}; start it with "
                f"%tfcluster start{reports.naming(name)}{or_name}"
            )
        return self.clusters[name]

    def running(self, name: str) -> Cluster:
        """Return the cluster of that name; raise `UsageError` if it does not run."""
        cluster = self.known(name)
        if not cluster.running:
            words = " ".join(["%tfcluster start", *self.shapes[name].words])
            raise UsageError(
                f"cluster {name!r} was stopped{reports.idle_reason(cluster)}; start it again with "
                f"{words}{reports.naming(name)}"
            )
        return cluster

    def stop_all(self) -> None:
        """End every cluster."""
        for cluster in self.clusters.values():
            cluster.stop()


def _shown_error(error: BaseException) -> BaseException | None:
    """Return the error that the notebook raises instead; print a text of help, and return None for it."""
    if issubclass(type(error), HelpShown):  # isinstance() would ask the user's classes
        print(error)
        return None
    if issubclass(type(error), ClusterSpecError | BackendError):  # a mistake of the line
        shown = UsageError(str(error))
        shown.__suppress_context__ = True
        return shown
    return error.with_traceback(own_code.users_frames(error.__traceback__))
