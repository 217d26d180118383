"""The commands of ``%tfcluster`` that show the state, output, failures and network of a cluster or a run.

`tfmagic.clusters.api.lines` says how to add one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.display import display

from tfmagic.clusters.api.lines import flag, line_command, option
from tfmagic.clusters.launch.arguments import parse_count, parse_seconds
from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.errors import LaunchError
from tfmagic.frontends.notebook import reports
from tfmagic.frontends.notebook.line_commands import TASKS
from tfmagic.protocol.cluster_spec import select
from tfmagic.runs import folder, line_search, schemas
from tfmagic.runs.cell_records import CellRecord, read_records
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.kept import is_kept, kept_until
from tfmagic.runs.kernels import host_elsewhere, kernel_lives, kernel_of
from tfmagic.runs.log_reader import log_lines
from tfmagic.system.notices import tell
from tfmagic.views import static_form, tables
from tfmagic.views.panel import PanelView
from tfmagic.views.recorded_text import RecordedText

if TYPE_CHECKING:
    from tfmagic.frontends.notebook.magic import NotebookClusters

_JSON = flag("--json", "print JSON, for programs", dest="plain")


@line_command(
    "network",
    "show the links of simulated hosts, or change them:  network [HOST] RATE[,LATENCY[,LOSS]] , or off",
    option("words", "[HOST] LINK", "such as 100mbit, host-1 1gbit,0.5ms or off", nargs="*"),
)
def _network(magics: NotebookClusters, name: str, words: list[str]) -> None:
    cluster = magics.running(name)
    if words:
        *hosts, link = words
        cluster.network(link, *hosts)
    reports.report(name, reports.links(cluster))


@line_command(
    "status",
    "show a table of the tasks",
    _JSON,
    option(
        "--story", "TASK", "what the loop saw and decided lately, of this task or of all", nargs="?", const=""
    ),
)
def _status(magics: NotebookClusters, name: str, plain: bool, story: str | None) -> None:
    if story is not None:
        print("\n".join(magics.known(name).story(*filter(None, [story]))))
        return
    cluster = magics.running(name)
    rows = cluster.status()
    if plain:
        print(schemas.as_json([schemas.task_report(row, cluster.run_folder) for row in rows]))
    else:
        table = tables.status_table(rows, cluster.own_share())
        display(tables.bundle(tables.STATUS_HEADER, table), raw=True)
        for text in tables.imports(rows):
            print(f"tfmagic: {text}")


@line_command(
    "logs",
    "print the tasks' output, from disk",
    TASKS,
    option("--tail", "N", "the last N lines of each", type=parse_count),
    option("--grep", "RE", "only lines that match"),
    option("--since", "OFFSET", "only what comes after that byte", type=parse_count),
    option("--max-bytes", "N", "at most so much of each task", type=parse_count),
    _JSON,
    flag("--path", "print the paths of the files", dest="shows_path"),
)
def _logs(
    magics: NotebookClusters,
    *,
    name: str,
    tasks: list[str],
    tail: int | None,
    grep: str | None,
    since: int | None,
    max_bytes: int | None,
    plain: bool,
    shows_path: bool,
) -> None:
    cluster, run = magics.clusters.get(name), find_run(magics, name)
    chosen = select(",".join(tasks or ("all",)), run.tasks if cluster is None else cluster.tasks)
    if plain or since is not None or max_bytes is not None:
        if tail is not None or grep or shows_path:
            raise UsageError("--json, --since and --max-bytes go with none of --tail, --grep and --path")
        pieces = [schemas.log_report(run, task, since or 0, max_bytes) for task in chosen]
        texts = [schemas.log_text(piece, f"%tfcluster logs{reports.naming(name)}") for piece in pieces]
        print(schemas.as_json(pieces) if plain else "".join(texts), end="\n" if plain else "")
        return
    try:
        line_search.check(grep or "")
    except ValueError as error:
        raise UsageError(f"--grep {grep!r} is not a regular expression: {error}") from None
    with line_search.LineSearch(grep or "") as search:
        for task in chosen:
            path, choose = run.log_path(task), search.matching if grep else None
            lines = [f"{path}\n"] if shows_path else log_lines(path, task, tail, choose)
            try:
                sys.stdout.writelines(lines)
            except line_search.SlowPattern as error:
                raise UsageError(str(error)) from None


def _state_dir() -> Path:
    return folder.state_dir(TFCluster.instance().state_dir)


def find_run(magics: NotebookClusters, cluster_name: str, run_name: str | None = None) -> RunFolder:
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


def _waiting_run(magics: NotebookClusters, cluster_name: str) -> str:
    """Return the newest kept run that waits for a kernel, although a newer one may have ended; "" if none."""
    if cluster_name in magics.clusters:
        return ""
    runs = [run for run in folder.find_runs(_state_dir()) if run.cluster == cluster_name]
    waiting = [str(run) for run in runs if is_kept(run.folder) and not kernel_lives(run)]
    return waiting[-1] if waiting else ""


def _is_ours(run: RunFolder) -> bool:
    """Check whether this kernel has a run."""
    kernel = kernel_of(run)
    return kernel is not None and kernel.pid == os.getpid() and kernel_lives(run)


@line_command("errors", "print every failure of the last cell in full", TASKS, _JSON)
def _errors(magics: NotebookClusters, name: str, tasks: list[str], plain: bool) -> None:
    cluster = magics.known(name)
    found = cluster.failures(*tasks)
    if plain:
        run = cluster.run_folder
        print(schemas.as_json([schemas.error_report(task, error, run) for task, error in found.items()]))
        return
    if not found:
        print("tfmagic: no task failed in the last cell")
    for task, error in found.items():
        print(f"---- {task} ----\n{error.text}\n")


@line_command("stacks", "print the Python stacks of tasks, also of stuck ones; equal stacks once", TASKS)
def _stacks(magics: NotebookClusters, name: str, tasks: list[str]) -> None:
    print(magics.running(name).grouped_stacks(*tasks))


@line_command(
    "wait",
    "wait for the cells that were started with --detach",
    option("--timeout", "SECONDS", "wait at most this long, then print how far they are", type=parse_seconds),
    _JSON,
)
def _wait(magics: NotebookClusters, name: str, timeout: float | None, plain: bool) -> None:
    """Replaced by `NotebookClusters.wait_async` where the notebook's event loop can go on."""
    print(magics.detached.wait(magics.known(name), timeout, plain))


