"""A finding of the doctor, and the `Case` that the checks get."""

import enum
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfmagic.clusters.cells.features import Startable
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.protocol.cluster_spec import Shape
from tfmagic.runs.schemas import FindingReport


class Severity(enum.Enum):
    """How much a finding matters; the value is the mark in front of it."""

    FINE = "✓"
    NOTE = "!"  # works, but perhaps not as expected
    TROUBLE = "✕"  # will fail or hang, later and elsewhere


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    what: str  #: what was checked, and its state
    advice: str = ""  #: the problem and the line that fixes it; "" without a problem
    severity: Severity = Severity.FINE
    refused_by_start: bool = False  #: a start refuses it with the same message

    def __str__(self) -> str:
        head = f"{self.severity.value} {self.what}"
        return f"{head}\n    {self.advice}" if self.advice else head

    @property
    def for_programs(self) -> FindingReport:
        """The finding, for programs."""
        return FindingReport(severity=self.severity.name.lower(), what=self.what, advice=self.advice)


note = functools.partial(Finding, severity=Severity.NOTE)
trouble = functools.partial(Finding, severity=Severity.TROUBLE)
refused = functools.partial(trouble, refused_by_start=True)  # by the start, as well


def parts_finding(what: str, count: int, left_out: list[str]) -> Finding:
    """Return how many private parts there are, and what is left out."""
    if left_out:
        return note(f"{what}: {len(left_out)} of {count} are not as expected", "\n    ".join(left_out))
    return Finding(f"{what}: all {count} are as expected")


@dataclass(frozen=True, slots=True)
class Case:
    """The cluster that the checks are about: one to be started here, or one that runs."""

    shell: Any  #: the IPython shell
    shape: Shape
    task_settings: TaskSettings
    setting: Callable[[str], Any]  #: returns a setting of `TFCluster` by name
    running: bool = False  #: it has what it needs: memory, ports, files and threads

    @property
    def environ(self) -> dict[str, str]:
        """The environment that the tasks start from."""
        return {**os.environ, **self.task_settings.env}


def case_of(shell: Any, cluster: Startable) -> Case:
    """Return the case of a cluster, started or not."""
    return Case(shell, cluster.shape, cluster.task_settings, cluster.setting, cluster.running)
