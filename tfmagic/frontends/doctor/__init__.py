"""Check this environment for problems; each finding has the line that fixes it.

    %tfcluster doctor [shape] ── Case ──→ examine ──→ all findings, in the order in which users meet them
    start, first cell ────────── Case ──→ troubles ──→ only what will fail or hang, two lines each

A check is a function from the `Case` to findings; a new one is a line in the table below. A check must start
no process, import neither TensorFlow nor Keras, and use no network but this machine's own. Only those of
`ray_cluster` ask another machine: its head. And `simulated_hosts`, if a shape has some, tries to make them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tfmagic.frontends.doctor import folder, machine, ray_cluster, software
from tfmagic.frontends.doctor.findings import Case, Finding, Severity, case_of

if TYPE_CHECKING:
    from tfmagic.clusters.cluster import Cluster

__all__ = ["Case", "Finding", "Severity", "case_of", "examine", "troubles", "warn_before_start"]

Check = Callable[[Case], Iterator[Finding]]

_CHECKS: tuple[Check, ...] = (
    software.python,
    software.processor,
    software.tensorflow,
    software.keras,
    software.tried_versions,
    software.hidden_modules,
    software.front_end,
    machine.forks,
    machine.memory_room,
    machine.cores,
    machine.gpus,
    machine.open_files,
    machine.threads,
    machine.address_space,
    machine.loopback,
    machine.simulated_hosts,
    machine.proxy,
    folder.state_folder,
    folder.leftovers,
    software.timeouts,
    software.tf_config,
    ray_cluster.ray,
    ray_cluster.tls,
    ray_cluster.tensorflow_ports,
    ray_cluster.host_software,
    ray_cluster.shared_folder,
)
_OF_THIS_MACHINE: frozenset[Check] = frozenset(  # which matter where tasks run here
    (
        machine.forks,
        machine.memory_room,
        machine.cores,
        machine.gpus,
        machine.threads,
        machine.address_space,
        machine.loopback,
        machine.proxy,
    )
)
_OF_RAY: frozenset[Check] = frozenset(
    (
        ray_cluster.ray,
        ray_cluster.tls,
        ray_cluster.tensorflow_ports,
        ray_cluster.host_software,
        ray_cluster.shared_folder,
    )
)
_ONLY_WHEN_ASKED: frozenset[Check] = frozenset(  # none of them prevents a start, or the start reports it
    (
        machine.forks,
        machine.memory_room,
        machine.cores,
        machine.gpus,
        machine.simulated_hosts,
        folder.leftovers,
        software.tried_versions,
        software.tf_config,
        *_OF_RAY,
    )
)


def examine(case: Case) -> list[Finding]:
    """Return all findings."""
    return [finding for check in _CHECKS for finding in _run(check, case)]


def troubles(case: Case) -> list[Finding]:
    """Return what will fail or hang after a start that does not notice it. Takes some milliseconds."""
    checks = (check for check in _CHECKS if check not in _ONLY_WHEN_ASKED)
    found = (finding for check in checks for finding in _run(check, case))
    return [f for f in found if f.severity is Severity.TROUBLE and not f.refused_by_start]


def warn_before_start(shell: Any, cluster: Cluster) -> None:
    """Print on standard error what will fail in a cluster that is about to be started."""
    with contextlib.suppress(Exception):  # no failure of the checks may prevent a start
        for finding in troubles(case_of(shell, cluster)):
            print(f"tfmagic: {finding.what}\n    {finding.advice}", file=sys.stderr)


def _run(check: Check, case: Case) -> Iterator[Finding]:
    """Yield the findings of one check, and a note if it fails: the other checks go on."""
    on_hosts = case.task_settings.hosts is not None
    if check in (_OF_THIS_MACHINE if on_hosts else _OF_RAY):
        return
    try:
        yield from check(case)
    except Exception as error:
        name = check.__name__.replace("_", " ")
        yield Finding(f"{name}: the check failed ({error!r})", severity=Severity.NOTE)
