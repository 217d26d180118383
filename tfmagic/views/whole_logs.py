"""Sends the whole logs of a cell's tasks to its page, while the cell runs and after it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import RunFolder, file_size
from tfmagic.runs.log_reader import tail_lines
from tfmagic.system.memory import format_bytes

_LOG_BYTES = 4 << 20
_PART_CHARACTERS = 1 << 19


class WholeLogs:
    """The logs of these tasks, which the page knows by their places. It needs no cluster."""

    def __init__(self, run: RunFolder, tasks: Sequence[TaskId]):
        self._run, self._tasks = run, tasks

    def obey(self, request: Mapping[str, Any], send: Callable[[Mapping[str, Any]], None]) -> None:
        """Send the end of a task's log as text, in parts."""
        number = int(request["task"])
        path = self._run.log_path(self._tasks[number])
        skipped = max(file_size(path) - _LOG_BYTES, 0)
        lines = tail_lines(path, sys.maxsize, _LOG_BYTES)
        text = "\n".join(lines[1:] if skipped else lines)  # the first one is torn
        starts = range(0, max(len(text), 1), _PART_CHARACTERS)
        for part, start in enumerate(starts):
            found = {
                "task": number,
                "request": request["request"],
                "path": str(path),
                "text": text[start : start + _PART_CHARACTERS],
                "part": part,
                "parts": len(starts),
                "skipped": format_bytes(skipped) if skipped else "",
            }
            send({"kind": "update", "log": found})
