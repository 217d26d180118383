"""The commands of ``%tfcluster``: each makes a few calls of `Cluster` and prints.

A command is one frozen dataclass: its fields are the options of its line, and its method `run` carries it
out. To add one, write the class with the decorator `line_command`, here and nowhere else:

    @line_command("wait", "wait for the cells that were started with --detach")
    class Wait(LineCommand):
        timeout_s: float | None = argument("--timeout", "SECONDS", "how long", type=parse_seconds)

        def run(self, magics: TFClusterMagics) -> None: ...

The decorator adds it to `COMMANDS`, from which dispatch, help and completion are made. The commands that
injure tasks are in `line_faults`.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.display import display

from tfmagic.clusters.arguments import ShapeOptions, parse_count, parse_seconds
from tfmagic.clusters.results import table_bundle
from tfmagic.clusters.settings import TFCluster
from tfmagic.frontends import doctor
from tfmagic.frontends.notebook.options import (
    LineCommand,
    argument,
    flag,
    line_command,
    parse_variables,
)
from tfmagic.protocol.cluster_spec import select
from tfmagic.runs import folder
from tfmagic.runs.cell_records import read_records
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import log_lines
from tfmagic.views import static_form, tables
from tfmagic.views.panel import PanelView

if TYPE_CHECKING:
    from tfmagic.frontends.notebook.magic import TFClusterMagics

_FULL_BYTES = 20_000_000  # of a past cell that is shown with --full


@dataclass(frozen=True, slots=True)
class _TasksLine(LineCommand):
    tasks: tuple[str, ...] = argument("", "TASK", "tasks, by selector", nargs="*", default=())


@dataclass(frozen=True, slots=True)
class _VariablesLine(LineCommand):
    names: tuple[str, ...] = argument("", "A,B", "variable names", type=parse_variables)
    on: str | None = argument("--on", "SELECTOR", "tasks, by selector")


# -- the cluster -----------------------------------------------------------------------------------


@line_command("start", "start a cluster and wait until every task is ready")
class _Start(LineCommand):
    shape: ShapeOptions = field(default_factory=ShapeOptions)

    def run(self, magics: TFClusterMagics) -> None:
        cluster = magics.clusters.get(self.cluster)
        if cluster is not None and cluster.running:
            magics.refuse_other_shape(self.cluster, self.shape)
        else:
            cluster = magics.new_cluster(self.cluster, self.shape)
            magics.start_shown(cluster)
            magics.add(cluster, self.shape)
        dead = [row["task"] for row in cluster.status() if row["state"] == "dead"]
        alive = [task.name for task in cluster.tasks if task.name not in dead]
        message = f"runs: {', '.join(alive)}" if alive else "has no task that runs"
        if dead:
            message += (
                f"; dead: {', '.join(dead)}. Bring them back with  %tfcluster revive   or  %tfcluster restart"
            )
        print(f"tfmagic: cluster {self.cluster} {message}")


@line_command("stop", "end a cluster (--all: every one)")
class _Stop(LineCommand):
    all: bool = flag("--all", "every cluster of this notebook")

    def run(self, magics: TFClusterMagics) -> None:
        for name in list(magics.clusters) if self.all else [self.cluster]:
            cluster = magics.known(name)
            was_running = cluster.running
            cluster.stop()
            print(f"tfmagic: cluster {name} {'stopped' if was_running else 'was not running'}")


@line_command("restart", "give all or the named tasks new processes at the same addresses")
class _Restart(_TasksLine):
    shape: ShapeOptions = field(default_factory=ShapeOptions)

    def run(self, magics: TFClusterMagics) -> None:
        cluster = magics.known(self.cluster)
        if self.shape.given and self.tasks:
            raise UsageError("restart takes a new shape or names of tasks, not both")
        if self.shape.given:
            old, cluster = cluster, magics.new_cluster(self.cluster, self.shape)
            old.stop()
            magics.start_shown(cluster)
            magics.add(cluster, self.shape)
        else:
            cluster.restart(*self.tasks)
        tasks = select(",".join(self.tasks or ("all",)), cluster.tasks)
        print(f"tfmagic: cluster {self.cluster}: new processes for {', '.join(t.name for t in tasks)}")


@line_command("status", "show a table of the tasks")
class _Status(LineCommand):
    json: bool = flag("--json", "print JSON, for programs")

    def run(self, magics: TFClusterMagics) -> None:
        cluster = magics.running(self.cluster)
        rows = cluster.status()
        if self.json:
            print(json.dumps(rows))
        else:
            table = tables.status_table(rows, cluster.own_share())
            display(table_bundle(tables.STATUS_HEADER, table), raw=True)


@line_command("logs", "print the tasks' output, from disk")
class _Logs(_TasksLine):
    tail: int | None = argument("--tail", "N", "the last N lines of each", type=parse_count)
    grep: str | None = argument("--grep", "RE", "only lines that match")
    path: bool = flag("--path", "print the paths of the files")

    def run(self, magics: TFClusterMagics) -> None:
        cluster, run = magics.clusters.get(self.cluster), _find_run(magics, self.cluster, _state_dir())
        tasks = run.tasks if cluster is None else cluster.tasks
        chosen = select(",".join(self.tasks or ("all",)), tasks)
        try:
            pattern = re.compile(self.grep) if self.grep else None
        except re.error as error:
            raise UsageError(f"--grep {self.grep!r} is not a regular expression: {error}") from None
        for task in chosen:
            path = run.log_path(task)
            sys.stdout.writelines([f"{path}\n"] if self.path else log_lines(path, task, self.tail, pattern))


def _state_dir() -> Path:
    return folder.state_dir(TFCluster.instance().state_dir)


def _find_run(magics: TFClusterMagics, cluster_name: str, base: Path) -> RunFolder:
    """Return the run of the cluster here, else the newest of a cluster of that name, of any kernel."""
    cluster = magics.clusters.get(cluster_name)
    if cluster is not None:
        return cluster.run_folder
    found = [run for run in folder.find_runs(base) if run.cluster == cluster_name]
    if not found:
        raise UsageError(
            f"no cluster {cluster_name!r} runs here ({magics.running_names()}), and there is no run of "
            f"one in {base / 'runs'}"
        )
    return found[-1]


@line_command("errors", "print every failure of the last cell in full")
class _Errors(_TasksLine):
    def run(self, magics: TFClusterMagics) -> None:
        texts = magics.known(self.cluster).errors(*self.tasks)
        if not texts:
            print("tfmagic: no task failed in the last cell")
        for name, text in texts.items():
            print(f"---- {name} ----\n{text}\n")


@line_command("interrupt", "interrupt the running cell, on all or the named tasks")
class _Interrupt(_TasksLine):
    def run(self, magics: TFClusterMagics) -> None:
        magics.running(self.cluster).interrupt(*self.tasks)


@line_command("stacks", "print the Python stacks of tasks, also of stuck ones; equal stacks once")
class _Stacks(_TasksLine):
    def run(self, magics: TFClusterMagics) -> None:
        print(magics.running(self.cluster).grouped_stacks(*self.tasks))


@line_command("revive", "restart dead tasks; the others keep their variables")
class _Revive(_TasksLine):
    def run(self, magics: TFClusterMagics) -> None:
        cluster = magics.running(self.cluster)
        revived, late = cluster.revive(*self.tasks), cluster.faults.asked_to_end
        if revived:
            message = f"{', '.join(revived)} came back, without variables; make strategies anew"
        elif late:
            message = (
                f"no task is dead yet; {', '.join(map(str, late))} caught the signal to end, and may save "
                "first:  %tfcluster revive again when that is done"
            )
        else:
            message = "no task was dead"
        print(f"tfmagic: cluster {self.cluster}: {message}")


# -- cells, variables and what stands beside them ----------------------------------------------------


@line_command("debug", "start pdb in a task, on its last failure, with live frames")
class _Debug(LineCommand):
    task: str = argument("", "TASK", "the task")

    def run(self, magics: TFClusterMagics) -> None:
        magics.running(self.cluster).debug(self.task)


@line_command("push", "send notebook variables:  push A,B [--on SELECTOR]")
class _Push(_VariablesLine):
    def run(self, magics: TFClusterMagics) -> None:
        cluster, namespace = magics.running(self.cluster), magics.shell.user_ns
        missing = [name for name in self.names if name not in namespace]
        if missing:
            raise UsageError(f"the notebook has no variable {', '.join(missing)}; assign it first")
        cluster.push({name: namespace[name] for name in self.names}, on=self.on or "all")


@line_command("pull", "fetch variables, each bound to {task: value}:  pull A,B [--on SELECTOR]")
class _Pull(_VariablesLine):
    def run(self, magics: TFClusterMagics) -> None:
        magics.shell.user_ns.update(magics.running(self.cluster).pull(*self.names, on=self.on))


@line_command("wait", "wait for the cells that were started with --detach")
class Wait(LineCommand):
    """Awaited instead of run where the notebook's event loop can go on: see `TFClusterMagics.wait_async`."""

    timeout_s: float | None = argument("--timeout", "SECONDS", "wait at most this long", type=parse_seconds)

    def run(self, magics: TFClusterMagics) -> None:
        magics.detached.wait(magics.known(self.cluster).name, self.timeout_s)


