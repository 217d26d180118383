"""``tfmagic status``: the clusters of this user, from what their kernels have written down."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfmagic.frontends.cli.parsers import program_name
from tfmagic.runs import folder as runs
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.status_reader import (
    TASK_NUMBERS,
    TASK_TEXTS,
    Snapshot,
    TaskStatus,
    newest_runs,
    read_snapshot,
)
from tfmagic.views import tables

_MOST_RUNS = 1000
_STALE_S = 15.0  # a kernel that lives writes at least every 10 s


def main(found: argparse.Namespace) -> int:
    """Print them."""
    base = runs.state_dir()
    taken = [look(folder) for folder in reversed(newest_runs(base, _MOST_RUNS))]
    seen = [snapshot for snapshot in taken if snapshot is not None]
    shown = [snapshot for snapshot in seen if found.all or snapshot.live]
    if found.json:
        print(json.dumps([as_json(snapshot, base) for snapshot in shown]))
        return 0
    for snapshot in shown:
        print(tell(snapshot, base, time.time()))
    if not any(snapshot.live for snapshot in seen):
        print(f"no cluster runs here, says {base}")
    if len(shown) < len(seen):
        print(f"{_ended(seen)}; --all shows them")
    return 0


def _ended(seen: Sequence[Snapshot]) -> str:
    """How many runs have ended, and how many of them with their kernel alone."""
    ended = [snapshot for snapshot in seen if not snapshot.live]
    died = sum(snapshot.died for snapshot in ended)
    what = "1 run has" if len(ended) == 1 else f"{len(ended)} runs have"
    return f"{what} ended" + (f", of which {died} died" if died else "")


def look(folder: Path) -> Snapshot | None:
    """What a run folder says; a kernel is known by more than its pid, where the folder has that."""
    snapshot = read_snapshot(folder)
    if snapshot is None or not snapshot.live or runs.kernel_lives(RunFolder(folder)):
        return snapshot
    return dataclasses.replace(snapshot, live=False, died=True)


def state_of(snapshot: Snapshot) -> str:
    """A word: running, ended, died, or unknown of a run that never said."""
    if snapshot.live:
        return "running"
    if snapshot.died:
        return "died"
    return "ended" if snapshot.written else "unknown"


def tell(snapshot: Snapshot, base: Path, now: float) -> str:
    """A cluster in lines: whose, where, and a table of its tasks; one line where nothing is left of it."""
    state, shape = state_of(snapshot), snapshot.shape or "of unknown shape"
    if not (snapshot.live or snapshot.died):
        return f"{snapshot.run}  {state}, {shape}"
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.started))
    silent_s = now - snapshot.written
    owner = f"pid {snapshot.pid}, which lives"
    if snapshot.died:
        owner = f"pid {snapshot.pid}, which is gone; {program_name()} reap ends what it has left"
    elif silent_s > _STALE_S:
        owner += f", and has said nothing for {silent_s:.0f} s: it is stopped, or very busy"
    table = tables.to_text(tables.STATUS_HEADER, tables.status_table(map(row_of, snapshot.tasks)))
    return "\n".join(
        [
            f"cluster {snapshot.cluster or '?'}: {state}, {shape}",
            f"  owner    {owner}",
            f"  started  {started}",
            f"  folder   {base / 'runs' / snapshot.run}",
            *([f"  as it was {silent_s:.0f} s ago:"] if snapshot.died else []),
            *(f"  {line}" for line in table.splitlines()),
            "",
        ]
    )


def row_of(task: TaskStatus) -> dict[str, Any]:
    """A task as `tfmagic.clusters.status.status_rows` has it; None or "" for what is not known."""
    texts: Mapping[str, str] = {key: task.texts.get(key, "") for key in TASK_TEXTS}
    numbers = {key: task.numbers.get(key) for key in TASK_NUMBERS}
    return {"task": task.task, "state": task.state, **texts, **numbers}


def as_json(snapshot: Snapshot, base: Path) -> dict[str, Any]:
    """A cluster for programs."""
    return {
        "run": snapshot.run,
        "cluster": snapshot.cluster,
        "shape": snapshot.shape,
        "state": state_of(snapshot),
        "pid": snapshot.pid or None,
        "started": snapshot.started,
        "written": snapshot.written or None,
        "folder": str(base / "runs" / snapshot.run),
        "tasks": [row_of(task) for task in snapshot.tasks],
        "cells": dict(snapshot.cells) if snapshot.cells else None,
    }