@line_command(
    "attach",
    "take over a run that was kept (--keep), or show a cell of a past run:  attach [RUN] [--cell N]",
    option("run_name", "RUN", "name of the run; default: the newest", nargs="?"),
    option("--cell", "N", "number of the cell in the notebook", type=parse_count),
    flag("--full", "without the size limit of a saved cell"),
    flag("--all", "list the runs and their cells", dest="lists"),
)
def _attach(
    magics: NotebookClusters,
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
    if cell is None:
        kept = find_run(magics, name, run_name or _waiting_run(magics, name))
        shown = _take_over(magics, kept, run)
        if shown is None:
            return
        run = shown
    for job in magics.detached.running():
        if isinstance(job.view, RecordedText):
            job.show_now()
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
    _show_record(record, run, static_form.FULL_BYTES if full else TFCluster.instance().saved_bytes)


def _take_over(magics: NotebookClusters, run: RunFolder, newest: RunFolder) -> RunFolder | None:
    """Attach to a run that is kept, and return None; else return the run whose last cell is shown instead."""
    until = kept_until(run.folder)
    if until is None or _is_ours(run):
        return run
    when = time.strftime("%A %H:%M", time.localtime(until))
    if time.time() >= until:
        print(f"tfmagic: run {run} was kept until {when}, and has ended; this is its last cell")
        return run
    try:
        print(reports.attachment(magics.attach(run)))
    except LaunchError as error:
        if str(run) == str(newest):
            raise
        tell(f"tfmagic: {error}; it is kept until {when}")
        print(f"tfmagic: this is the last cell of the newest run, {newest}")
        return newest
    return None


def _show_record(record: CellRecord, run: RunFolder, limit_bytes: int) -> None:
    """Show a cell from disk."""
    if not record.verdict and (host := host_elsewhere(run)):
        print(f"tfmagic: a kernel of another machine ({host}) has this cell; this is what it has written")
    elif not record.verdict:
        print("tfmagic: this cell still runs, in the kernel that started it; run the line again for its end")
    form = static_form.render(record, run, limit_bytes=limit_bytes)
    display({"text/html": form.html, "text/plain": form.text}, raw=True)
    for item in form.apart:
        display(item.data, metadata=item.metadata, raw=True)
