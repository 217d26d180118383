"""The sub-commands of ``%tfcluster``: each a few calls of `Cluster` and a print."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.display import display

from tfmagic.clusters.fault_lab import DEFAULT_KINDS
from tfmagic.clusters.results import table_bundle
from tfmagic.clusters.settings import TFCluster
from tfmagic.frontends import doctor
from tfmagic.frontends.notebook.options import LineOptions
from tfmagic.protocol.cluster_spec import TaskId, select
from tfmagic.runs import folder
from tfmagic.runs.cell_records import read_records
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import log_lines
from tfmagic.views import static_form, tables
from tfmagic.views.panel import PanelView

_FULL_BYTES = 20_000_000

if TYPE_CHECKING:
    from tfmagic.clusters.cluster import Cluster
    from tfmagic.frontends.notebook.magic import TFClusterMagics


def run_line(magics: TFClusterMagics, options: LineOptions) -> None:
    """Carry out a parsed ``%tfcluster`` line."""
    __tracebackhide__ = True
    match options.command:
        case "start":
            _start(magics, options)
        case "stop":
            _stop(magics, options)
        case "restart":
            _restart(magics, options)
        case "status":
            _status(magics, options)
        case "logs":
            _logs(magics, options)
        case "errors":
            _errors(magics, options)
        case "interrupt":
            magics.running(options.cluster).interrupt(*options.words)
        case "stacks":
            print(magics.running(options.cluster).grouped_stacks(*options.words))
        case "revive":
            _revive(magics, options)
        case "chaos":
            _chaos(magics, options)
        case "kill" | "pause" | "resume" | "preempt" | "slow" | "flood":
            _fault(magics, options)
        case "debug":
            magics.running(options.cluster).debug(options.words[0])
        case "wait":
            magics.detached.wait(_known_name(magics, options), options.timeout_s)
        case "attach":
            _attach(magics, options)
        case "doctor":
            _doctor(magics, options)
        case "tensorboard":
            _tensorboard(magics, options)
        case "push":
            _push(magics, options)
        case "pull":
            pulled = magics.running(options.cluster).pull(*options.words, on=options.on)
            magics.shell.user_ns.update(pulled)


async def wait_async(magics: TFClusterMagics, options: LineOptions) -> None:
    """`%tfcluster wait`, while the notebook's event loop goes on."""
    __tracebackhide__ = True
    await magics.detached.wait_async(_known_name(magics, options), options.timeout_s)


def _known_name(magics: TFClusterMagics, options: LineOptions) -> str:
    return magics.known(options.cluster).name


def _attach(magics: TFClusterMagics, options: LineOptions) -> None:
    """Show a cell again: live where it still runs here, else what is on disk."""
    base = folder.state_dir(TFCluster.instance().state_dir)
    if options.all:
        for run in folder.find_runs(base):
            cells = ", ".join(f"[{r.prompt}] {r.verdict or 'not ended'}" for r in read_records(run))
            print(f"{run}  {cells or 'no cell'}")
        return
    run = _find_run(magics, options, base)
    records = [r for r in read_records(run) if options.cell in (None, r.prompt)]
    if not records:
        which = f"cell {options.cell}" if options.cell is not None else "a cell"
        raise UsageError(f"run {run} has no record of {which}; %tfcluster attach --all lists what there is")
    record = records[-1]
    for job in magics.detached.running():
        if job.number == record.cell and isinstance(job.view, PanelView):
            job.view.show_again()
            return
    if not record.verdict:
        print(f"tfmagic: this cell had not ended when its kernel was last seen; run {run}")
    limit = _FULL_BYTES if options.full else TFCluster.instance().saved_bytes
    form = static_form.render(record, run, limit_bytes=limit)
    display({"text/html": form.html, "text/plain": form.text}, raw=True)
    for item in form.apart:
        display(item.data, metadata=item.metadata, raw=True)


def _doctor(magics: TFClusterMagics, options: LineOptions) -> None:
    """Look at this environment, for a cluster of the given shape or for the one that runs."""
    cluster = magics.clusters.get(options.cluster)
    if cluster is None or not cluster.running or options.shape.given:
        cluster = magics.new_cluster(options.cluster, options.shape)
    for finding in doctor.examine(doctor.case_of(magics.shell, cluster)):
        print(finding)


