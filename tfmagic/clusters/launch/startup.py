"""Wait for new task processes, and raise `LaunchError` with the reason if one did not start.

If they could not be forked, the first start says why.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping

from tfmagic.errors import LaunchError
from tfmagic.failures.deaths import describe_end
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import TaskLost
from tfmagic.runs.log_reader import tail_lines
from tfmagic.supervisor.state import ClusterState, Phase, TaskState
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import advice

Progress = Callable[[ClusterState], None]

_LOOK_S = 0.1  # between two calls of `progress`
_TAIL_LINES = 20


def wait_until_ready(
    supervisor: Supervisor,
    old: Mapping[TaskId, int],
    timeout_s: float,
    progress: Progress | None = None,
    log_starts: Mapping[TaskId, int] | None = None,
    *,
    then: str = "the cluster was stopped",
) -> None:
    """Wait until each task of `old` is ready in a later attempt than the one given there.

    Args:
        log_starts: The length of each log before, in bytes.
        then: What the caller does when the time has passed.

    Raises:
        LaunchError: A process ended before it was ready, or the time has passed.
    """

    def settled(state: ClusterState) -> bool:
        seen = [state.tasks.get(t, TaskState()) for t in old]
        fresh = all(s.attempt > attempt for s, attempt in zip(seen, old.values(), strict=True))
        phases = {s.phase for s in seen}
        return fresh and (phases <= {Phase.READY, Phase.RUNNING} or Phase.DEAD in phases)

    deadline = time.monotonic() + timeout_s
    while not supervisor.wait_for(settled, _LOOK_S):
        if progress is not None:
            progress(supervisor.state)
        if not supervisor.thread.is_alive():
            raise LaunchError("the cluster was stopped while it was started") from supervisor.crashed
        if time.monotonic() > deadline:
            seen = {t: supervisor.state.tasks.get(t, TaskState()).phase for t in old}
            late = [f"{t} ({phase.value})" for t, phase in seen.items() if phase is not Phase.READY]
            raise LaunchError(
                f"{', '.join(late)} did not get ready within {timeout_s:g} s; {then}. "
                "Look at the machine's load, or raise TFCluster.start_timeout_s."
            )
    if progress is not None:
        progress(supervisor.state)
    for task in old:
        end, start = supervisor.state.tasks[task].end, (log_starts or {}).get(task, 0)
        if supervisor.state.tasks[task].phase is Phase.DEAD and end is not None:
            tail = tail_lines(supervisor.run.log_path(task), _TAIL_LINES, since=start)
            lines = [f"    {line}" for line in tail]
            is_lost = isinstance(end, TaskLost)
            how = f"did not start: {end.reason}." if is_lost else f"{describe_end(end)} while it was started."
            raise LaunchError("\n".join([f"{task} {how}", *lines]))
    _tell_obstacles(supervisor.state, old)


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
        print(f"tfmagic: {', '.join(names)}: {advice.not_forked(obstacle)}", file=sys.stderr)
