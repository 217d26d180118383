"""``%%tfcluster`` and ``%tfcluster``: translate a line and a cell into calls of `Cluster`, no more.

line ── options ──→ which cluster, which shape          (a mistake starts nothing)
cell ── sources ──→ Python source and the names it reads (a syntax error starts nothing)
Cluster.begin_cell ──→ wait, or await ──→ TaskResults ──→ --out, --pull    (a failure is raised as it was)

A cell is written once, as a generator of the jobs that must end before it goes on: the magic proper
blocks for each, the one that `tfmagic.frontends.notebook.awaited_cells` puts in its place awaits it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Generator
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class
from IPython.display import display

from tfmagic.backends import launcher_client
from tfmagic.clusters import waiting
from tfmagic.clusters.arguments import ShapeOptions
from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.job import Job
from tfmagic.clusters.outcomes import CellResult
from tfmagic.clusters.running_cell import Cell, Options
from tfmagic.clusters.settings import TFCluster
from tfmagic.errors import BackendError, ClusterSpecError, TfmagicError
from tfmagic.failures import ipython_tracebacks
from tfmagic.frontends import doctor
from tfmagic.frontends.notebook import awaited_cells, completion, detached_cells, line_commands
from tfmagic.frontends.notebook.cell_source import prepare_cell
from tfmagic.frontends.notebook.comparison import Comparison
from tfmagic.frontends.notebook.options import CellOptions, HelpShown, parse_cell_line, parse_line
from tfmagic.frontends.notebook.view_choice import check_view, choose_view, publisher
from tfmagic.protocol.cluster_spec import select
from tfmagic.views.progress import StartProgress

Steps = Generator[Job, CellResult, None]


@magics_class
class TFClusterMagics(Magics):  # type: ignore[misc]  # IPython is untyped
    """The magics, and the clusters of this notebook by name."""

    def __init__(self, shell: Any):
        super().__init__(shell)
        self.clusters: dict[str, Cluster] = {}
        self.shapes: dict[str, ShapeOptions] = {}
        self.detached = detached_cells.DetachedJobs(shell)

    @line_cell_magic
    def tfcluster(self, line: str, cell: str | None = None) -> None:
        """Run a cell on a TensorFlow cluster, or manage clusters; see --help of each."""
        __tracebackhide__ = True
        try:
            if cell is None:
                line_commands.run_line(self, parse_line(line))
            else:
                with contextlib.closing(self._cell_steps(parse_cell_line(line), cell)) as steps:
                    _drive(steps)
        except BaseException as error:
            if (told := _tell(error)) is not None:
                raise told  # noqa: B904

    @cell_magic(awaited_cells.ASYNC_MAGIC)
    async def tfcluster_async(self, line: str, cell: str) -> None:
        """`%%tfcluster`, awaited: the notebook's event loop goes on meanwhile."""
        __tracebackhide__ = True
        try:
            with contextlib.closing(self._cell_steps(parse_cell_line(line), cell)) as steps:
                await _drive_async(steps)
        except BaseException as error:
            if (told := _tell(error)) is not None:
                raise told  # noqa: B904

    @line_magic(awaited_cells.ASYNC_WAIT)
    async def wait_async(self, line: str) -> None:
        """`%tfcluster wait`, awaited."""
        __tracebackhide__ = True
        try:
            await line_commands.wait_async(self, parse_line(line))
        except BaseException as error:
            if (told := _tell(error)) is not None:
                raise told  # noqa: B904

    # -- cells --

    def _cell_steps(self, options: CellOptions, body: str) -> Steps:
        """The cell, up to each job that must have ended before it goes on."""
        __tracebackhide__ = True
        check_view(options.view, self.shell)
        cell = prepare_cell(body, self.shell)
        if options.detach:
            self._detach(options, cell)
            return
        if options.compare:
            results: Any = yield from self._compare(options, cell)
            display(results)
        else:
            cluster = self.new_cluster(options.cluster, options.shape) if options.fresh else None
            try:
                used = cluster or self._cluster_for(options)
                result = yield used.begin_cell(cell, self._run_options(options, self.start_shown(used)))
            finally:
                if cluster is not None:
                    cluster.stop()
            self.shell.user_ns.update(result.pulled)
            results = result.results
        if options.out:
            self.shell.user_ns[options.out] = results

    def _detach(self, options: CellOptions, cell: Cell) -> None:
        """Start the cell and leave it to itself."""
        __tracebackhide__ = True
        cluster = self._cluster_for(options)
        place = self.start_shown(cluster)
        job = cluster.begin_cell(cell, self._run_options(options, place), detached=True)
        self.detached.add(cluster, job, options.out)

    def _run_options(self, options: CellOptions, place: str) -> Options:
        return Options(
            on=options.on,
            push=options.push,
            pull=options.pull,
            capture=options.capture,
            timeout_s=options.timeout_s,
            keep_going=options.keep_going,
            want_value=bool(options.out),
            view=choose_view(options.view, self.shell, place),
        )

    def _compare(self, options: CellOptions, cell: Cell) -> Generator[Job, CellResult, Comparison]:
        """The cell in a new cluster of each size."""
        __tracebackhide__ = True
        found = {}
        for size in options.compare:
            cluster = self.new_cluster(f"compare-{size}", options.shape, workers=size)
            try:
                place = self.start_shown(cluster)
                found[size] = (yield cluster.begin_cell(cell, self._run_options(options, place))).results
            finally:
                cluster.stop()
        return Comparison(found)

    # -- which cluster --

    def _cluster_for(self, options: CellOptions) -> Cluster:
        """The running cluster of that name, checked against the line; else a new one."""
        name, asked = options.cluster, options.shape
        cluster = self.clusters.get(name)
        if cluster is not None and cluster.running:
            self.refuse_other_shape(name, asked)
            if options.on is not None:
                select(options.on, cluster.tasks)
            return cluster
        if name != "default" and not asked.given:
            raise UsageError(
                f"no cluster {name!r} runs ({self.running_names()}); give its shape, such as "
                f"--cluster {name} --workers 2, or start it with %tfcluster start --cluster {name}"
            )
        cluster = self.new_cluster(name, asked)
        if options.on is not None:
            select(options.on, cluster.tasks)
        self.clusters[name], self.shapes[name] = cluster, self.full_shape(cluster, asked)
        return cluster

    def refuse_other_shape(self, name: str, asked: ShapeOptions) -> None:
        differs = asked.disagreements(self.shapes[name])
        if differs:
            cluster = self.clusters[name]
            raise UsageError(
                f"cluster {name!r} runs with {cluster.shape}, which is not {' '.join(differs)}; leave the "
                f"shape out to use it, or start it anew with  %tfcluster restart {' '.join(differs)}"
                + (f" --cluster {name}" if name != "default" else "")
            )

    def full_shape(self, cluster: Cluster, asked: ShapeOptions) -> ShapeOptions:
        shape = cluster.shape
        return dataclasses.replace(
            asked, workers=shape.workers, ps=shape.ps, chief=shape.chief, evaluator=shape.evaluator
        )

    def new_cluster(self, name: str, asked: ShapeOptions, workers: int | None = None) -> Cluster:
        if asked.backend != "local" or asked.address:
            raise UsageError("the Ray backend is not in this version yet; leave --backend and --address out")
        return Cluster(
            workers=asked.workers if workers is None else workers,
            ps=asked.ps or 0,
            chief=bool(asked.chief),
            evaluator=bool(asked.evaluator),
            name=name,
            env=dict(asked.env),
            gpus_per_task=asked.gpus_per_task,
            keras=asked.keras or 3,
            keras_fix=asked.keras_fix,
            auto_restart=asked.auto_restart or 0,
            isolate=asked.isolate,
            namespace=self.shell.user_ns,
        )

    def start_shown(self, cluster: Cluster) -> str:
        """Start it with a progress bar, and say under which display id that stands, if it does."""
        __tracebackhide__ = True
        if cluster.running:
            return ""
        doctor.speak_up(self.shell, cluster)
        publish = publisher(self.shell) if hasattr(self.shell, "kernel") else None
        progress = StartProgress(cluster.name, str(cluster.shape), publish=publish)
        try:
            cluster.start(progress)
        finally:
            progress.end()
        return progress.display_id

    def running_names(self) -> str:
        names = [name for name, cluster in self.clusters.items() if cluster.running]
        return "running: " + ", ".join(names) if names else "none runs"

    def known(self, name: str) -> Cluster:
        """The cluster of that name, running or stopped."""
        cluster = self.clusters.get(name)
        if cluster is None:
            raise UsageError(
                f"there is no cluster {name!r} ({self.running_names()}); start it with "
                f"%tfcluster start" + (f" --cluster {name}" if name != "default" else "")
            )
        return cluster

    def running(self, name: str) -> Cluster:
        cluster = self.known(name)
        if not cluster.running:
            raise UsageError(f"cluster {name!r} was stopped; start it again with %tfcluster start")
        return cluster

    def stop_all(self) -> None:
        """End every cluster."""
        for cluster in self.clusters.values():
            cluster.stop()