def _find_run(magics: TFClusterMagics, options: LineOptions, base: Path) -> RunFolder:
    """The run that is named; else that of the cluster here, else the newest of a cluster of that name."""
    if options.words:
        found = [run for run in folder.find_runs(base) if str(run) == options.words[0]]
        if not found:
            raise UsageError(
                f"there is no run {options.words[0]!r} in {base / 'runs'}; %tfcluster attach --all lists them"
            )
        return found[0]
    cluster = magics.clusters.get(options.cluster)
    if cluster is not None:
        return cluster.run_folder
    found = [run for run in folder.find_runs(base) if run.cluster == options.cluster]
    if not found:
        raise UsageError(
            f"no cluster {options.cluster!r} runs here ({magics.running_names()}), and there is no run of "
            f"one in {base / 'runs'}"
        )
    return found[-1]


def _start(magics: TFClusterMagics, options: LineOptions) -> None:
    __tracebackhide__ = True
    name = options.cluster
    cluster = magics.clusters.get(name)
    if cluster is not None and cluster.running:
        magics.refuse_other_shape(name, options.shape)
    else:
        cluster = magics.new_cluster(name, options.shape)
        magics.start_shown(cluster)
        magics.clusters[name], magics.shapes[name] = cluster, magics.full_shape(cluster, options.shape)
    dead = [row["task"] for row in cluster.status() if row["state"] == "dead"]
    alive = ", ".join(task.name for task in cluster.tasks if task.name not in dead)
    told = f"runs: {alive}" if alive else "has no task that runs"
    if dead:
        told += f"; dead: {', '.join(dead)}. Bring them back with  %tfcluster revive   or  %tfcluster restart"
    print(f"tfmagic: cluster {name} {told}")


def _stop(magics: TFClusterMagics, options: LineOptions) -> None:
    chosen = list(magics.clusters) if options.all else [options.cluster]
    for name in chosen:
        cluster = magics.known(name)
        was_running = cluster.running
        cluster.stop()
        print(f"tfmagic: cluster {name} {'stopped' if was_running else 'was not running'}")


def _restart(magics: TFClusterMagics, options: LineOptions) -> None:
    __tracebackhide__ = True
    name = options.cluster
    cluster = magics.known(name)
    if options.shape.given and options.words:
        raise UsageError("restart takes a new shape or names of tasks, not both")
    if options.shape.given:
        new = magics.new_cluster(name, options.shape)
        cluster.stop()
        magics.start_shown(new)
        magics.clusters[name], magics.shapes[name] = new, magics.full_shape(new, options.shape)
        cluster, words = new, new.tasks
    else:
        words = select(",".join(options.words), cluster.tasks) if options.words else cluster.tasks
        cluster.restart(*options.words)
    print(f"tfmagic: cluster {name}: new processes for {', '.join(t.name for t in words)}")


def _revive(magics: TFClusterMagics, options: LineOptions) -> None:
    __tracebackhide__ = True
    cluster = magics.running(options.cluster)
    revived, late = cluster.revive(*options.words), cluster.faults.asked_to_end
    if late and not revived:
        names = ", ".join(map(str, late))
        print(
            f"tfmagic: cluster {options.cluster}: no task is dead yet; {names} caught the signal to end, and "
            "may save first:  %tfcluster revive again when that is done"
        )
    elif revived:
        print(
            f"tfmagic: cluster {options.cluster}: {', '.join(revived)} came back, without variables; make "
            "strategies anew"
        )
    else:
        print(f"tfmagic: cluster {options.cluster}: no task was dead")


def _fault(magics: TFClusterMagics, options: LineOptions) -> None:
    __tracebackhide__ = True
    try:
        _do_fault(magics.running(options.cluster), options)
    except ValueError as error:
        raise UsageError(f"%tfcluster {options.command}: {error}") from None


