"""The sub-commands of ``%tfcluster``: each a few calls of `Cluster` and a print."""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.display import display

from tfmagic.capture import format_bytes
from tfmagic.options import LineOptions
from tfmagic.results import table_bundle
from tfmagic.spec import TaskId, select
from tfmagic.tasklog import prefix, settle_line

if TYPE_CHECKING:
    from tfmagic.magic import TFClusterMagics


def run_line(magics: TFClusterMagics, options: LineOptions) -> None:
    """Carry out a parsed ``%tfcluster`` line."""
    __tracebackhide__ = True
    match options.command:
        case "start":
            _start(magics, options)
        case "stop":
            _stop(magics, options)
        case "restart":
            _restart(magics, options)
        case "status":
            _status(magics, options)
        case "logs":
            _logs(magics, options)
        case "errors":
            _errors(magics, options)
        case "interrupt":
            magics.running(options.cluster).interrupt(*options.words)
        case "debug":
            magics.running(options.cluster).debug(options.words[0])
        case "push":
            _push(magics, options)
        case "pull":
            pulled = magics.running(options.cluster).pull(*options.words, on=options.on)
            magics.shell.user_ns.update(pulled)


def _start(magics: TFClusterMagics, options: LineOptions) -> None:
    __tracebackhide__ = True
    name = options.cluster
    cluster = magics.clusters.get(name)
    if cluster is not None and cluster.running:
        magics.refuse_other_shape(name, options.shape)
    else:
        cluster = magics.new_cluster(name, options.shape)
        magics.start_shown(cluster)
        magics.clusters[name], magics.shapes[name] = cluster, magics.full_shape(cluster, options.shape)
    print(f"tfmagic: cluster {name} runs: {', '.join(t.name for t in cluster.tasks)}")


def _stop(magics: TFClusterMagics, options: LineOptions) -> None:
    chosen = list(magics.clusters) if options.all else [options.cluster]
    for name in chosen:
        cluster = magics.known(name)
        was_running = cluster.running
        cluster.stop()
        print(f"tfmagic: cluster {name} {'stopped' if was_running else 'was not running'}")


def _restart(magics: TFClusterMagics, options: LineOptions) -> None:
    __tracebackhide__ = True
    name = options.cluster
    cluster = magics.known(name)
    if options.shape.given and options.words:
        raise UsageError("restart takes a new shape or names of tasks, not both")
    if options.shape.given:
        new = magics.new_cluster(name, options.shape)
        cluster.stop()
        magics.start_shown(new)
        magics.clusters[name], magics.shapes[name] = new, magics.full_shape(new, options.shape)
        cluster, words = new, new.tasks
    else:
        words = select(",".join(options.words), cluster.tasks) if options.words else cluster.tasks
        cluster.restart(*options.words)
    print(f"tfmagic: cluster {name}: new processes for {', '.join(t.name for t in words)}")


def _status(magics: TFClusterMagics, options: LineOptions) -> None:
    rows = magics.running(options.cluster).status()
    if options.json:
        print(json.dumps(rows))
        return
    header = ("task", "state", "pid", "host", "uptime", "CPU %", "memory", "address")
    table = [
        (
            row["task"],
            row["state"],
            str(row["pid"] or "-"),
            row["host"] or "-",
            "-" if row["uptime_s"] is None else f"{row['uptime_s']:.0f} s",
            "-" if row["cpu_percent"] is None else f"{row['cpu_percent']:.0f}",
            "-" if row["memory_bytes"] is None else format_bytes(row["memory_bytes"]),
            row["address"],
        )
        for row in rows
    ]
    display(table_bundle(header, table), raw=True)


def _logs(magics: TFClusterMagics, options: LineOptions) -> None:
    cluster = magics.known(options.cluster)
    chosen = select(",".join(options.words or ("all",)), cluster.tasks)
    try:
        pattern = re.compile(options.grep) if options.grep else None
    except re.error as error:
        raise UsageError(f"--grep {options.grep!r} is not a regular expression: {error}") from None
    for task in chosen:
        path = cluster.run_folder.log_path(task)
        if options.path:
            print(path)
            continue
        _print_log(task, path, options.tail, pattern)


def _errors(magics: TFClusterMagics, options: LineOptions) -> None:
    texts = magics.known(options.cluster).errors(*options.words)
    if not texts:
        print("tfmagic: no task failed in the last cell")
    for name, text in texts.items():
        print(f"---- {name} ----\n{text}\n")


def _push(magics: TFClusterMagics, options: LineOptions) -> None:
    __tracebackhide__ = True
    cluster = magics.running(options.cluster)
    missing = [name for name in options.words if name not in magics.shell.user_ns]
    if missing:
        raise UsageError(f"the notebook has no variable {', '.join(missing)}; assign it first")
    values = {name: magics.shell.user_ns[name] for name in options.words}
    cluster.push(values, on=options.on or "all")


def _print_log(task: TaskId, path: Path, tail: int | None, pattern: re.Pattern[str] | None) -> None:
    """Print a log line by line, in constant memory."""
    head = prefix(task)
    try:
        file = path.open(encoding="utf-8", errors="replace", newline="\n")
    except FileNotFoundError:
        return
    with file:
        lines: Iterable[str] = (settle_line(line.rstrip("\n")) for line in file)
        lines = (line for line in lines if pattern is None or pattern.search(line))
        for line in lines if tail is None else deque(lines, maxlen=tail):
            sys.stdout.write(f"{head}{line}\n")
