"""What the kernel and its launcher say to each other; see `tfmagic.task.launcher` for the drawing.

Frozen messages of the same wire as `tfmagic.protocol.events`: commands imperative, facts in the past tense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.payload import Handle


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A new cluster: its own channel to the launcher."""

    channel: Handle


@dataclass(frozen=True, slots=True)
class ForkTask:
    """Start a task process with this control channel and log."""

    task: TaskId
    attempt: int
    channel: Handle
    log: Handle
    environ: Mapping[str, str]
    fresh: bool


@dataclass(frozen=True, slots=True)
class LauncherReady:
    """TensorFlow is imported; tasks start in milliseconds from now on."""

    tensorflow: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LauncherFailed:
    """TensorFlow could not be imported."""

    text: str


@dataclass(frozen=True, slots=True)
class TaskForked:
    """A task process exists; `pidfd` signals and watches it without races."""

    task: TaskId
    attempt: int
    pid: int
    pidfd: Handle
    fresh: bool


@dataclass(frozen=True, slots=True)
class TaskReaped:
    """A task process ended and its children with it."""

    task: TaskId
    attempt: int
    exit_code: int
    peak_bytes: int
