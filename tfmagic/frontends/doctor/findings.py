"""What the doctor says, and what it is asked about."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfmagic.clusters.task_settings import TaskSettings
from tfmagic.protocol.cluster_spec import Shape

if TYPE_CHECKING:
    from tfmagic.clusters.cluster import Cluster


class Severity(enum.Enum):
    """How much a finding matters; the value is the mark in front of it."""

    FINE = "✓"
    NOTE = "!"  # works, and not as one may expect
    TROUBLE = "✕"  # will fail or hang, later and elsewhere


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was looked at.

    Attributes:
        what: What was looked at, and what it is.
        advice: What is wrong with it and the line that mends it; "" where nothing is.
        severity: How much it matters.
        told_by_start: A start refuses it, and says the same.
    """

    what: str
    advice: str = ""
    severity: Severity = Severity.FINE
    told_by_start: bool = False

    def __str__(self) -> str:
        head = f"{self.severity.value} {self.what}"
        return f"{head}\n    {self.advice}" if self.advice else head


def note(what: str, advice: str) -> Finding:
    """Something that works, and not as one may expect."""
    return Finding(what, advice, Severity.NOTE)


def trouble(what: str, advice: str) -> Finding:
    """Something that will fail or hang."""
    return Finding(what, advice, Severity.TROUBLE)


def refused(what: str, advice: str) -> Finding:
    """Trouble that a start finds, too."""
    return Finding(what, advice, Severity.TROUBLE, told_by_start=True)


@dataclass(frozen=True, slots=True)
class Case:
    """What the doctor is asked about: a cluster that is to be started here, or that runs.

    Attributes:
        shell: The IPython shell.
        shape: How many tasks of each type.
        make: What else was asked for.
        setting: A setting of `TFCluster` by name.
        running: It runs already: what it needs is taken.
    """

    shell: Any
    shape: Shape
    make: TaskSettings
    setting: Callable[[str], Any]
    running: bool = False

    @property
    def environ(self) -> dict[str, str]:
        """The environment that the tasks start from."""
        return {**os.environ, **self.make.env}


def case_of(shell: Any, cluster: Cluster) -> Case:
    """The case of a cluster, started or not."""
    return Case(shell, cluster.shape, cluster.make, cluster.setting, cluster.running)
