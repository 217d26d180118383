"""The commands of ``%tfcluster``: each makes a few calls of `Cluster` and prints.

A command is one function, which gets the magics, and the options of its line by name. To add one, write it
with the decorator `line_command`, here (or in `line_faults`, for faults on purpose) and nowhere else:

    @line_command("wait", "wait for the cells that were started with --detach", option("--timeout", ...))
    def _wait(magics: TFClusterMagics, name: str, timeout: float | None) -> None: ...

The decorator adds it to `COMMANDS`, from which dispatch, help and completion are made.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.display import display

from tfmagic.clusters.cells import waiting
from tfmagic.clusters.launch.arguments import ShapeOptions, parse_count, parse_seconds
from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.clusters.tools.tensorboard import missing_plugin
from tfmagic.frontends import doctor, symptoms
from tfmagic.frontends.notebook import plain_cells, reports
from tfmagic.frontends.notebook.options import (
    SHAPE,
    flag,
    line_command,
    option,
    parse_variables,
)
from tfmagic.protocol.cluster_spec import select
from tfmagic.runs import folder
from tfmagic.runs.cell_records import read_records
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.kept import kept_until
from tfmagic.runs.kernels import host_elsewhere, kernel_lives
from tfmagic.runs.log_reader import log_lines
from tfmagic.views import static_form, tables
from tfmagic.views.panel import PanelView

if TYPE_CHECKING:
    from tfmagic.frontends.notebook.magic import TFClusterMagics

_TASKS = option("tasks", "TASK", "tasks, by selector", nargs="*")
_ON = option("--on", "SELECTOR", "tasks, by selector")
_VARIABLES = (option("names", "A,B", "variable names", type=parse_variables), _ON)


# -- the cluster -----------------------------------------------------------------------------------


@line_command("start", "start a cluster and wait until every task is ready", SHAPE)
def _start(magics: TFClusterMagics, name: str, shape: ShapeOptions) -> None:
    cluster = magics.clusters.get(name)
    if cluster is not None and cluster.running:
        magics.refuse_other_shape(name, shape)
    else:
        cluster = magics.new_cluster(name, shape)
        magics.start_shown(cluster)
        magics.add(cluster, shape)
    dead = [row["task"] for row in cluster.status() if row["state"] == "dead"]
    alive = [task.name for task in cluster.tasks if task.name not in dead]
    message = f"runs: {', '.join(alive)}" if alive else "has no task that runs"
    if dead:
        message += (
            f"; dead: {', '.join(dead)}. Bring them back with  %tfcluster revive   or  %tfcluster restart"
        )
    if (network := cluster.task_settings.network) is not None and alive:
        message += f"; on {network.hosts} simulated hosts, link {network.link}"
    print(f"tfmagic: cluster {name} {message}")


@line_command(
    "stop", "end a cluster (--all: every one)", flag("--all", "every cluster of this notebook", dest="every")
)
def _stop(magics: TFClusterMagics, name: str, every: bool) -> None:
    for each in list(magics.clusters) if every else [name]:
        cluster = magics.known(each)
        was_running = cluster.running
        cluster.stop()
        ended = plain_cells.remove(magics.shell, each)
        note = f"; {plain_cells.describe(magics.shell)}" if ended else ""
        print(f"tfmagic: cluster {each} {'stopped' if was_running else 'was not running'}{note}")


@line_command("restart", "give all or the named tasks new processes at the same addresses", _TASKS, SHAPE)
def _restart(magics: TFClusterMagics, name: str, shape: ShapeOptions, tasks: list[str]) -> None:
    cluster = magics.known(name)
    if shape.given and tasks:
        raise UsageError("restart takes a new shape or names of tasks, not both")
    if shape.given:
        old, cluster = cluster, magics.new_cluster(name, shape)
        old.stop()
        magics.start_shown(cluster)
        magics.add(cluster, shape)
    else:
        cluster.restart(*tasks)
    chosen = select(",".join(tasks or ("all",)), cluster.tasks)
    print(f"tfmagic: cluster {name}: new processes for {reports.names_of(chosen)}")


@line_command("status", "show a table of the tasks", flag("--json", "print JSON, for programs", dest="plain"))
def _status(magics: TFClusterMagics, name: str, plain: bool) -> None:
    cluster = magics.running(name)
    rows = cluster.status()
    if plain:
        print(json.dumps(rows))
    else:
        table = tables.status_table(rows, cluster.own_share())
        display(tables.bundle(tables.STATUS_HEADER, table), raw=True)
        for text in tables.imports(rows):
            print(f"tfmagic: {text}")


@line_command(
    "logs",
    "print the tasks' output, from disk",
    _TASKS,
    option("--tail", "N", "the last N lines of each", type=parse_count),
    option("--grep", "RE", "only lines that match"),
    flag("--path", "print the paths of the files", dest="shows_path"),
)
def _logs(
    magics: TFClusterMagics,
    name: str,
    tasks: list[str],
    tail: int | None,
    grep: str | None,
    shows_path: bool,
) -> None:
    cluster, run = magics.clusters.get(name), find_run(magics, name)
    chosen = select(",".join(tasks or ("all",)), run.tasks if cluster is None else cluster.tasks)
    try:
        pattern = re.compile(grep) if grep else None
    except re.error as error:
        raise UsageError(f"--grep {grep!r} is not a regular expression: {error}") from None
    for task in chosen:
        path = run.log_path(task)
        sys.stdout.writelines([f"{path}\n"] if shows_path else log_lines(path, task, tail, pattern))


def _state_dir() -> Path:
    return folder.state_dir(TFCluster.instance().state_dir)


def find_run(magics: TFClusterMagics, cluster_name: str, run_name: str | None = None) -> RunFolder:
    """Return the named run, else that of the cluster here, else the newest of that cluster name."""
    base, cluster = _state_dir(), magics.clusters.get(cluster_name)
    if cluster is not None and not run_name:
        return cluster.run_folder
    runs = folder.find_runs(base)
    found = [run for run in runs if (str(run) == run_name if run_name else run.cluster == cluster_name)]
    if not found and run_name:
        raise UsageError(
            f"there is no run {run_name!r} in {base / 'runs'}; %tfcluster attach --all lists them"
        )
    if not found:
        raise UsageError(
            f"no cluster {cluster_name!r} runs here ({magics.running_names()}), and there is no run of "
            f"one in {base / 'runs'}"
        )
    return found[-1]


@line_command("errors", "print every failure of the last cell in full", _TASKS)
def _errors(magics: TFClusterMagics, name: str, tasks: list[str]) -> None:
    texts = magics.known(name).errors(*tasks)
    if not texts:
        print("tfmagic: no task failed in the last cell")
    for name, text in texts.items():
        print(f"---- {name} ----\n{text}\n")


@line_command("interrupt", "interrupt the running cell, on all or the named tasks", _TASKS)
def _interrupt(magics: TFClusterMagics, name: str, tasks: list[str]) -> None:
    cluster = magics.running(name)
    detached = [job for job in magics.detached.running() if job.run is cluster.run_folder]
    chosen = select(",".join(tasks or ("all",)), cluster.tasks)
    text = reports.interruption(cluster, chosen, detached)
    cluster.interrupt(*tasks)
    reports.report(name, text)


@line_command("stacks", "print the Python stacks of tasks, also of stuck ones; equal stacks once", _TASKS)
def _stacks(magics: TFClusterMagics, name: str, tasks: list[str]) -> None:
    print(magics.running(name).grouped_stacks(*tasks))


@line_command("revive", "restart dead tasks; the others keep their variables", _TASKS)
def _revive(magics: TFClusterMagics, name: str, tasks: list[str]) -> None:
    cluster = magics.running(name)
    revived, late = cluster.revive(*tasks), cluster.faults.asked_to_end
    if revived:
        message = f"{', '.join(revived)} came back, without variables; make strategies anew"
    elif late:
        message = (
            f"no task is dead yet; {', '.join(map(str, late))} caught the signal to end, and may save "
            "first:  %tfcluster revive again when that is done"
        )
    else:
        message = "no task was dead"
    print(f"tfmagic: cluster {name}: {message}")


# -- cells, variables and what stands beside them ----------------------------------------------------


@line_command(
    "all",
    "run plain cells on the cluster, too:  all on|off",
    option("state", None, "without it: print the present state", choices=("on", "off"), nargs="?"),
    _ON,
    SHAPE,
)
def _all(magics: TFClusterMagics, name: str, state: str | None, on: str | None, shape: ShapeOptions) -> None:
    if state == "on":
        magics.start_shown(cluster := magics.cluster_for(name, shape, on))
        plain_cells.install(magics.shell, cluster.name, on)
    elif state == "off":
        plain_cells.remove(magics.shell)
    print(f"tfmagic: {plain_cells.describe(magics.shell)}")


@line_command(
    "debug", "start pdb in a task, on its last failure, with live frames", option("task", "TASK", "the task")
)
def _debug(magics: TFClusterMagics, name: str, task: str) -> None:
    magics.running(name).debug(task)


@line_command("push", "send notebook variables:  push A,B [--on SELECTOR]", *_VARIABLES)
def _push(magics: TFClusterMagics, name: str, names: tuple[str, ...], on: str | None) -> None:
    cluster, namespace = magics.running(name), magics.shell.user_ns
    missing = [name for name in names if name not in namespace]
    if missing:
        raise UsageError(f"the notebook has no variable {', '.join(missing)}; assign it first")
    job = cluster.begin_push({name: namespace[name] for name in names}, on or "all")
    waiting.finish(job)
    sizes = [reports.size_of(command.names) for command in job.request.commands.values()]
    reports.report(
        name,
        f"pushed {', '.join(names)} to {reports.names_of(job.tasks)}, {reports.sizes_text(sizes)}",
    )


@line_command("pull", "fetch variables, each bound to {task: value}:  pull A,B [--on SELECTOR]", *_VARIABLES)
def _pull(magics: TFClusterMagics, name: str, names: tuple[str, ...], on: str | None) -> None:
    job = magics.running(name).begin_pull(names, on)
    magics.shell.user_ns.update(waiting.finish(job).pulled)
    outcomes = job.outcome.outcomes.values() if job.outcome else ()
    sizes = [reports.size_of(getattr(outcome, "pulled", {}).values()) for outcome in outcomes]
    reports.report(
        name,
        f"pulled {', '.join(names)} from {reports.names_of(job.tasks)}, {reports.sizes_text(sizes)}",
    )


@line_command(
    "diff",
    "compare a variable over tasks: weights, batches, losses, data sets, settings",
    option("variable", "NAME", "a variable of the tasks, or an attribute of one: model.optimizer"),
    _ON,
    flag("--rows", "compare the rows of its arrays, too: which were read by several tasks"),
    option("--of", "NAME", "the notebook's variable with all rows, to find those that nobody has read"),
)
def _diff(
    magics: TFClusterMagics, name: str, variable: str, on: str | None, rows: bool, of: str | None
) -> None:
    cluster, namespace = magics.running(name), magics.shell.user_ns
    if of and of not in namespace:
        raise UsageError(f"the notebook has no variable {of!r}, which --of names")
    display(cluster.diff(variable, on=on or "all", rows=rows, of=namespace[of] if of else None))


@line_command(
    "reload",
    "reload modules on the tasks, after a change of their files:  reload MODULE [MODULE...] [--on SELECTOR]",
    option("modules", "MODULE", "a module of yours, with its submodules", nargs="+"),
    _ON,
)
def _reload(magics: TFClusterMagics, name: str, modules: list[str], on: str | None) -> None:
    cluster = magics.running(name)
    try:
        found = cluster.reload(*modules, on=on or "all")
    except ValueError as error:
        raise UsageError(str(error)) from None
    for text in reports.reloaded(modules, found):
        print(f"tfmagic: {text}")


@line_command(
    "wait",
    "wait for the cells that were started with --detach",
    option("--timeout", "SECONDS", "wait at most this long", type=parse_seconds),
)
def _wait(magics: TFClusterMagics, name: str, timeout: float | None) -> None:
    """Replaced by `TFClusterMagics.wait_async` where the notebook's event loop can go on."""
    print(magics.detached.wait(magics.known(name), timeout))