def _do_fault(cluster: Cluster, options: LineOptions) -> None:
    __tracebackhide__ = True
    fault = options.fault
    assert fault is not None  # the parser of these commands makes one
    if fault.after_s is not None:
        amount = fault.signal_number if options.command == "kill" else fault.amount
        hit = cluster.faults.later(fault.after_s, options.command, options.words, amount)
        print(f"tfmagic: in {fault.after_s:g} s: {options.command} {', '.join(map(str, hit))}")
        return
    match options.command:
        case "kill":
            cluster.faults.kill(*options.words, signal_number=fault.signal_number)
        case "pause":
            cluster.faults.pause(*options.words)
        case "resume":
            cluster.faults.resume(*options.words)
        case "preempt":
            cluster.faults.preempt(*options.words)
        case "slow":
            cluster.faults.slow(",".join(options.words), fault.amount)
        case "flood":
            cluster.faults.flood(",".join(options.words), int(fault.amount))


def _chaos(magics: TFClusterMagics, options: LineOptions) -> None:
    __tracebackhide__ = True
    cluster, fault = magics.running(options.cluster), options.fault
    assert fault is not None
    if fault.stop:
        cluster.faults.calm()
        print("tfmagic: all plans of faults have ended; what they had paused or slowed goes on")
        return
    try:
        kinds = fault.kinds or DEFAULT_KINDS
        plan = cluster.faults.chaos(fault.seed, fault.seconds, fault.every_s, kinds, options.on or "all")
    except ValueError as error:
        raise UsageError(str(error)) from None
    print(f"tfmagic: chaos with seed {fault.seed}, {len(plan)} faults; %tfcluster chaos --stop ends it")
    for step in plan:
        print(f"  {step}")


def _status(magics: TFClusterMagics, options: LineOptions) -> None:
    cluster = magics.running(options.cluster)
    rows = cluster.status()
    if options.json:
        print(json.dumps(rows))
        return
    display(table_bundle(tables.STATUS_HEADER, tables.status_table(rows, cluster.own_share())), raw=True)


def _logs(magics: TFClusterMagics, options: LineOptions) -> None:
    run, tasks = _run_and_tasks(magics, options)
    chosen = select(",".join(options.words or ("all",)), tasks)
    try:
        pattern = re.compile(options.grep) if options.grep else None
    except re.error as error:
        raise UsageError(f"--grep {options.grep!r} is not a regular expression: {error}") from None
    for task in chosen:
        path = run.log_path(task)
        if options.path:
            print(path)
            continue
        for line in log_lines(path, task, options.tail, pattern):
            sys.stdout.write(line)


def _run_and_tasks(magics: TFClusterMagics, options: LineOptions) -> tuple[RunFolder, tuple[TaskId, ...]]:
    """The run whose logs are meant: also one of a kernel that is gone."""
    cluster = magics.clusters.get(options.cluster)
    if cluster is not None:
        return cluster.run_folder, cluster.tasks
    base = folder.state_dir(TFCluster.instance().state_dir)
    run = _find_run(magics, dataclasses.replace(options, words=()), base)
    return run, run.tasks


def _errors(magics: TFClusterMagics, options: LineOptions) -> None:
    texts = magics.known(options.cluster).errors(*options.words)
    if not texts:
        print("tfmagic: no task failed in the last cell")
    for name, text in texts.items():
        print(f"---- {name} ----\n{text}\n")


def _tensorboard(magics: TFClusterMagics, options: LineOptions) -> None:
    __tracebackhide__ = True
    cluster, asked = magics.running(options.cluster), options.board
    assert asked is not None  # the parser of this command makes one
    if not asked.stop:
        logdir = options.words[0] if options.words else None
        cluster.tensorboard(logdir, port=asked.port, host=asked.host).show(asked.height)
    elif (board := cluster.board) is None:
        print(f"tfmagic: no TensorBoard runs beside cluster {options.cluster}")
    else:
        board.close()
        print(f"tfmagic: TensorBoard at {board.url} ended")


def _push(magics: TFClusterMagics, options: LineOptions) -> None:
    __tracebackhide__ = True
    cluster = magics.running(options.cluster)
    missing = [name for name in options.words if name not in magics.shell.user_ns]
    if missing:
        raise UsageError(f"the notebook has no variable {', '.join(missing)}; assign it first")
    values = {name: magics.shell.user_ns[name] for name in options.words}
    cluster.push(values, on=options.on or "all")
