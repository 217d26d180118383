"""What of this environment will get in the way, each finding with the line that mends it.

    %tfcluster doctor [shape] ── Case ──→ examine ──→ every finding, in the order in which one meets them
    start, first cell ────────── Case ──→ troubles ──→ only what will fail or hang, two lines each

A check is a function from the `Case` to findings; a new one is a line in a table below. Checks look: they
start nothing, import nothing of TensorFlow's or Keras', and reach no network but this machine's own.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tfmagic.frontends.doctor import folder, machine, network, settings, software
from tfmagic.frontends.doctor.findings import Case, Finding, Severity, case_of

if TYPE_CHECKING:
    from tfmagic.clusters.cluster import Cluster

__all__ = ["Case", "Finding", "Severity", "case_of", "examine", "speak_up", "troubles"]

Check = Callable[[Case], Iterator[Finding]]

_CHECKS: tuple[Check, ...] = (
    software.python,
    software.processor,
    software.tensorflow,
    software.keras,
    software.hidden_modules,
    software.front_end,
    machine.memory_room,
    machine.cores,
    machine.gpus,
    machine.open_files,
    machine.threads,
    machine.address_space,
    network.loopback,
    network.proxy,
    folder.state_folder,
    folder.leftovers,
    settings.timeouts,
    settings.tf_config,
)
_ONLY_WHEN_ASKED: frozenset[Check] = frozenset(  # never in the way of a start, or told by it
    (machine.memory_room, machine.cores, machine.gpus, folder.leftovers, settings.tf_config)
)


def examine(case: Case) -> list[Finding]:
    """Everything, in the order in which one meets it."""
    return [finding for check in _CHECKS for finding in _look(check, case)]


def troubles(case: Case) -> list[Finding]:
    """What will fail or hang after a start that does not notice it. Takes some milliseconds."""
    checks = (check for check in _CHECKS if check not in _ONLY_WHEN_ASKED)
    found = (finding for check in checks for finding in _look(check, case))
    return [f for f in found if f.severity is Severity.TROUBLE and not f.told_by_start]


def speak_up(shell: Any, cluster: Cluster) -> None:
    """Say on stderr what will go wrong with a cluster that is about to be started; else nothing."""
    with contextlib.suppress(Exception):  # whatever it is: nothing of this is worth a start
        for finding in troubles(case_of(shell, cluster)):
            print(f"tfmagic: {finding.what}\n    {finding.advice}", file=sys.stderr)


def _look(check: Check, case: Case) -> Iterator[Finding]:
    """The findings of one check. One that fails on a strange machine costs its findings, and no more."""
    try:
        yield from check(case)
    except Exception as error:  # whatever it is, the other checks have their say
        name = check.__name__.replace("_", " ")
        yield Finding(f"{name}: could not be looked at ({error!r})", severity=Severity.NOTE)
