"""What line commands print: what was done, to which tasks, how many bytes, and the line that undoes it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tfmagic.failures.deaths import describe_end
from tfmagic.frontends.notebook.options import DEFAULT_NAME
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.payload import Packed
from tfmagic.runs.cell_records import CellRecord, read_records
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.kernels import host_elsewhere
from tfmagic.system.memory import format_bytes
from tfmagic.views.words import duration

if TYPE_CHECKING:
    from tfmagic.clusters.cells.job import Job
    from tfmagic.clusters.cluster import Cluster

_DEADLY = {signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL}
RUNS_HEADER = ("notebook", "run", "cluster", "shape", "cell", "started", "state", "duration")


def naming(cluster: str) -> str:
    """Return the option by which a line names this cluster."""
    return f" --cluster {cluster}" if cluster != DEFAULT_NAME else ""


def idle_reason(cluster: Cluster) -> str:
    """Return why a cluster ended by itself, as the end of a sentence; "" if it did not."""
    limit_s = cluster.idle_stop_s
    return f", since no cell ran for {limit_s:g} s (TFCluster.idle_stop_s)" if limit_s else ""


def report(cluster_name: str, text: str) -> None:
    """Print a sentence about a cluster."""
    print(f"tfmagic: cluster {cluster_name}: {text}")


def names_of(tasks: Iterable[TaskId]) -> str:
    return ", ".join(task.name for task in tasks)


def size_of(packs: Iterable[Packed]) -> int:
    return sum(packed.size_bytes for packed in packs)


def sizes_text(sizes: Sequence[int]) -> str:
    """Return the bytes of each task where they are equal, and of all tasks."""
    each = f"{format_bytes(sizes[0])} each, " if len(sizes) > 1 and len(set(sizes)) == 1 else ""
    return f"{each}{format_bytes(sum(sizes))} in all"


def kept(cluster: Cluster, kernel: str) -> str:
    """Return how long a cluster goes on without a kernel, and how to attach to it."""
    run, kept_for = cluster.run_folder, duration(cluster.task_settings.keep_s)
    kept_for = kept_for.removesuffix(" 0 s").removesuffix(" 0 min")
    return (
        f"tfmagic: cluster {cluster.name} goes on for {kept_for} after {kernel} has ended, "
        f"as run {run}:  %tfcluster attach {run}  takes it over,  %tfcluster stop  ends it"
    )


def attachment(cluster: Cluster) -> str:
    """Describe a cluster that has outlived its kernel."""
    state = cluster.state
    assert state is not None
    lines = [f"tfmagic: attached to cluster {cluster.name}, {cluster.shape}, of run {cluster.run_folder}"]
    for job in cluster.resumed:
        lines.append(f"  cell [{job.command.prompt}] on {names_of(job.tasks)}:  %tfcluster wait")
    for task, seen in state.tasks.items():
        if seen.death:
            lines.append(f"  {task} {describe_end(seen.death)}:  %tfcluster revive")
    for prompt in cluster.unsent:
        lines.append(f"  cell [{prompt}] waited for its turn and was never sent: run it again")
    return "\n".join([*lines, kept(cluster, "this kernel, too,")])


def interruption(cluster: Cluster, chosen: Sequence[TaskId], detached: Iterable[Job]) -> str:
    """Describe the effect of an interrupt of these tasks on the cells that run now.

    Args:
        detached: The jobs in the background, of which the supervisor can have seen nothing yet.
    """
    cells = {job.number: (job.tasks, job.options.keep_going) for job in detached}
    if cluster.state is not None:
        cells |= {n: (cell.waiting_for, cell.request.keep_going) for n, cell in cluster.state.cells.items()}
    hit = [cell for cell in cells.values() if not set(chosen).isdisjoint(cell[0])]
    if not hit:
        return "no cell runs there; nothing to interrupt"
    text = f"interrupted {names_of(task for task in chosen if any(task in tasks for tasks, _ in hit))}"
    later = f"is interrupted {cluster.setting('failure_grace_s'):g} s later"
    sentences = [
        f"; the cell on {names_of(others)} {'goes on (--keep-going)' if keeps_going else later}"
        for tasks, keeps_going in hit
        if (others := [task for task in tasks if task not in chosen])
    ]
    return text + "".join(dict.fromkeys(sentences))  # those that are queued say the same


def asked_to_end(cluster: Cluster) -> list[TaskId]:
    """Return the tasks that caught a signal which ends others, and run on."""
    state = cluster.state
    tasks = state.tasks.items() if state is not None else ()
    return [task for task, seen in tasks if seen.pid and not _DEADLY.isdisjoint(seen.signals)]


def links(cluster: Cluster) -> str:
    """Return the link of each host; equal links once."""
    places = cluster.simulated_hosts()
    by_link: dict[str, list[str]] = {}
    for host, link in places.links.items():
        by_link.setdefault("no limit" if str(link) == "off" else str(link), []).append(host)
    return "; ".join(f"{', '.join(hosts)}: {link}" for link, hosts in by_link.items())


def rows_of_runs(runs: Iterable[RunFolder]) -> list[tuple[str, ...]]:
    """Return a row for each cell. The runs of a notebook stand together; the newest run is the last one.

    A notebook and a run are named in their first row only.
    """
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        groups[run.notebook] = [*groups.pop(run.notebook, []), run]
    rows: list[tuple[str, ...]] = []
    for notebook, group in groups.items():
        name = notebook
        for run in group:
            head, host = (name, str(run), run.cluster), host_elsewhere(run)
            records: list[CellRecord | None] = [*read_records(run)]
            for record in records or [None]:
                rows.append((*head, *_facts_of(record, f"on {host}" if host else "runs")))
                head = ("", "", "")
            name = ""
    return rows


def _facts_of(record: CellRecord | None, open_state: str) -> tuple[str, ...]:
    if record is None:
        return "", "", "", "no cell", ""
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started))
    state = record.verdict or open_state
    return record.shape, f"[{record.prompt}]", started, state, duration(record.elapsed_s)
