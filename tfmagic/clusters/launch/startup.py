"""Wait for new task processes, and raise `LaunchError` with the reason if one did not start.

If they could not be forked, the first start says why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping

from tfmagic.errors import LaunchError
from tfmagic.failures.deaths import describe_end
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import TaskLost
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import tail_lines
from tfmagic.supervisor.state import ClusterState, Phase, TaskState
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import advice, notices

Progress = Callable[[ClusterState], None]

_SETTLED = (Phase.READY, Phase.RUNNING)
_LOOK_S = 0.1  # between two calls of `progress`
_TAIL_LINES = 20
_LEAST_BYTES = 1 << 16  # of free space, with which a task starts


class Start:
    """New processes of tasks, until each task is ready in a later attempt than the one given for it.

    Args:
        old: The last attempt of each task before.
        timeout_s: How long they can take, in seconds, from now on.
        log_starts: The length of each log before, in bytes.
        then: What the caller does when the time has passed.

    Attributes:
        progress: Called with the state while `wait` waits.
        is_over: Whether all are ready, or one has failed.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        old: Mapping[TaskId, int],
        timeout_s: float,
        progress: Progress | None = None,
        log_starts: Mapping[TaskId, int] | None = None,
        *,
        then: str = "the cluster was stopped",
    ):
        self.progress, self.is_over = progress, False
        self._supervisor, self._old, self._timeout_s, self._then = supervisor, old, timeout_s, then
        self._deadline, self._log_starts = time.monotonic() + timeout_s, log_starts or {}
        self._late = next(iter(old), None)  # the first task that was not ready at the last look
        self._unsettled: ClusterState | None = None  # then

    def shown_by(self, progress: Progress | None) -> Start:
        """Let another front end show the start from now on."""
        self.progress = progress
        return self

    def wait(self) -> None:
        """Wait in this thread.

        Raises:
            LaunchError: A process ended before it was ready, or the time has passed.
        """
        while not self._supervisor.wait_for(self._is_settled, _LOOK_S):
            self._look()
        self._end()

    async def wait_async(self, look: Callable[[], object]) -> None:
        """Do as `wait`, while the event loop goes on. `look` is called ten times a second, and can raise."""
        import asyncio  # takes a tenth of a second, which a plain script need not pay

        while not await asyncio.to_thread(self._supervisor.wait_for, self._is_settled, _LOOK_S):
            look()
            self._look()
        self._end()

    def _is_settled(self, state: ClusterState) -> bool:
        if state is self._unsettled:
            return False
        self._unsettled = None if (is_settled := self._have_settled(state)) else state
        return is_settled

    def _have_settled(self, state: ClusterState) -> bool:
        """Check whether all are ready or one has died. Called at each change: mostly it looks at one task."""
        some_died = any(seen.phase is Phase.DEAD for seen in state.tasks.values())
        if self._late is not None and not some_died and not self._is_ready(self._late, state):
            return False
        self._late = next((task for task in self._old if not self._is_ready(task, state)), None)
        if self._late is None or not some_died:
            return self._late is None
        seen = {task: state.tasks.get(task, TaskState()) for task in self._old}
        is_fresh = all(seen[task].attempt > attempt for task, attempt in self._old.items())
        return is_fresh and any(s.phase is Phase.DEAD for s in seen.values())

    def _is_ready(self, task: TaskId, state: ClusterState) -> bool:
        seen = state.tasks.get(task)
        return seen is not None and seen.attempt > self._old[task] and seen.phase in _SETTLED

    def _look(self) -> None:
        state = self._supervisor.state
        if self.progress is not None:
            self.progress(state)
        if not self._supervisor.thread.is_alive():
            raise LaunchError("the cluster was stopped while it was started") from self._supervisor.crashed
        if time.monotonic() > self._deadline:
            seen = {t: state.tasks.get(t, TaskState()).phase for t in self._old}
            late = [f"{t} ({phase.value})" for t, phase in seen.items() if phase is not Phase.READY]
            raise LaunchError(
                f"{', '.join(late)} did not get ready within {self._timeout_s:g} s; {self._then}. "
                "Look at the machine's load, or raise TFCluster.start_timeout_s."
            )

    def _end(self) -> None:
        self.is_over, supervisor = True, self._supervisor
        if self.progress is not None:
            self.progress(supervisor.state)
        for task in self._old:
            end, start = supervisor.state.tasks[task].end, self._log_starts.get(task, 0)
            if supervisor.state.tasks[task].phase is Phase.DEAD and end is not None:
                tail = tail_lines(supervisor.run.log_path(task), _TAIL_LINES, since=start)
                lines = [f"    {line}" for line in tail]
                is_lost = isinstance(end, TaskLost)
                how = (
                    f"did not start: {end.reason}."
                    if is_lost
                    else f"{describe_end(end)} while it was started."
                )
                if _is_full(supervisor.run):
                    full = f"The disk of {supervisor.run.folder} is full"
                    lines.append(f"{full}: free some space or set TFMAGIC_STATE_DIR.")
                raise LaunchError("\n".join([f"{task} {how}", *lines]))
        _tell_obstacles(supervisor.state, self._old)


def _is_full(run: RunFolder) -> bool:
    disk = os.statvfs(run.folder)
    return disk.f_bavail * disk.f_frsize < _LEAST_BYTES


_told: set[str] = set()  # obstacles, in this process


def _tell_obstacles(state: ClusterState, tasks: Iterable[TaskId]) -> None:
    """Print why new processes could not be forked, once for each reason."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        obstacle = state.tasks[task].obstacle
        if obstacle and obstacle not in _told:
            found.setdefault(obstacle, []).append(task.name)
    for obstacle, names in found.items():
        _told.add(obstacle)
        notices.say(f"tfmagic: {', '.join(names)}: {advice.not_forked(obstacle)}")
