"""``tfmagic report``: write a run into one html file, for a bug report."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from tfmagic.clusters.cluster import Cluster
from tfmagic.errors import TfmagicError
from tfmagic.features.report import writing
from tfmagic.frontends.cli.logs import NotThere, find_run
from tfmagic.runs import folder
from tfmagic.runs.folder import RunFolder
from tfmagic.system.advice import program_name


def main(args: argparse.Namespace) -> int:
    """Write the file. Return 1 if there is no such run, or it cannot be written."""
    try:
        run, words = find_run(folder.state_dir(), [args.run] if args.run else [])
        if words:
            raise NotThere(f"there is no run {args.run!r}")
        path = Path(args.out).expanduser() if args.out else writing.default_path(run)
        writing.write(run, None, _cluster_of(run), path, args.with_output)
    except (NotThere, TfmagicError) as error:
        sys.stderr.write(f"{program_name()} report: {error}\n")
        return 1
    print(f"wrote {path}; {writing.what_to_do(args.with_output)}")
    return 0


def _cluster_of(run: RunFolder) -> Cluster:
    """Return a cluster of the run's shape."""
    count = Counter(task.type for task in run.tasks)
    if not count:
        return Cluster()
    chief, evaluator = bool(count["chief"]), bool(count["evaluator"])
    return Cluster(workers=count["worker"], ps=count["ps"], chief=chief, evaluator=evaluator)
