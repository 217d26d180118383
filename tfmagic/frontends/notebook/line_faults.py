"""The commands of ``%tfcluster`` for faults on purpose, and for the network of simulated hosts.

See `tfmagic.clusters.tools.fault_lab` for what they do, and `tfmagic.clusters.api.lines` for how to add one.
"""

from __future__ import annotations

import functools
import signal
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from tfmagic.clusters.api.lines import flag, line_command, option
from tfmagic.clusters.launch.arguments import parse_count, parse_seconds
from tfmagic.clusters.tools.fault_plan import DEFAULT_KINDS, KINDS
from tfmagic.frontends.notebook import reports
from tfmagic.frontends.notebook.options import parse_bytes, parse_factor, parse_signal, parse_variables
from tfmagic.protocol.cluster_spec import select

if TYPE_CHECKING:
    from tfmagic.frontends.notebook.magic import NotebookClusters

_AFTER = (
    option("tasks", "TASK", "tasks, by selector", nargs="+"),
    option("--after", "S", "seconds until the fault; returns at once", type=parse_seconds),
)
_HOSTS = "hosts, or tasks for their hosts"
_CUT = (option("tasks", "HOST|TASK", _HOSTS, nargs="+"), _AFTER[1])
_JOIN = (option("tasks", "HOST|TASK", _HOSTS, nargs="*"), _AFTER[1])
_FACTOR = option("amount", "FACTOR", "1 to 100", type=parse_factor)
_BYTES = option("amount", "BYTES", "such as 1000000, 200MB, 1GB", type=parse_bytes)
_SIGNAL = option("--signal", "S", "default: KILL", dest="amount", type=parse_signal, default=signal.SIGKILL)


def _injure(
    kind: str, magics: NotebookClusters, name: str, tasks: list[str], after: float | None, amount: float = 0
) -> None:
    cluster = magics.running(name)
    lab = cluster.faults
    try:
        if after is not None:
            hit = lab.later(after, kind, tasks, amount)
            print(f"tfmagic: in {after:g} s: {kind} {', '.join(hit)}")
            return
        if kind in ("partition", "heal"):
            reports.report(name, reports.partition(cluster, kind, getattr(lab, kind)(*tasks)))
            return
        state = cluster.state
        chosen = lab.select(tasks)
        gone = [task for task in select(tasks, cluster.tasks) if task not in chosen]
        pids = {task: state.tasks[task].pid if state else 0 for task in chosen}
        if kind == "kill":
            lab.kill(*tasks, signal_number=int(amount))
        elif kind in ("slow", "flood"):
            getattr(lab, kind)(",".join(tasks), amount)
        else:
            getattr(lab, kind)(*tasks)
    except ValueError as error:
        raise UsageError(f"%tfcluster {kind}: {error}") from None
    dead = f"; {reports.names_of(gone)} had no process" if gone else ""
    reports.report(name, reports.injury(cluster, kind, pids, amount) + dead)


for _kind, _summary, _options in (
    ("kill", "let tasks crash: kill them, or signal them (--signal TERM)", (*_AFTER, _SIGNAL)),
    ("pause", "let tasks hang: stop them (SIGSTOP) until resume", _AFTER),
    ("resume", "continue paused tasks", _AFTER),
    ("preempt", "ask tasks to end (SIGTERM), as a cloud does", _AFTER),
    (
        "partition",
        "cut simulated hosts off from the others, as by a pulled cable:  partition HOST|TASK",
        _CUT,
    ),
    ("heal", "join hosts that were cut off to the others again, all by default", _JOIN),
    ("slow", "make tasks slower:  slow TASK FACTOR ; 1 ends it", (*_AFTER, _FACTOR)),
    ("flood", "let tasks write to their error stream:  flood TASK BYTES , such as 200MB", (*_AFTER, _BYTES)),
):
    line_command(_kind, _summary, *_options)(functools.partial(_injure, _kind))


@line_command(
    "chaos",
    "inject faults at random in the background (--stop ends it)",
    option("--seed", "N", "the same seed gives the same faults", type=parse_count, default=0),
    option("--seconds", "S", "duration (30)", type=parse_seconds, default=30.0),
    option("--every", "S", "mean time between faults (3)", type=parse_seconds, default=3.0),
    option("--faults", "A,B", f"kinds, of {', '.join(KINDS)}", type=parse_variables, default=DEFAULT_KINDS),
    option("--on", "SELECTOR", "tasks that the faults can hit", default="all"),
    flag("--stop", "end the faults"),
)
def _chaos(
    magics: NotebookClusters,
    name: str,
    *,
    seed: int,
    seconds: float,
    every: float,
    faults: tuple[str, ...],
    on: str | None,
    stop: bool,
) -> None:
    lab = magics.running(name).faults
    if stop:
        lab.calm()
        print("tfmagic: all plans of faults have ended; what they had paused or slowed goes on")
        return
    try:
        plan = lab.chaos(seed, seconds, every, faults, on or "all")
    except ValueError as error:
        raise UsageError(str(error)) from None
    print(f"tfmagic: chaos with seed {seed}, {len(plan)} faults; %tfcluster chaos --stop ends it")
    for step in plan:
        print(f"  {step}")


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