@line_command("attach", "show a cell of a past run again, from disk:  attach [RUN] [--cell N]")
class _Attach(LineCommand):
    run_name: str | None = argument("", "RUN", "name of the run; default: the newest", nargs="?")
    cell: int | None = argument("--cell", "N", "number of the cell in the notebook", type=parse_count)
    full: bool = flag("--full", "without the size limit of a saved cell")
    all: bool = flag("--all", "list the runs and their cells")

    def run(self, magics: TFClusterMagics) -> None:
        """Show the cell live where it still runs here, else from disk."""
        base = _state_dir()
        if self.all:
            for run in folder.find_runs(base):
                cells = ", ".join(f"[{r.prompt}] {r.verdict or 'not ended'}" for r in read_records(run))
                print(f"{run}  {cells or 'no cell'}")
            return
        run = self._find_run(magics, base)
        records = [r for r in read_records(run) if self.cell in (None, r.prompt)]
        if not records:
            which = f"cell {self.cell}" if self.cell is not None else "a cell"
            raise UsageError(
                f"run {run} has no record of {which}; %tfcluster attach --all lists what there is"
            )
        record = records[-1]
        for job in magics.detached.running():
            if job.number == record.cell and isinstance(job.view, PanelView):
                job.view.show_again()
                return
        if not record.verdict:
            print(f"tfmagic: this cell had not ended when its kernel was last seen; run {run}")
        limit = _FULL_BYTES if self.full else TFCluster.instance().saved_bytes
        form = static_form.render(record, run, limit_bytes=limit)
        display({"text/html": form.html, "text/plain": form.text}, raw=True)
        for item in form.apart:
            display(item.data, metadata=item.metadata, raw=True)

    def _find_run(self, magics: TFClusterMagics, base: Path) -> RunFolder:
        if not self.run_name:
            return _find_run(magics, self.cluster, base)
        for run in folder.find_runs(base):
            if str(run) == self.run_name:
                return run
        raise UsageError(
            f"there is no run {self.run_name!r} in {base / 'runs'}; %tfcluster attach --all lists them"
        )


