"""``tfmagic status``: print this user's clusters, from the status files that their kernels write."""

import argparse
import textwrap
import time
from pathlib import Path

from tfmagic.runs import folder as runs
from tfmagic.runs import warm_folder
from tfmagic.runs.schemas import as_json, cluster_report
from tfmagic.runs.status_reader import (
    Snapshot,
    newest_runs,
    read_snapshot,
    row_of,
    state_of,
)
from tfmagic.system.advice import program_name
from tfmagic.views import tables

_MOST_RUNS = 1000
_STALE_S = 15.0  # a kernel that lives writes at least every 10 s


def main(args: argparse.Namespace) -> int:
    """Print the clusters."""
    base = runs.state_dir()
    seen = [found for folder in reversed(newest_runs(base, _MOST_RUNS)) if (found := read_snapshot(folder))]
    shown = [snapshot for snapshot in seen if args.all or snapshot.live or snapshot.kept_until]
    if args.json:
        print(as_json([cluster_report(snapshot, base) for snapshot in shown]))
        return 0
    for snapshot in shown:
        print(describe(snapshot, base, time.time()))
    if not any(snapshot.live or snapshot.kept_until for snapshot in seen):
        print(f"no cluster runs here, by the state folder {base}")
    for warm in warm_folder.find(base):
        print(warm)
    if len(shown) < len(seen):
        states = [state_of(snapshot) for snapshot in seen]
        died, far = states.count("died"), states.count("elsewhere")
        ended = len(seen) - len(shown) - far
        what = "1 run has" if ended == 1 else f"{ended} runs have"
        parts = [f"{what} ended{f', of which {died} died' if died else ''}"] if ended else []
        parts += [f"{far} of another machine, whose state is not known here"] if far else []
        print(f"{'; '.join(parts)}; --all shows them")
    return 0


def describe(snapshot: Snapshot, base: Path, now: float) -> str:
    """Return the owner, the folder and a table of the tasks; one line for a cluster that has ended."""
    state, shape = state_of(snapshot), snapshot.shape or "of unknown shape"
    if state in ("ended", "unknown"):
        return f"{snapshot.run}  {state}, {shape}"
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.started))
    silent_s = now - snapshot.written
    owner = f"pid {snapshot.pid}, which lives"
    if snapshot.died:
        owner = f"pid {snapshot.pid}, which is gone; {program_name()} reap ends the processes that it left"
    elif snapshot.kept_until is not None:
        until = time.strftime("%A %H:%M", time.localtime(snapshot.kept_until))
        owner = f"none; the tasks go on until {until}, and  %tfcluster attach {snapshot.run}  takes them over"
    elif snapshot.host:
        owner = f"pid {snapshot.pid} on another machine ({snapshot.host}), which wrote {silent_s:.0f} s ago"
    elif silent_s > _STALE_S:
        owner += f", and has written nothing for {silent_s:.0f} s: it is stopped, or very busy"
    rows = [row_of(task) for task in snapshot.tasks]
    table = "\n".join(
        [tables.to_text(tables.STATUS_HEADER, tables.status_table(rows)), *tables.imports(rows)]
    )
    age = "" if snapshot.live else f"as it was {silent_s:.0f} s ago:\n"
    facts = f"owner    {owner}\nstarted  {started}\nfolder   {base / 'runs' / snapshot.run}\n{age}{table}\n"
    return f"cluster {snapshot.cluster or '?'}: {state}, {shape}\n{textwrap.indent(facts, '  ')}"