@line_command(
    "attach",
    "take over a run that was kept (--keep), or show a cell of a past run:  attach [RUN] [--cell N]",
    option("run_name", "RUN", "name of the run; default: the newest", nargs="?"),
    option("--cell", "N", "number of the cell in the notebook", type=parse_count),
    flag("--full", "without the size limit of a saved cell"),
    flag("--all", "list the runs and their cells", dest="lists"),
)
def _attach(
    magics: TFClusterMagics,
    name: str,
    run_name: str | None,
    cell: int | None,
    full: bool,
    lists: bool,
) -> None:
    """Show the cell live where it still runs here, else from disk."""
    if lists:
        rows = reports.rows_of_runs(folder.find_runs(_state_dir()))
        display(tables.bundle(reports.RUNS_HEADER, rows), raw=True)
        print("%tfcluster attach RUN --cell N  shows a cell again")
        return
    run = find_run(magics, name, run_name)
    if cell is None and (until := kept_until(run.folder)) is not None and not kernel_lives(run):
        if time.time() < until:
            print(reports.attachment(magics.attach(run)))
            return
        when = time.strftime("%A %H:%M", time.localtime(until))
        print(f"tfmagic: run {run} was kept until {when}, and has ended; this is its last cell")
    records = [r for r in read_records(run) if cell in (None, r.prompt)]
    if not records:
        which = f"cell {cell}" if cell is not None else "a cell"
        raise UsageError(f"run {run} has no record of {which}; %tfcluster attach --all lists what there is")
    record = records[-1]
    for job in magics.detached.running():
        is_this = job.number == record.cell and str(job.run) == str(run)
        if is_this and isinstance(job.view, PanelView):
            job.view.show_again()
            return
    if not record.verdict and (host := host_elsewhere(run)):
        print(f"tfmagic: a kernel of another machine ({host}) has this cell; this is what it has written")
    elif not record.verdict:
        print("tfmagic: this cell still runs, in the kernel that started it; run the line again for its end")
    limit = static_form.FULL_BYTES if full else TFCluster.instance().saved_bytes
    form = static_form.render(record, run, limit_bytes=limit)
    display({"text/html": form.html, "text/plain": form.text}, raw=True)
    for item in form.apart:
        display(item.data, metadata=item.metadata, raw=True)


