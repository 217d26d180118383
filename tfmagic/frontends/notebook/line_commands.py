"""The commands of ``%tfcluster``: each makes a few calls of `Cluster` and prints.

`tfmagic.clusters.api.lines` says how one is written. More are in `line_reports`, and in
modules ``lines`` of features.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from tfmagic.backends.remote import driver_client
from tfmagic.backends.simulated.hosts import try_hosts
from tfmagic.clusters.api.lines import ON, flag, line_command, option
from tfmagic.clusters.cells import waiting
from tfmagic.clusters.launch import remote_hosts
from tfmagic.clusters.launch.given_options import GivenOptions
from tfmagic.clusters.launch.open_backend import check_room
from tfmagic.frontends import symptoms
from tfmagic.frontends.notebook import plain_cells, reports
from tfmagic.frontends.notebook.options import SHAPE, parse_variables
from tfmagic.protocol.cluster_spec import select

if TYPE_CHECKING:
    from tfmagic.clusters.cluster import Cluster
    from tfmagic.frontends.notebook.magic import NotebookClusters

TASKS = option("tasks", "TASK", "tasks, by selector", nargs="*")
_VARIABLES = (option("names", "A,B", "variable names", type=parse_variables), ON)


# -- the cluster -----------------------------------------------------------------------------------


@line_command("start", "start a cluster and wait until every task is ready", SHAPE)
def _start(magics: NotebookClusters, name: str, shape: GivenOptions) -> None:
    cluster = magics.clusters.get(name)
    if cluster is not None and cluster.running:
        magics.refuse_other_shape(name, shape)
    elif cluster is None or shape.given or not cluster.idle_stop_s:
        cluster = magics.new_cluster(name, shape)
        magics.add(cluster, shape)
    magics.start_shown(cluster)
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
def _stop(magics: NotebookClusters, name: str, every: bool) -> None:
    for each in list(magics.clusters) if every else [name]:
        cluster = magics.known(each)
        was_running = cluster.running
        cluster.stop()
        ended = plain_cells.remove(magics.shell, each)
        note = f"; {plain_cells.describe(magics.shell)}" if ended else ""
        print(f"tfmagic: cluster {each} {'stopped' if was_running else 'was not running'}{note}")
    if every:
        driver_client.close_idle()


@line_command("restart", "give all or the named tasks new processes at the same addresses", TASKS, SHAPE)
def _restart(magics: NotebookClusters, name: str, shape: GivenOptions, tasks: list[str]) -> None:
    cluster = magics.known(name)
    if shape.given and tasks:
        raise UsageError("restart takes a new shape or names of tasks, not both")
    if shape.given:
        cluster = _replace(magics, cluster, shape.completed(magics.shapes[name]))
    else:
        cluster.restart(*tasks)
    chosen = select(",".join(tasks or ("all",)), cluster.tasks)
    print(f"tfmagic: cluster {name}: new processes for {reports.names_of(chosen)}")


def _replace(magics: NotebookClusters, old: Cluster, shape: GivenOptions) -> Cluster:
    """Start a cluster of this shape instead of another, which stays if this machine refuses the new one."""
    new, old_shape = magics.new_cluster(old.name, shape), magics.shapes[old.name]
    if new.task_settings.hosts is not None:
        remote_hosts.collect_modules(new.task_settings, new.setting("max_module_bytes"))
    freed_bytes = sum(row["memory_bytes"] or 0 for row in old.status()) if old.running else 0
    check_room(new.shape, new.task_settings, new.setting, freed_bytes)
    if new.task_settings.network is not None:
        try_hosts(new.shape.tasks, new.task_settings.network)
    old.stop()
    magics.add(new, shape)
    try:
        magics.start_shown(new)
    except BaseException:
        magics.add(old, old_shape)  # whose output and failures can still be read
        raise
    return new


@line_command("interrupt", "interrupt the running cell, on all or the named tasks", TASKS)
def _interrupt(magics: NotebookClusters, name: str, tasks: list[str]) -> None:
    cluster = magics.running(name)
    detached = [job for job in magics.detached.running() if job.run is cluster.run_folder]
    chosen = select(",".join(tasks or ("all",)), cluster.tasks)
    text = reports.interruption(cluster, chosen, detached)
    cluster.interrupt(*tasks)
    reports.report(name, text)


@line_command("revive", "restart dead tasks; the others keep their variables", TASKS)
def _revive(magics: NotebookClusters, name: str, tasks: list[str]) -> None:
    cluster = magics.running(name)
    revived, late = cluster.revive(*tasks), reports.asked_to_end(cluster)
    if revived:
        message = f"{', '.join(revived)} came back, without variables; make strategies again"
    elif late:
        message = (
            f"no task is dead yet; {', '.join(map(str, late))} caught the signal to end, and may save "
            "first:  %tfcluster revive again when that is done"
        )
    else:
        message = "no task was dead"
    print(f"tfmagic: cluster {name}: {message}")


# -- cells, variables and what is beside them ----------------------------------------------------


@line_command(
    "all",
    "run plain cells on the cluster, too:  all on|off",
    option("state", None, "without it: print the present state", choices=("on", "off"), nargs="?"),
    ON,
    SHAPE,
)
def _all(magics: NotebookClusters, name: str, state: str | None, on: str | None, shape: GivenOptions) -> None:
    if state == "on":
        magics.start_shown(cluster := magics.cluster_for(name, shape, on))
        plain_cells.install(magics.shell, cluster.name, on)
    elif state == "off":
        plain_cells.remove(magics.shell)
    print(f"tfmagic: {plain_cells.describe(magics.shell)}")


@line_command(
    "run",
    "run one line of code as a cell:  run [options of a cell] CODE",
    ON,
    option("code", "CODE", "Python, a magic or !command", nargs=argparse.REMAINDER),
)
def _run(magics: NotebookClusters, name: str, code: list[str], on: str | None) -> None:
    """Called for a line without code; `one_liners` turns the others into cells."""
    raise UsageError("%tfcluster run: the code is missing:  %tfcluster run --on worker-0 a = 5")


@line_command("push", "send notebook variables:  push A,B [--on SELECTOR]", *_VARIABLES)
def _push(magics: NotebookClusters, name: str, names: tuple[str, ...], on: str | None) -> None:
    cluster, namespace = magics.running(name), magics.shell.user_ns
    missing = [name for name in names if name not in namespace]
    if missing:
        raise UsageError(f"the notebook has no variable {', '.join(missing)}; assign it first")
    job = cluster.begin_push({name: namespace[name] for name in names}, on or "all")
    waiting.finish(job)
    sizes = [reports.size_of(command.carried.names) for command in job.request.commands.values()]
    reports.report(
        name,
        f"pushed {', '.join(names)} to {reports.names_of(job.tasks)}, {reports.sizes_text(sizes)}",
    )


@line_command("pull", "fetch variables, each bound to {task: value}:  pull A,B [--on SELECTOR]", *_VARIABLES)
def _pull(magics: NotebookClusters, name: str, names: tuple[str, ...], on: str | None) -> None:
    job = magics.running(name).begin_pull(names, on)
    magics.shell.user_ns.update(waiting.finish(job).pulled)
    outcomes = job.outcome.outcomes.values() if job.outcome else ()
    sizes = [reports.size_of(getattr(outcome, "pulled", {}).values()) for outcome in outcomes]
    reports.report(
        name,
        f"pulled {', '.join(names)} from {reports.names_of(job.tasks)}, {reports.sizes_text(sizes)}",
    )


@line_command(
    "explain", "print what a short name in a message means", option("word", "NAME", "a short name", nargs="?")
)
def _explain(magics: NotebookClusters, name: str, word: str | None) -> None:
    try:
        print(symptoms.explain(word or ""))
    except LookupError as error:
        raise UsageError(error.args[0]) from None
