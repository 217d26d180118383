"""``tfmagic reap``: end what a killed kernel has left."""

from __future__ import annotations

import argparse
from pathlib import Path

from tfmagic.runs import folder, orphans
from tfmagic.runs.orphans import Leftover


def main(found: argparse.Namespace) -> int:
    """End it, or only say what there is; 1 where something is left."""
    base = folder.state_dir()
    if not found.dry_run:
        for left in orphans.reap(base):
            print(f"ended {tell(left)}")
    remaining = orphans.find(base)
    how = "would end" if found.dry_run else "could not end"
    for left in remaining:
        print(f"{how} {tell(left)}")
    if not remaining:
        print("no process of a kernel that is gone runs here")
    if found.runs:
        _prune(base, found.dry_run)
    return 1 if remaining else 0


def tell(left: Leftover) -> str:
    """Which process it is."""
    return f"{left.role or 'a process that a task has started'} (pid {left.process.pid}) of run {left.run}"


def _prune(base: Path, dry_run: bool) -> None:
    """Delete the run folders that are over age or over the total size."""
    from tfmagic.clusters.settings import TFCluster

    settings = TFCluster.instance()
    days, limit = settings.keep_runs_days, settings.keep_runs_bytes
    old = folder.old_runs(base, days, limit) if dry_run else folder.prune_runs(base, days, limit)
    for run in old:
        print(f"{'would delete' if dry_run else 'deleted'} {run.folder}")
    if not old:
        print(f"no run folder is over age ({days:g} days) or over size")