@line_command(
    "doctor", "check this environment for a cluster of that shape, and print how to fix problems", SHAPE
)
def _doctor(magics: TFClusterMagics, name: str, shape: ShapeOptions) -> None:
    """Look at this environment, for a cluster of the given shape or for the one that runs."""
    cluster = magics.clusters.get(name)
    if cluster is None or not cluster.running or shape.given:
        cluster = magics.new_cluster(name, shape)
    for finding in doctor.examine(doctor.case_of(magics.shell, cluster)):
        print(finding)


@line_command(
    "tensorboard",
    "TensorBoard, which ends with the cluster:  tensorboard [LOGDIR] [--port N]",
    option("logdir", "LOGDIR", "default: the last of tensorboard_dir", nargs="?"),
    option("--port", "N", "default: a free port", type=parse_count),
    option("--host", "ADDRESS", "address to listen on (%(default)s)", default="127.0.0.1"),
    option("--height", "PIXELS", "height of the frame", type=parse_count, default=800),
    flag("--stop", "end TensorBoard"),
)
def _tensorboard(
    magics: TFClusterMagics,
    name: str,
    logdir: str | None,
    port: int | None,
    host: str,
    height: int,
    stop: bool,
) -> None:
    cluster = magics.running(name)
    if not stop:
        board = cluster.tensorboard(logdir or None, port=port or None, host=host)
        board.show(height)
        if lacks := missing_plugin(board.logdir):
            print(f"tfmagic: {lacks}")
    elif (running := cluster.board) is None:
        print(f"tfmagic: no TensorBoard runs beside cluster {name}")
    else:
        running.close()
        print(f"tfmagic: TensorBoard at {running.url} ended")


@line_command(
    "explain", "print what a short name in a message means", option("word", "NAME", "a short name", nargs="?")
)
def _explain(magics: TFClusterMagics, name: str, word: str | None) -> None:
    try:
        print(symptoms.explain(word or ""))
    except LookupError as error:
        raise UsageError(error.args[0]) from None
