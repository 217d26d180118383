"""``tfmagic wait``: wait for the last cell of a run, from its run folder."""

import argparse
import math
import sys
import time

from tfmagic.frontends.cli.errors import last_cell
from tfmagic.frontends.cli.logs import NotThere, find_run
from tfmagic.runs import folder
from tfmagic.runs.given_hints import Hint
from tfmagic.runs.schemas import RUNS, as_json, describe, newest_cell, wait_report
from tfmagic.system.advice import program_name

STILL_RUNS = 124  # as timeout(1)
_POLL_S = 0.2


def main(args: argparse.Namespace) -> int:
    """Print how the cell ended, or how far it is."""
    until = time.monotonic() + (math.inf if args.timeout is None else args.timeout)
    try:
        run, words = find_run(folder.state_dir(), args.words)
        if words:
            raise NotThere(f"there is no run {words[0]!r}")
        while not last_cell(run).verdict and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, left_s))
        cell = newest_cell(run)
    except NotThere as error:
        sys.stderr.write(f"{program_name()} wait: {error}\n")
        return 1
    assert cell is not None  # `last_cell` has found it
    if args.json:
        print(as_json(wait_report(run.cluster, run, [cell])))
    else:
        hints = [Hint(hint.name, hint.advice, tuple(hint.tasks)).note for hint in cell.hints]
        print(f"{run}: {describe(cell)}", *hints, sep="\n")
    return STILL_RUNS if cell.state == RUNS else int(cell.state != "done")
