"""``tfmagic logs``: print the tasks' output from disk."""

import argparse
import contextlib
import functools
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfmagic.errors import ClusterSpecError
from tfmagic.protocol.cluster_spec import TASK_TYPES, TaskId, select
from tfmagic.runs import folder, kernels
from tfmagic.runs.folder import RunFolder, file_size
from tfmagic.runs.log_reader import PREFIX_COLUMNS, LogReader, log_lines
from tfmagic.runs.schemas import as_json, log_report, log_text
from tfmagic.runs.status_reader import read_snapshot, state_of
from tfmagic.system.advice import program_name
from tfmagic.system.memory import format_bytes

_POLL_S = 0.1
_PIECE_BYTES = 1 << 18
_SELECTOR = re.compile(rf"(all|({'|'.join(TASK_TYPES)})(-[\d:]+)?)(,|$)")


class NotThere(Exception):
    """There is no such run or task. The argument is the message."""


def main(args: argparse.Namespace) -> int:
    """Print logs, paths, or the list of runs. Return 1 if there is no such run or task."""
    base = folder.state_dir()
    if args.list:
        _list(base)
        return 0
    try:
        run, words = find_run(base, args.words)
        if args.json or args.since is not None or args.max_bytes is not None:
            _pieces(args, run, choose(run, words))
        elif args.path:
            print(*(run.log_path(task) for task in choose(run, words)), sep="\n")
        elif args.follow:
            _follow(run, words, args.tail, args.grep)
        else:
            chosen = functools.partial(filter, args.grep.search) if args.grep else None
            for task in choose(run, words):
                sys.stdout.writelines(log_lines(run.log_path(task), task, args.tail, chosen))
    except (NotThere, ClusterSpecError) as error:
        sys.stderr.write(f"{program_name()} logs: {error}\n")
        return 1
    return 0


def find_run(base: Path, words: Sequence[str]) -> tuple[RunFolder, list[str]]:
    """Return the run that the first word names, and the words that name tasks.

    Without a name it is the newest run of the present folder, or of all if there is none.
    """
    if words and (Path(words[0]) / "run.json").exists():
        return RunFolder(Path(words[0])), list(words[1:])
    is_named = bool(words) and not _SELECTOR.match(words[0])
    try:
        run = folder.find_run(base, words[0] if is_named else "")
    except LookupError as error:
        raise NotThere(f"{error}; {program_name()} logs --list lists them") from None
    return run if is_named else _of_this_folder(base, run), list(words[is_named:])


def _of_this_folder(base: Path, newest: RunFolder) -> RunFolder:
    """Return the newest run of the present folder, and say so if another one is newer; else `newest`."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was deleted
        return newest
    run = next((run for run in reversed(folder.find_runs(base)) if run.is_of(here)), newest)
    if str(run) != str(newest):
        print(f"{program_name()}: {run} is the newest run of this folder, {newest} of all", file=sys.stderr)
    return run


def choose(run: RunFolder, words: Sequence[str]) -> tuple[TaskId, ...]:
    """Return the tasks of the run that the words name."""
    tasks = run.tasks
    if not tasks:
        raise NotThere(f"run {run} has no log of a task")
    return select(",".join(words or ("all",)), tasks)


def _list(base: Path) -> None:
    """Print a line for each run, the newest last, next to the prompt."""
    for run in folder.find_runs(base):
        snapshot = read_snapshot(run.folder)
        if snapshot is not None:
            size = sum(file_size(run.log_path(task)) for task in run.tasks)
            shape = snapshot.shape or "of unknown shape"
            print(f"{run}  {state_of(snapshot)}, {shape}, {format_bytes(size)} of logs")


def _pieces(args: argparse.Namespace, run: RunFolder, tasks: Sequence[TaskId]) -> None:
    """Print a piece of each log, and how to go on after it."""
    if args.follow or args.path or args.grep or args.tail is not None:
        args.parser.error("--json, --since and --max-bytes go with none of --tail, --grep, --follow, --path")
    pieces = [log_report(run, task, args.since or 0, args.max_bytes) for task in tasks]
    if args.json:
        print(as_json(pieces))
    else:
        sys.stdout.writelines(log_text(piece, f"{program_name()} logs {run}") for piece in pieces)


def _follow(run: RunFolder, words: Sequence[str], tail: int | None, pattern: re.Pattern[str] | None) -> None:
    """Print the logs, also of tasks that start later, until the run ends."""
    readers: dict[TaskId, LogReader] = {}
    with contextlib.ExitStack() as stack:
        while True:
            seen = read_snapshot(run.folder)  # first, so that everything written before the end is read below
            for task in choose(run, words):
                last = None if task in readers else tail
                if task not in readers:
                    readers[task] = LogReader(run.log_path(task), task)
                    stack.callback(readers[task].log.close)
                lines = new_lines(readers[task], pattern)
                sys.stdout.writelines(lines if last is None else deque(lines, maxlen=last))
            if seen is None or not (seen.live or (not seen.written and kernels.kernel_lives(run))):
                break
            sys.stdout.flush()
            time.sleep(_POLL_S)
        for reader in readers.values():
            sys.stdout.writelines(matching(reader.take_partial(), pattern))


def new_lines(reader: LogReader, pattern: re.Pattern[str] | None) -> Iterator[str]:
    """Yield the whole lines since the last call that match."""
    offset = -1
    while reader.log.offset != offset:
        offset = reader.log.offset
        yield from matching(reader.read_lines(_PIECE_BYTES), pattern)


def matching(text: str, pattern: re.Pattern[str] | None) -> Iterator[str]:
    """Yield the lines, with their ends, whose text after the prefix matches."""
    for line in text.split("\n")[:-1]:
        if pattern is None or pattern.search(line[PREFIX_COLUMNS + 1 :]):
            yield line + "\n"
