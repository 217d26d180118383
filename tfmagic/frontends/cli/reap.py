"""``tfmagic reap``: end the processes that a killed kernel left behind, and those of ``tfmagic warm``."""

import argparse
import sys
from pathlib import Path

from tfmagic.errors import LaunchError
from tfmagic.runs import folder, kernels, orphans, warm_folder
from tfmagic.runs.orphans import Leftover


def main(args: argparse.Namespace) -> int:
    """End the processes, or only list them. Return 1 if one is left."""
    base = folder.state_dir()
    if not args.dry_run:
        try:
            folder.check_private(base)
        except LaunchError as error:
            print(f"tfmagic reap: {error}", file=sys.stderr)
            return 1
        for left in orphans.reap(base):
            print(f"ended {describe(left)}")
    templates = [warm for warm in warm_folder.find(base) if warm.owner is None or warm.is_left_over]
    has_ended = [not args.dry_run and warm.end() for warm in templates]  # before a reader can leave
    for warm, ended in zip(templates, has_ended, strict=True):
        print(f"{'ended' if ended else 'would end'}: {warm}")
    remaining = orphans.find(base)
    how = "would end" if args.dry_run else "could not end"
    for left in remaining:
        print(f"{how} {describe(left)}")
    if not remaining:
        print("no process of a kernel that is gone runs here")
    if args.runs:
        _prune(base, args.dry_run)
    return 1 if remaining else 0


def describe(left: Leftover) -> str:
    """Return the role, the pid and the run of a process."""
    return f"{left.role or 'a process that a task has started'} (pid {left.process.pid}) of run {left.run}"


def _prune(base: Path, dry_run: bool) -> None:
    """Delete the run folders over the limit of age or of total size."""
    from tfmagic.clusters.launch.settings import TFCluster

    settings = TFCluster.instance()
    days, limit = settings.keep_runs_days, settings.keep_runs_bytes
    old = kernels.old_runs(base, days, limit) if dry_run else kernels.prune_runs(base, days, limit)
    for run in old:
        print(f"{'would delete' if dry_run else 'deleted'} {run.folder}")
    if not old:
        print(f"no run folder is over age ({days:g} days) or over size")
