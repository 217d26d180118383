"""The processes of a runner, with the interface of `multiprocessing.Process`: TensorFlow's helpers use it."""

from __future__ import annotations

import signal

from tfmagic.clusters.one_shot_tasks import OneShotTasks
from tfmagic.protocol.cluster_spec import TaskId


class TaskProcess:
    """The present process of a task."""

    def __init__(self, processes: OneShotTasks, task: TaskId):
        self._processes, self._task = processes, task

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._task.name} pid={self.pid} exitcode={self.exitcode}>"

    @property
    def name(self) -> str:
        return self._task.name

    @property
    def pid(self) -> int | None:
        """None until the process has started."""
        return self._processes.pid(self._task) or None

    @property
    def exitcode(self) -> int | None:
        """Negative for the number of a signal; None while the process lives."""
        return self._processes.exit_code(self._task)

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended, or `timeout` seconds have passed."""
        self._processes.wait_for_end(self._task, timeout)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._processes.signal((self._task,), signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._processes.signal((self._task,), signal.SIGKILL)
