"""Tools for agents, which read the run folders: so they answer while a kernel is busy.

The package jupyter-server-mcp finds `TOOLS` by the entry point group ``jupyter_server_mcp.tools``, and offers
them to agents. They need nothing of that package. They change nothing; `tfmagic_stacks` asks the processes of
tasks for their stacks, as ``%tfcluster stacks`` does.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from tfmagic.runs import line_search, schemas
from tfmagic.runs.cell_records import read_records
from tfmagic.runs.folder import RunFolder, find_run, state_dir
from tfmagic.runs.stack_files import ask_for_stacks, group_stacks
from tfmagic.runs.status_reader import newest_runs, read_snapshot
from tfmagic.server import configured_state_dir

_NAMES = ("tfmagic_status", "tfmagic_logs", "tfmagic_errors", "tfmagic_stacks")
TOOLS = [f"{__name__}:{name}" for name in _NAMES]
_MOST_RUNS = 50
_TEXT_BYTES = 4000
_MOST_BYTES = 1 << 20  # of an answer


async def tfmagic_status(run: str = "") -> dict[str, Any]:
    """Show the TensorFlow clusters of this user's notebooks: the state of each task, and how far the cell is.

    Works while the kernel is busy. For a cell that runs: the line that each task executes, the last line that
    it wrote, and the last step and value of what it tracks, such as the loss.

    Args:
        run: The name of a run or of a cluster; by default all clusters that run.
    """
    return await asyncio.to_thread(_status, run)


async def tfmagic_logs(
    task: str = "", run: str = "", since: int = 0, max_bytes: int = _TEXT_BYTES, grep: str = ""
) -> list[dict[str, Any]]:
    """Read what tasks of a TensorFlow cluster have printed, in pieces. Works while the kernel is busy.

    Args:
        task: A task, such as worker-1; by default all of them.
        run: The name of a run or of a cluster; by default the newest run.
        since: Where to begin, in bytes; -1 is the last piece. Each answer has the `next` one.
        max_bytes: The size of the piece of each task; at most 1 MiB for all of them.
        grep: Only lines of the piece that match this regular expression.
    """
    return await asyncio.to_thread(_logs, task, run, since, max_bytes, grep)


async def tfmagic_errors(run: str = "") -> dict[str, Any]:
    """Show why the last cell of a TensorFlow cluster failed: each task's error, the root cause first.

    Args:
        run: The name of a run or of a cluster; by default the newest run.
    """
    return await asyncio.to_thread(_errors, run)


async def tfmagic_stacks(run: str = "") -> dict[str, Any]:
    """Show where each task of a TensorFlow cluster is now, as Python stacks; equal ones once.

    Works while the kernel is busy, and for tasks that are stuck in native code.

    Args:
        run: The name of a run or of a cluster; by default the newest run.
    """
    return await asyncio.to_thread(_stacks, run)


def _status(name: str) -> dict[str, Any]:
    base = _base()
    folders = [find_run(base, name).folder] if name else newest_runs(base, _MOST_RUNS)
    found = [snapshot for folder in folders if (snapshot := read_snapshot(folder)) is not None]
    shown = [snapshot for snapshot in found if name or snapshot.live or snapshot.kept_until]
    clusters = []
    for snapshot in shown:
        cell = schemas.newest_cell(RunFolder(base / "runs" / snapshot.run))
        report = schemas.cluster_report(snapshot, base)
        clusters.append({**_plain(report), "cell": None if cell is None else _plain(cell)})
    return {"clusters": clusters, "summary": [_summary(cluster) for cluster in clusters]}


def _summary(cluster: dict[str, Any]) -> str:
    cell = cluster["cell"]
    said = "no cell yet" if cell is None else schemas.describe(msgspec.convert(cell, schemas.CellReport))
    return f"cluster {cluster['cluster']} ({cluster['shape']}) {cluster['state']}: {said}"


def _logs(task: str, name: str, since: int, max_bytes: int, grep: str) -> list[dict[str, Any]]:
    run = find_run(_base(), name)
    chosen = [each for each in run.tasks if task in ("", "all", each.name)]
    if not chosen:
        raise LookupError(f"run {run} has no task {task!r}; it has {', '.join(t.name for t in run.tasks)}")
    line_search.check(grep)
    pieces, size = [], max(min(max_bytes, _MOST_BYTES // len(chosen)), 1)
    with line_search.LineSearch(grep) as search:
        for each in chosen:
            start = since if since >= 0 else max(run.log_bytes(each) - size, 0)
            piece = schemas.log_report(run, each, start, size)
            if grep:
                lines = search.matching(piece.text.split("\n")[:-1])
                piece = msgspec.structs.replace(piece, text="".join(f"{line}\n" for line in lines))
            pieces.append(_plain(piece))
    return pieces


def _errors(name: str) -> dict[str, Any]:
    run = find_run(_base(), name)
    record = next(reversed(read_records(run)), None)
    if record is None:
        raise LookupError(f"run {run} has no cell")
    found = schemas.error_reports(record, run)
    texts = {part.task: part.error.text for part in record.tasks if part.error is not None}
    return {
        "run": str(run),
        "cell": record.prompt,
        "state": record.verdict or schemas.RUNS,
        "errors": [_plain(error) for error in found],
        "text": texts[found[0].task][-_TEXT_BYTES:] if found else "",
    }


def _stacks(name: str) -> dict[str, Any]:
    run = find_run(_base(), name)
    stacks = ask_for_stacks(run)
    silent = [task.name for task in run.tasks if task.name not in stacks]
    return {"run": str(run), "stacks": group_stacks(stacks), "not_asked": silent}


def _base() -> Path:
    """Return the state folder, as the server is configured."""
    module = sys.modules.get("jupyter_server.serverapp")
    app = module.ServerApp if module is not None else None
    config = app.instance().config if app is not None and app.initialized() else {}
    return state_dir(configured_state_dir(config))


def _plain(report: schemas.Report) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(report)
    return found