@line_command("doctor", "check this environment for a cluster of that shape, and print how to fix problems")
class _Doctor(LineCommand):
    shape: ShapeOptions = field(default_factory=ShapeOptions)

    def run(self, magics: TFClusterMagics) -> None:
        """Look at this environment, for a cluster of the given shape or for the one that runs."""
        cluster = magics.clusters.get(self.cluster)
        if cluster is None or not cluster.running or self.shape.given:
            cluster = magics.new_cluster(self.cluster, self.shape)
        for finding in doctor.examine(doctor.case_of(magics.shell, cluster)):
            print(finding)


@line_command("tensorboard", "TensorBoard, which ends with the cluster:  tensorboard [LOGDIR] [--port N]")
class _TensorBoard(LineCommand):
    logdir: str | None = argument("", "LOGDIR", "default: the last of tensorboard_dir", nargs="?")
    port: int | None = argument("--port", "N", "default: a free port", type=parse_count)
    host: str = argument("--host", "ADDRESS", "address to listen on (%(default)s)", default="127.0.0.1")
    height: int = argument("--height", "PIXELS", "height of the frame", type=parse_count, default=800)
    stop: bool = flag("--stop", "end TensorBoard")

    def run(self, magics: TFClusterMagics) -> None:
        cluster = magics.running(self.cluster)
        if not self.stop:
            board = cluster.tensorboard(self.logdir or None, port=self.port or None, host=self.host)
            board.show(self.height)
        elif (running := cluster.board) is None:
            print(f"tfmagic: no TensorBoard runs beside cluster {self.cluster}")
        else:
            running.close()
            print(f"tfmagic: TensorBoard at {running.url} ended")
