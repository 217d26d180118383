"""The processes of a runner as `multiprocessing` shows them: TensorFlow's helpers ask for them so."""

from __future__ import annotations

import signal

from tfmagic.clusters.one_shot_tasks import OneShotTasks
from tfmagic.protocol.cluster_spec import TaskId


class TaskProcess:
    """The present process of a task, with what `multiprocessing.Process` has of it."""

    def __init__(self, errands: OneShotTasks, task: TaskId):
        self._errands, self._task = errands, task

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._task.name} pid={self.pid} exitcode={self.exitcode}>"

    @property
    def name(self) -> str:
        return self._task.name

    @property
    def pid(self) -> int | None:
        """Its pid; None while it is only asked for."""
        return self._errands.pid(self._task) or None

    @property
    def exitcode(self) -> int | None:
        """Its exit code, negative for the number of a signal; None while it lives."""
        return self._errands.exit_code(self._task)

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or `timeout` seconds have passed."""
        self._errands.wait_for_end(self._task, timeout)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._errands.signal((self._task,), signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._errands.signal((self._task,), signal.SIGKILL)
