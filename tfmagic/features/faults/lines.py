"""The commands of ``%tfcluster`` for faults on purpose; `lab` has what they do."""

import argparse
import functools
import re
import signal

from IPython.core.error import UsageError

from tfmagic.clusters.api.lines import Notebook, flag, line_command, option
from tfmagic.clusters.launch.arguments import parse_count, parse_seconds
from tfmagic.features.faults import words
from tfmagic.features.faults.methods import Faults
from tfmagic.features.faults.plan import DEFAULT_KINDS, KINDS
from tfmagic.frontends.notebook import reports
from tfmagic.frontends.notebook.options import parse_variables
from tfmagic.protocol.cluster_spec import select


def _parse_factor(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor; write 1 to 100") from None


def _parse_bytes(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([kMG]?)(i?)B?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes; write 1000000, 200MB or 1GiB")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** " kMG".index(found[2] or " "))


def _parse_signal(text: str) -> int:
    name = text.upper().removeprefix("SIG")
    try:
        return int(signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{name}"])
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(
            f"there is no signal {text!r}; write KILL, TERM, SEGV, ..."
        ) from None


_AFTER = (
    option("tasks", "TASK", "tasks, by selector", nargs="+"),
    option("--after", "S", "seconds until the fault; returns at once", type=parse_seconds),
)
_HOSTS = "hosts, or tasks for their hosts"
_CUT = (option("tasks", "HOST|TASK", _HOSTS, nargs="+"), _AFTER[1])
_JOIN = (option("tasks", "HOST|TASK", _HOSTS, nargs="*"), _AFTER[1])
_FACTOR = option("amount", "FACTOR", "1 to 100", type=_parse_factor)
_BYTES = option("amount", "BYTES", "such as 1000000, 200MB, 1GB", type=_parse_bytes)
_SIGNAL = option("--signal", "S", "default: KILL", dest="amount", type=_parse_signal, default=signal.SIGKILL)


def _injure(
    kind: str, magics: Notebook[Faults], name: str, tasks: list[str], after: float | None, amount: float = 0
) -> None:
    cluster = magics.running(name)
    lab = cluster.faults
    try:
        if after is not None:
            hit = lab.later(after, kind, tasks, amount)
            print(f"tfmagic: in {after:g} s: {kind} {', '.join(hit)}")
            return
        if kind in ("partition", "heal"):
            reports.report(name, words.partition(lab, kind, getattr(lab, kind)(*tasks)))
            return
        chosen = lab.select(tasks)
        gone = [task for task in select(tasks, cluster.tasks) if task not in chosen]
        pids = lab.pids(chosen)
        if kind == "kill":
            lab.kill(*tasks, signal_number=int(amount))
        elif kind in ("slow", "flood"):
            getattr(lab, kind)(",".join(tasks), amount)
        else:
            getattr(lab, kind)(*tasks)
    except ValueError as error:
        raise UsageError(f"%tfcluster {kind}: {error}") from None
    dead = f"; {reports.names_of(gone)} had no process" if gone else ""
    reports.report(name, words.injury(kind, pids, lab.pids(pids), amount) + dead)


_place = "explain"
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
    line_command(_kind, _summary, *_options, after=_place)(functools.partial(_injure, _kind))
    _place = _kind


@line_command(
    "chaos",
    "inject faults at random in the background (--stop ends it)",
    option("--seed", "N", "the same seed gives the same faults", type=parse_count, default=0),
    option("--seconds", "S", "duration (30)", type=parse_seconds, default=30.0),
    option("--every", "S", "mean time between faults (3)", type=parse_seconds, default=3.0),
    option("--faults", "A,B", f"kinds, of {', '.join(KINDS)}", type=parse_variables, default=DEFAULT_KINDS),
    option("--on", "SELECTOR", "tasks that the faults can hit", default="all"),
    flag("--stop", "end the faults"),
    after=_place,
)
def _chaos(
    magics: Notebook[Faults],
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
