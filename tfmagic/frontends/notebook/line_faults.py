"""The commands of ``%tfcluster`` for faults on purpose, and for the network of simulated hosts.

See `tfmagic.clusters.tools.fault_lab` for what they do, and `line_commands` for how to add one.
"""

from __future__ import annotations

import signal
from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from tfmagic.clusters.launch.arguments import parse_count, parse_seconds
from tfmagic.clusters.tools.fault_plan import DEFAULT_KINDS, KINDS
from tfmagic.frontends.notebook import reports
from tfmagic.frontends.notebook.options import (
    flag,
    line_command,
    option,
    parse_bytes,
    parse_factor,
    parse_signal,
    parse_variables,
)
from tfmagic.protocol.cluster_spec import select

if TYPE_CHECKING:
    from tfmagic.frontends.notebook.magic import TFClusterMagics

_AFTER = (
    option("tasks", "TASK", "tasks, by selector", nargs="+"),
    option("--after", "S", "seconds until the fault; returns at once", type=parse_seconds),
)
_HOSTS = "hosts, or tasks for their hosts"
_SIGNAL = option("--signal", "S", "default: KILL", dest="amount", type=parse_signal, default=signal.SIGKILL)


@line_command(  # the last decorator adds its command first
    "flood",
    "let tasks write to their error stream:  flood TASK BYTES , such as 200MB",
    *_AFTER,
    option("amount", "BYTES", "such as 1000000, 200MB, 1GB", type=parse_bytes),
)
@line_command(
    "slow",
    "make tasks slower:  slow TASK FACTOR ; 1 ends it",
    *_AFTER,
    option("amount", "FACTOR", "1 to 100", type=parse_factor),
)
@line_command(
    "heal",
    "join hosts that were cut off to the others again, all by default",
    option("tasks", "HOST|TASK", _HOSTS, nargs="*"),
    _AFTER[1],
)
@line_command(
    "partition",
    "cut simulated hosts off from the others, as by a pulled cable:  partition HOST|TASK",
    option("tasks", "HOST|TASK", _HOSTS, nargs="+"),
    _AFTER[1],
)
@line_command("preempt", "ask tasks to end (SIGTERM), as a cloud does", *_AFTER)
@line_command("resume", "continue paused tasks", *_AFTER)
@line_command("pause", "let tasks hang: stop them (SIGSTOP) until resume", *_AFTER)
@line_command("kill", "let tasks crash: kill them, or signal them (--signal TERM)", *_AFTER, _SIGNAL)
def _injure(magics: TFClusterMagics, line: Namespace) -> None:
    cluster = magics.running(line.cluster)
    lab, kind, amount = cluster.faults, line.command, getattr(line, "amount", 0)
    try:
        if line.after is not None:
            hit = lab.later(line.after, kind, line.tasks, amount)
            print(f"tfmagic: in {line.after:g} s: {kind} {', '.join(hit)}")
            return
        if kind in ("partition", "heal"):
            reports.report(line, reports.partition(cluster, kind, getattr(lab, kind)(*line.tasks)))
            return
        state = cluster.state
        chosen = select(",".join(line.tasks), cluster.tasks)
        pids = {task: state.tasks[task].pid if state else 0 for task in chosen}
        if kind == "kill":
            lab.kill(*line.tasks, signal_number=amount)
        elif kind in ("slow", "flood"):
            getattr(lab, kind)(",".join(line.tasks), amount)
        else:
            getattr(lab, kind)(*line.tasks)
    except ValueError as error:
        raise UsageError(f"%tfcluster {kind}: {error}") from None
    reports.report(line, reports.injury(cluster, kind, pids, amount))


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
def _chaos(magics: TFClusterMagics, line: Namespace) -> None:
    lab = magics.running(line.cluster).faults
    if line.stop:
        lab.calm()
        print("tfmagic: all plans of faults have ended; what they had paused or slowed goes on")
        return
    try:
        plan = lab.chaos(line.seed, line.seconds, line.every, line.faults, line.on or "all")
    except ValueError as error:
        raise UsageError(str(error)) from None
    print(f"tfmagic: chaos with seed {line.seed}, {len(plan)} faults; %tfcluster chaos --stop ends it")
    for step in plan:
        print(f"  {step}")


@line_command(
    "network",
    "show the links of simulated hosts, or change them:  network [HOST] RATE[,LATENCY[,LOSS]] , or off",
    option("words", "[HOST] LINK", "such as 100mbit, host-1 1gbit,0.5ms or off", nargs="*"),
)
def _network(magics: TFClusterMagics, line: Namespace) -> None:
    cluster = magics.running(line.cluster)
    if line.words:
        *hosts, link = line.words
        cluster.network(link, *hosts)
    reports.report(line, reports.links(cluster))
