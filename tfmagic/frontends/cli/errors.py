"""``tfmagic errors``: print the failures of the last cell of a run, also while its kernel is busy."""

import argparse
import sys

from tfmagic.errors import ClusterSpecError
from tfmagic.frontends.cli.logs import NotThere, choose, find_run
from tfmagic.runs import folder
from tfmagic.runs.cell_records import CellRecord, read_records
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.schemas import as_json, error_reports
from tfmagic.system.advice import program_name


def main(args: argparse.Namespace) -> int:
    """Print the failures. Return 1 if there is no such run, task or cell."""
    try:
        run, words = find_run(folder.state_dir(), args.words)
        record, tasks = last_cell(run), {task.name for task in choose(run, words)}
    except (NotThere, ClusterSpecError) as error:
        sys.stderr.write(f"{program_name()} errors: {error}\n")
        return 1
    found = [report for report in error_reports(record, run) if report.task in tasks]
    if args.json:
        print(as_json(found))
        return 0
    texts = {part.task: part.error.text for part in record.tasks if part.error is not None}
    for report in found:
        print(f"---- {report.task} ----\n{texts[report.task]}\n")
    if not found:
        how = f" ({record.verdict})" if record.verdict not in ("", "done", "failed") else ""
        print(f"no task failed by itself in the last cell of run {run}{how}")
    return 0


def last_cell(run: RunFolder) -> CellRecord:
    """Return the record of the last cell of a run."""
    records = read_records(run)
    if not records:
        raise NotThere(f"run {run} has no cell; {program_name()} logs {run}  prints what its tasks wrote")
    return records[-1]
