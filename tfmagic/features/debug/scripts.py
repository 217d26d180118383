"""The option ``--debug`` of ``tfmagic run``: a task waits for an editor before its script begins."""

import argparse
from collections.abc import Mapping
from typing import Any

from tfmagic.errors import ClusterSpecError
from tfmagic.protocol.cluster_spec import TaskId, select

Call = tuple[Any, tuple[Any, ...], Mapping[str, Any]]


def add_options(group: Any) -> None:
    """Add the option to a group of a parser."""
    about = "wait in this task until an editor has attached, before the script begins"
    group.add_argument("--debug", metavar="TASK", help=about)


def change_calls(args: argparse.Namespace, calls: Mapping[TaskId, Call]) -> Mapping[TaskId, Call]:
    """Return the calls of all tasks, in one of which the call waits first.

    Raises:
        ClusterSpecError: There is no such task, or the name means several; or what it prints would be hidden.
    """
    if args.debug is None:
        return calls
    chosen = select(args.debug, tuple(calls))
    if len(chosen) != 1:
        raise ClusterSpecError(f"--debug takes one task; {args.debug!r} means {len(chosen)}")
    if args.quiet:
        raise ClusterSpecError("--quiet hides where the task of --debug listens: leave one of them out")
    from tfmagic.features.debug.editor import run_debugged
    from tfmagic.features.debug.records import loopback

    (task,) = chosen
    return {**calls, task: (run_debugged, (loopback(), *calls[task][:2]), calls[task][2])}
