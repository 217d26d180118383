"""How a notebook runs a cell with ``--compare``: in a new cluster of each variant."""

import re
from collections.abc import Generator, Mapping
from typing import Any

from IPython.core.error import UsageError
from IPython.display import display

from tfmagic.clusters.cells import features
from tfmagic.clusters.cells.job import Job
from tfmagic.errors import ClusterSpecError
from tfmagic.features.comparison.axes import Axis, name_of, variants_of
from tfmagic.features.comparison.measured import Comparison
from tfmagic.frontends.notebook.magic import NotebookClusters, PreparedCell
from tfmagic.frontends.notebook.options import CellLine
from tfmagic.frontends.notebook.starting import Starting


def takes(line: CellLine) -> bool:
    """Check whether the line asks for it."""
    return bool(_axes(line))


def refuse(line: CellLine) -> str:
    """Return why a line cannot have the axes that it has; "" if it can."""
    axes = [axis for axis, _ in _axes(line)]
    if line.detach:
        return "--detach goes on in a cluster that stays: leave --compare out"
    if line.fresh or any(axis in line.shape.values for axis in axes):
        options = ", ".join(f"--{axis}" for axis in axes)
        return f"--compare brings its own {', '.join(axes)}; leave {options} and --fresh out"
    if len(axes) != len(set(axes)):
        return "--compare names each of workers, hosts and network once"
    return ""


def run(magics: NotebookClusters, line: CellLine, cell: PreparedCell) -> Generator[Job | Starting, Any, None]:
    """Run the cell in all variants, and show and bind what was measured."""
    comparison = Comparison()
    for variant in variants_of(_axes(line)):
        shape = line.shape.changed(**variant)
        name = re.sub(r"[^\w.+-]", "-", f"compare-{'-'.join(map(str, variant.values()))}")
        try:
            cluster = magics.new_cluster(name, shape)
        except ClusterSpecError as error:
            comparison.left_out.append(f"{name_of(variant)} was left out: {error}")
            continue
        try:
            shown = yield from magics.start_for(cell[0], cluster, shape, goes_on=False)
            before = cluster.bytes_sent()  # on simulated hosts it is the network that is compared
            plan = magics.plan(line, cell, shown, **(features.compared() if before else {}))
            job = cluster.begin_cell(plan)
            results, sent = (yield job).results, _added(cluster.bytes_sent(), before)
            comparison.add(variant, results, sent, job.outcome.outcomes.values() if job.outcome else ())
        finally:
            cluster.stop()
    if not comparison:
        raise UsageError("; ".join(comparison.left_out))
    display(comparison)
    if line.how.out:
        magics.shell.user_ns[line.how.out] = comparison


def _axes(line: CellLine) -> list[Axis]:
    found: list[Axis] = line.how.chosen.get("compare", [])
    return found


def _added(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int] | None:
    """Return by how much counters have grown; None without counters."""
    return {name: count - before[name] for name, count in now.items()} or None
