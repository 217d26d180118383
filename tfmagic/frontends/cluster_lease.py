"""The cluster of one test, and the sections of a failed test's report. Called by `tfmagic.pytest_plugin`.

    marker, parameter ── read_request ──→ ClusterRequest ── new_cluster ──→ Cluster
    ClusterLease.begin ──→ the test ──→ end: the cluster is stopped, or kept for the next test that shares it

    describe_tasks: what each task wrote during the test, and how it died

All of it runs on pytest's thread. A shared cluster is kept only if the test has passed
and left nothing running, and the tasks could be cleaned up (`tfmagic.task.cleanup_after_tests`).
Otherwise it is stopped, and the next test starts it again in a tenth of a second.
"""

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfmagic.clusters.cluster import Cluster
from tfmagic.errors import TfmagicError
from tfmagic.failures.deaths import describe_end
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import file_size
from tfmagic.runs.log_reader import prefix, tail_lines
from tfmagic.runs.tensorflow_noise import is_noise
from tfmagic.supervisor.state import Phase
from tfmagic.system.memory import format_bytes
from tfmagic.task import cleanup_after_tests

_POSITIONAL = ("workers", "ps", "chief", "evaluator")  # parameters of Cluster
SCOPES = ("function", "class", "module", "session")
_INTERRUPT_S = 6.0  # an interrupt ends a cell, or its process, within two seconds; a busy machine needs more
_CLEANUP_S = 20.0  # usually milliseconds; the first call after a big graph was made collects that graph
_POLL_S = 0.02
_LINES = 100  # of each task, in a report
_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """The cluster that a test asks for: arguments of `Cluster`, and the scope in which tests share it."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    scope: str = "function"

    def new_cluster(self, test: str = "", timeout_s: float = 0.0) -> Cluster:
        """Return a cluster that is not started, named after `test`, the id of a test, class or module."""
        name = re.sub(r"[^\w-]+", "-", test.rpartition("/")[2]).strip("-")[:60]
        return Cluster(**{"name": name or self.scope, "timeout_s": timeout_s, **self.arguments})

    @property
    def key(self) -> str:
        """Equal for requests that one cluster can serve."""
        return repr(sorted(self.arguments.items()))


def read_request(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any], param: object = None
) -> ClusterRequest:
    """Return the request of a marker's arguments. Raise `TypeError` or `ValueError` if they make no sense.

    The parameter of the fixture overrides the marker: a number of workers, or a mapping.
    """
    if len(arguments) > len(_POSITIONAL):
        raise TypeError(f"only {', '.join(_POSITIONAL)} can be given by place; name the others")
    placed = dict(zip(_POSITIONAL, arguments, strict=False))
    if twice := sorted(placed.keys() & keywords.keys()):
        raise TypeError(f"{', '.join(twice)} is given twice")
    wanted = {**placed, **keywords}
    if isinstance(param, Mapping):
        wanted.update(param)
    elif isinstance(param, int):
        wanted["workers"] = param
    elif param is not None:
        raise TypeError(f"a parameter is a number of workers, or a dict of arguments, not {param!r}")
    if type(each := wanted.pop("each", False)) is not bool:  # it is for a feature
        raise ValueError(f"each is True or False, not {each!r}")
    scope = wanted.pop("scope", "function")
    if scope not in SCOPES:
        raise ValueError(f"scope is one of {', '.join(SCOPES)}, not {scope!r}")
    request = ClusterRequest(wanted, scope)
    request.new_cluster()
    return request


class ClusterLease:
    """A cluster for the time of one test.

    Attributes:
        log_starts: The length of each task's log when the test began, in bytes.
        failed: Set when the test has failed: the cluster is not reused, and its logs stay.
    """

    def __init__(self, cluster: Cluster, shared: bool):
        self.cluster, self.shared, self.failed = cluster, shared, False
        self.log_starts: dict[Path, int] = {}
        self._threads: set[threading.Thread] = set()

    def begin(self) -> Cluster:
        """Return the cluster, running."""
        cluster, self._threads = self.cluster, set(threading.enumerate())
        if cluster.running:
            logs = [cluster.run_folder.log_path(task) for task in cluster.tasks]
            self.log_starts = {path: file_size(path) for path in logs}
            return cluster
        cluster.start()
        if self.shared:
            cluster.run(cleanup_after_tests.remember, on="all", view="quiet")
        return cluster

    def end(self) -> None:
        """Interrupt the calls that the test has left running, and stop the cluster, or keep it for others."""
        was_busy = self._interrupt()
        if self.shared and not (self.failed or was_busy) and self._is_clean():
            return
        self.cluster.stop()
        for thread in set(threading.enumerate()) - self._threads:
            if thread.name == "tfmagic-call":  # of `Cluster.submit`: it still has to settle its future
                thread.join(_INTERRUPT_S)
        if not (self.failed or self.shared):
            with contextlib.suppress(TfmagicError):  # never started
                shutil.rmtree(self.cluster.run_folder.folder, ignore_errors=True)  # many slow every start

    def _interrupt(self) -> bool:
        """Interrupt what the test has left running, wait for its end, and return whether there was any."""
        was_busy = self.cluster.busy
        if was_busy:
            self.cluster.interrupt()
        deadline = time.monotonic() + _INTERRUPT_S
        while self.cluster.busy and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return was_busy

    def _is_clean(self) -> bool:
        """Undo in the tasks what the test has changed there, and return whether another test can use them.

        A process that was started since `begin`, or that is dead or stopped, is not clean: it has nothing to
        go back to, or does not answer.
        """
        cluster = self.cluster
        if not cluster.running or cluster.is_disturbed:
            return False
        try:
            reasons = cluster.run(cleanup_after_tests.tidy, on="all", view="quiet", timeout=_CLEANUP_S)
        except Exception:  # whatever the test has done to a task: its process is not used again
            return False
        cluster.forget_variables()
        return not any(reasons.values())


def describe_tasks(lease: ClusterLease, with_output: bool) -> list[tuple[str, str]]:
    """Return a title and a text for each task that wrote something or died.

    Args:
        with_output: False where the output was shown while the test ran: only deaths are described then.
    """
    state = lease.cluster.state
    if state is None:
        return []
    described = []
    for task in lease.cluster.tasks:
        path = lease.cluster.run_folder.log_path(task)
        lines = _tail(path, lease.log_starts.get(path, 0)) if with_output else []
        seen = state.tasks[task]
        if seen.attempt > 1:
            lines.append(f"(new processes that {task} got since the start: {seen.attempt - 1})")
        if seen.phase is Phase.DEAD and seen.end is not None:
            lines.append(f"({task} {describe_end(seen.end)})")
        if lines:
            lines.append(f"(the whole log: {path})")
            described.append((f"Captured output of {task}", "\n".join(lines) + "\n"))
    return described


def _tail(path: Path, start: int) -> list[str]:
    size = file_size(path) - start
    if size <= 0:
        return []
    lines = tail_lines(path, _LINES + 1, _BYTES, start)
    last = lines[-_LINES:]
    shown = [line for line in last if not is_noise(line)]
    notes = []
    if len(lines) > _LINES or size > _BYTES:
        left_out = size - sum(len(line.encode()) + 1 for line in last)
        notes.append(f"(about {format_bytes(max(left_out, 0))} before these lines are left out)")
    if len(shown) < len(last):
        notes.append(f"(start-up lines of TensorFlow that are left out: {len(last) - len(shown)})")
    return [*notes, *shown]


def without_lines_of(
    tasks: Iterable[TaskId], sections: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield sections of a report without the prefixed lines that a call printed for these tasks."""
    heads = tuple(prefix(task).rstrip() for task in tasks)
    for title, text in sections:
        if title.startswith("Captured stdout"):
            text = "".join(line for line in text.splitlines(True) if not line.startswith(heads))
        if text:
            yield title, text
