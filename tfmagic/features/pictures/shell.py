"""``tfmagic timeline``: print what the tasks of a run did and when, from its folder."""

import argparse
import shutil
import sys
from pathlib import Path

from tfmagic.errors import TfmagicError
from tfmagic.features.pictures import run_timeline, timeline_text
from tfmagic.features.pictures.lanes import NoRecords
from tfmagic.features.pictures.perfetto_file import HOW_TO_OPEN
from tfmagic.frontends.cli.logs import NotThere, find_run
from tfmagic.runs import folder
from tfmagic.system.advice import program_name

_NAMES = 14  # columns for the names of the tasks
_NARROWEST, _WIDEST = 40, 200


def main(args: argparse.Namespace) -> int:
    """Print a timeline, or write it into files. Return 1 if there is no such run or cell."""
    try:
        run, words = find_run(folder.state_dir(), [args.run] if args.run else [])
        if words:
            raise NotThere(f"there is no run {args.run!r}")
        found = run_timeline.of_run(run, f"run {run}", prompt=args.cell, whole=args.all)
        if args.svg:
            Path(args.svg).write_text(found.svg, "utf-8")
        if args.perfetto:
            found.write_perfetto(args.perfetto)
            print(f"wrote {Path(args.perfetto).expanduser()}; {HOW_TO_OPEN}")
        if args.svg or args.perfetto:
            return 0
    except (NotThere, NoRecords, TfmagicError, OSError) as error:
        sys.stderr.write(f"{program_name()} timeline: {error}\n")
        return 1
    else:
        columns = shutil.get_terminal_size((86, 24)).columns - _NAMES
        print(timeline_text.draw(found.timeline, min(max(columns, _NARROWEST), _WIDEST)))
    return 0
