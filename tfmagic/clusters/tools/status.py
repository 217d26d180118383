"""Facts about each task, as rows: for tables, for programs, and for ``status.json`` in the run folder."""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import psutil

from tfmagic.protocol.cluster_spec import Shape, TaskId
from tfmagic.runs.doing import Doing
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor import stalls
from tfmagic.supervisor.state import Phase
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import features, files
from tfmagic.system.usage import Usage, read_memory

_SCHEMA = 1
_OTHER_VARIABLES = "other environment variables that are read at the import"
_WRITE_S = 2.0  # while a cell runs; the supervisor looks less often otherwise


class StatusWriter:
    """Writes ``status.json`` for readers outside the kernel. Used on the supervisor's thread.

    The file is replaced as a whole. A full disk costs the report, nothing else.
    """

    def __init__(
        self, cluster: str, shape: Shape, run: RunFolder, addresses: Callable[[], Mapping[TaskId, str]]
    ):
        self._cluster, self._shape, self._run = cluster, str(shape), run
        self._addresses = addresses
        self._next_write = 0.0
        self._phases: list[tuple[int, bool]] = []

    def write_if_due(self, supervisor: Supervisor) -> None:
        """Write the file if its time has come, or a task has started or ended."""
        state, now = supervisor.state, time.monotonic()
        phases = [(seen.attempt, seen.phase is Phase.DEAD) for seen in state.tasks.values()]
        phases.append((0, all(seen.pid for seen in state.tasks.values())))  # one write for a whole start
        if now < self._next_write and phases == self._phases and not supervisor.ended:
            return
        self._next_write, self._phases = now + _WRITE_S, phases
        content = {
            "schema": _SCHEMA,
            "written": time.time(),
            "cluster": self._cluster,
            "shape": self._shape,
            "ended": supervisor.ended,
            **{row.pop("process"): row for row in own_rows(supervisor)},
            "tasks": status_rows(supervisor, self._addresses(), self._run, is_live=False),
            "cells": {
                "running": sum(cell.sent for cell in state.cells.values()),
                "queued": sum(not cell.sent for cell in state.cells.values()),
                "ended": supervisor.cells_ended,
            },
        }
        with contextlib.suppress(OSError):
            files.replace_text(self._run.folder / "status.json", json.dumps(content), 0o600)


def status_rows(
    supervisor: Supervisor, addresses: Mapping[TaskId, str], run: RunFolder, is_live: bool = True
) -> list[dict[str, Any]]:
    """Return a row for each task; a value is None where it is not known.

    With `is_live` look at the processes now, which costs some milliseconds each.

    Returns:
        state: A `Phase`.
        cpu_percent: Of one core, since the last look.
        memory_bytes: Unique to the process; shared_bytes has the rest.
        doing: running, waiting, stalled, paused, or the state between cells.
        line: The line of the cell that the task executes.
        not_forked: Why the process imported TensorFlow itself; "" for a fork of the launcher.
    """
    state = supervisor.state
    activities, rows = _activities(supervisor), []
    for task, seen in state.tasks.items():
        usage = supervisor.usage.get(task, Usage()) if seen.pid else Usage()
        uptime_s = usage.uptime_s
        if seen.pid and supervisor.backend.runs_here:
            usage, uptime_s = _measure(seen.pid, usage, is_live)
        doing, line, note = activities.get(task, (seen.phase.value, None, ""))
        doing, note = _injured(task, doing, note, state.slowdowns.get(task, 1), usage.paused)
        rows.append(
            {
                "task": task.name,
                "state": seen.phase.value,
                "pid": seen.pid or None,
                "host": seen.host,
                "cut_off": seen.cut_off,
                "uptime_s": uptime_s,
                "cpu_percent": _round(usage.cpu_percent),
                "cpu_s": usage.cpu_s,
                "memory_bytes": usage.memory_bytes,
                "shared_bytes": usage.shared_bytes,
                "threads": usage.threads,
                "open_files": usage.open_files,
                "restarts": seen.attempt - 1,
                "stalls": seen.stalls,
                "log_bytes": run.log_bytes(task),
                "address": addresses.get(task, ""),
                "doing": doing,
                "line": line,
                "note": note,
                "not_forked": seen.obstacle or (_OTHER_VARIABLES if seen.fresh else ""),
            }
        )
    return rows


def _activities(supervisor: Supervisor) -> dict[TaskId, tuple[str, int | None, str]]:
    """Return the activity of each task that runs a cell, its line, and a note."""
    state, found = supervisor.state, dict[TaskId, tuple[str, int | None, str]]()
    for cell in (cell for cell in state.cells.values() if cell.sent):
        for task, activity in stalls.describe(state, cell, supervisor.policy(), time.monotonic()).items():
            place = cell.place(task)
            found[task] = activity.doing.value, None if place is None else place.line or None, activity.note
    return found


def _injured(task: TaskId, doing: str, note: str, factor: float, is_paused: bool) -> tuple[str, str]:
    """Add to a task's activity and note the faults that were made on purpose."""
    if factor > 1:
        return doing, f"{factor:g} times slower on purpose{'; ' if note else ''}{note}"
    if is_paused and doing != Doing.STALLED:
        advice = features.propose("let go on", "; {} lets it go on", task)
        return Doing.PAUSED.value, f"stopped (SIGSTOP){advice}"
    return doing, note


def own_rows(supervisor: Supervisor) -> list[dict[str, Any]]:
    """Return process, pid, cpu_percent (lately) and memory_bytes (unique) of the kernel and its launcher."""
    uses = [(name, pid, supervisor.usage.get(name, Usage())) for name, pid in supervisor.own_pids().items()]
    return [
        {"process": n, "pid": p, "cpu_percent": _round(u.cpu_percent), "memory_bytes": u.memory_bytes}
        for n, p, u in uses
    ]


def _round(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 1)


def _measure(pid: int, usage: Usage, is_live: bool) -> tuple[Usage, float | None]:
    """Return usage and age of the process. Its CPU share is recent, or else the mean since its start."""
    try:
        process = psutil.Process(pid)
        uptime_s = max(time.time() - process.create_time(), 1e-3)
        if is_live:
            usage = read_memory(process, usage)
        if is_live and usage.cpu_percent is None:
            times = process.cpu_times()
            used = times.user + times.system
            usage = replace(usage, cpu_percent=100 * used / uptime_s, cpu_s=used)
        return usage, round(uptime_s, 1)
    except (psutil.Error, OSError):
        return usage, None  # it has just ended: the next look shows that
