"""A row of facts about each task, for people and programs."""

from __future__ import annotations

import time
from typing import Any

import psutil

from tfmagic.spec import TaskId
from tfmagic.states import TaskState


def status_row(task: TaskId, seen: TaskState, address: str) -> dict[str, Any]:
    """task, state, pid, host, uptime_s, cpu_percent (since its start), memory_bytes (its own), address."""
    row: dict[str, Any] = {
        "task": task.name,
        "state": seen.phase.value,
        "pid": seen.pid or None,
        "host": seen.host,
        "uptime_s": None,
        "cpu_percent": None,
        "memory_bytes": None,
        "address": address,
        "restarts": seen.restarts,
    }
    if not seen.pid:
        return row
    try:
        process = psutil.Process(seen.pid)
        uptime = max(time.time() - process.create_time(), 1e-3)
        times = process.cpu_times()
        row["uptime_s"] = round(uptime, 1)
        row["cpu_percent"] = round(100 * (times.user + times.system) / uptime, 1)
        row["memory_bytes"] = process.memory_full_info().uss
    except psutil.Error:
        pass  # it ended while we looked: the next look says so
    return row