def _drive(steps: Steps) -> None:
    """Block for each job."""
    __tracebackhide__ = True
    job = next(steps, None)
    while job is not None:
        result = waiting.finish(job)  # a cell may raise StopIteration: that is no end of the steps
        try:
            job = steps.send(result)
        except StopIteration:
            return


async def _drive_async(steps: Steps) -> None:
    """Await each job."""
    __tracebackhide__ = True
    job = next(steps, None)
    while job is not None:
        result = await waiting.finish_async(job)
        try:
            job = steps.send(result)
        except StopIteration:
            return


def _tell(error: BaseException) -> BaseException | None:
    """What the notebook raises for it: mistakes of the line in IPython's way, help as text."""
    if issubclass(type(error), HelpShown):  # isinstance() would ask the user's classes
        print(error)
        return None
    if issubclass(type(error), ClusterSpecError | BackendError):
        told = UsageError(str(error))
        told.__suppress_context__ = True
        return told
    # the frames that it came by are of no use to anybody
    return error.with_traceback(ipython_tracebacks.without_bridge(error.__traceback__))


def load(shell: Any) -> None:
    """Register the magics, the settings and the completions; warm the launcher."""
    magics = TFClusterMagics(shell)
    shell.register_magics(magics)
    config = TFCluster.instance(parent=shell)
    if config not in shell.configurables:
        shell.configurables.append(config)
    completion.install(shell, magics.clusters)
    awaited_cells.install(shell)
    ipython_tracebacks.install(shell)
    if config.warm:
        launcher_client.warm(launcher_client.Flavour())


def unload(shell: Any) -> None:
    """End what `load` and the user's cells have started."""
    magics = shell.magics_manager.registry.get("TFClusterMagics")
    if magics is None:
        raise TfmagicError("tfmagic is not loaded; load it with %load_ext tfmagic")
    magics.stop_all()
    widgets = sys.modules.get("tfmagic.views.widget")
    if widgets is not None:
        widgets.close_all()
    completion.remove(shell)
    awaited_cells.remove(shell)
    ipython_tracebacks.remove(shell)
    launcher_client.close_all()
