"""``%%tfcluster`` and ``%tfcluster``: translate a line and a cell into calls of `Cluster`, no more.

line ── options ──→ which cluster, which shape          (a mistake starts nothing)
cell ── sources ──→ Python source and the names it reads (a syntax error starts nothing)
Cluster.run_cell ──→ TaskResults ──→ --out, --pull       (a failure is raised as what it was)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display

from tfmagic import commands, completion, rendering
from tfmagic.backends import launching
from tfmagic.cells import Options
from tfmagic.clusters import Cluster
from tfmagic.compare import Comparison
from tfmagic.config import TFCluster
from tfmagic.errors import BackendError, ClusterSpecError, TfmagicError
from tfmagic.options import (
    CellOptions,
    HelpShown,
    ShapeOptions,
    parse_cell_line,
    parse_line,
)
from tfmagic.sources import prepare_cell
from tfmagic.spec import TaskId, select
from tfmagic.supervisor import CellRun
from tfmagic.views import View
from tfmagic.views.progress import StartProgress
from tfmagic.views.text import TextView


@magics_class
class TFClusterMagics(Magics):  # type: ignore[misc]  # IPython is untyped
    """The magics, and the clusters of this notebook by name."""

    def __init__(self, shell: Any):
        super().__init__(shell)
        self.clusters: dict[str, Cluster] = {}
        self.shapes: dict[str, ShapeOptions] = {}

    @line_cell_magic
    def tfcluster(self, line: str, cell: str | None = None) -> None:
        """Run a cell on a TensorFlow cluster, or manage clusters; see --help of each."""
        __tracebackhide__ = True
        try:
            if cell is None:
                commands.run_line(self, parse_line(line))
            else:
                self._run_cell(parse_cell_line(line), cell)
        except HelpShown as shown:
            print(shown)
        except (ClusterSpecError, BackendError) as error:
            raise UsageError(str(error)) from None
        except BaseException as error:  # the frames that it came by are of no use to anybody
            raise error.with_traceback(rendering.without_bridge(error.__traceback__))  # noqa: B904

    # -- cells --

    def _run_cell(self, options: CellOptions, body: str) -> None:
        __tracebackhide__ = True
        cell = prepare_cell(body, self.shell)
        run_options = self._run_options(options)
        if options.compare:
            results: Any = self._compare(options, cell, run_options)
            display(results)
        else:
            cluster = self.new_cluster(options.cluster, options.shape) if options.fresh else None
            try:
                used = cluster or self._cluster_for(options)
                self.start_shown(used)
                result = used.run_cell(cell, _with_view(run_options, self._view(used, options.view)))
            finally:
                if cluster is not None:
                    cluster.stop()
            self.shell.user_ns.update(result.pulled)
            results = result.results
        if options.out:
            self.shell.user_ns[options.out] = results

    def _run_options(self, options: CellOptions) -> Options:
        return Options(
            on=options.on,
            push=options.push,
            pull=options.pull,
            capture=options.capture,
            timeout_s=options.timeout_s,
            keep_going=options.keep_going,
            want_value=bool(options.out),
        )

    def _compare(self, options: CellOptions, cell: Any, run_options: Options) -> Comparison:
        """The cell in a new cluster of each size."""
        __tracebackhide__ = True
        found = {}
        for size in options.compare:
            cluster = self.new_cluster(f"compare-{size}", options.shape, workers=size)
            print(f"tfmagic: with {cluster.shape}")
            try:
                self.start_shown(cluster)
                view = _with_view(run_options, self._view(cluster, options.view))
                found[size] = cluster.run_cell(cell, view).results
            finally:
                cluster.stop()
        return Comparison(found)

    def _view(self, cluster: Cluster, name: str) -> Any:
        """The view's name, or how to make a text view that can show rich displays."""
        if name == "quiet":
            return "quiet"
        rich = self._show_rich if hasattr(self.shell, "kernel") else None

        def make(run: CellRun, starts: Mapping[TaskId, int]) -> View:
            return TextView(cluster.run_folder, starts.items(), run.displays, show_rich=rich)

        return make

    def _show_rich(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self.shell.display_pub.publish(data=data, metadata=metadata)

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
        import dataclasses

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

    def start_shown(self, cluster: Cluster) -> None:
        """Start it with a progress bar; nothing if it runs."""
        __tracebackhide__ = True
        if cluster.running:
            return
        progress = StartProgress(cluster.name, str(cluster.shape))
        try:
            cluster.start(progress)
        finally:
            progress.end()

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


def _with_view(options: Options, view: Any) -> Options:
    import dataclasses

    return dataclasses.replace(options, view=view)


def load(shell: Any) -> None:
    """Register the magics, the settings and the completions; warm the launcher."""
    magics = TFClusterMagics(shell)
    shell.register_magics(magics)
    config = TFCluster.instance(parent=shell)
    if config not in shell.configurables:
        shell.configurables.append(config)
    completion.install(shell, magics.clusters)
    if config.warm:
        launching.warm(launching.Flavour())


def unload(shell: Any) -> None:
    """End what `load` and the user's cells have started."""
    magics = shell.magics_manager.registry.get("TFClusterMagics")
    if magics is None:
        raise TfmagicError("tfmagic is not loaded; load it with %load_ext tfmagic")
    magics.stop_all()
    completion.remove(shell)
    launching.close_all()
