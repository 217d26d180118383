"""The rules for one-shot tasks, whose process runs one call and ends. Pure functions, as the lifecycle's.

    state of each task + rules + the time → tasks to restart, tasks to end, and when to decide again

`tfmagic.clusters.one_shot_tasks` carries out what is decided here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import TaskExited, TaskLost

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0
_CHIEF = TaskId("chief", 0)
_LOST = -9  # the most likely exit code of a process whose end was not seen


@dataclass(frozen=True, slots=True)
class OneShotTask:
    """The state of a one-shot task.

    Attributes:
        reported: Whether the result or the exception of the call has arrived.
        raised_at: When the call raised.
        end, ended_at: How and when the process ended.
        terminated: Whether its end was asked for, so that it has not failed.
        dismissed: Whether its end was asked for, and it gets no other process.
    """

    attempt: int
    pid: int = 0
    reported: bool = False
    raised_at: float | None = None
    end: TaskExited | TaskLost | None = None
    ended_at: float = 0.0
    terminated: bool = False
    dismissed: bool = False
    restarts: int = 0

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process lives, negative for the number of a signal."""
        if self.end is None:
            return None
        return self.end.exit_code if isinstance(self.end, TaskExited) else _LOST

    @property
    def failed_at(self) -> float | None:
        """When it failed, if it has."""
        if self.raised_at is not None:
            return self.raised_at
        return self.ended_at if self.exit_code and not self.terminated else None


@dataclass(frozen=True, slots=True)
class Rules:
    """What follows from an end. Times are in seconds of the monotonic clock.

    Attributes:
        auto_restart: How often a task whose exit code is not 0 runs again.
        together: Whether all others then run again, too.
        dependence_on_chief: Whether the others end `chief_grace_s` after the chief has ended for good.
        watched_since: From then on the others end `failure_grace_s` after a failure; None leaves them alone.
        waits_for_peers: Whether only an exception counts as a failure: after another end the peers can raise
            what it means for them.
        until: When all end.
    """

    auto_restart: float = 0
    together: bool = False
    dependence_on_chief: bool = False
    chief_grace_s: float = 3.0
    watched_since: float | None = None
    failure_grace_s: float = 1.0
    waits_for_peers: bool = False
    until: float | None = None


@dataclass(frozen=True, slots=True)
class OneShotDecision:
    """What to do now, and when a decision is due even without an event; `why` tasks are dismissed.

    Attributes:
        recall: Tasks to end, so that they run again together with the others.
        over: Whether all have ended for good.
    """

    restart: tuple[TaskId, ...] = ()
    recall: tuple[TaskId, ...] = ()
    dismiss: tuple[TaskId, ...] = ()
    why: str = ""
    wake_at: float | None = None
    over: bool = False


def decide(tasks: Mapping[TaskId, OneShotTask], rules: Rules, now: float) -> OneShotDecision:
    """Return the actions that are due at the time `now`."""
    running = tuple(task for task, state in tasks.items() if state.end is None)
    for due, why in _last_calls(tasks, rules):
        if now >= due:
            return OneShotDecision(dismiss=running, why=why, over=not running)
    waits = [due for due, _ in _last_calls(tasks, rules)] if running else []
    if _chief_is_over(tasks, rules):
        return OneShotDecision(wake_at=min(waits, default=None), over=not running)
    again = {
        task: state.ended_at + min(_FIRST_DELAY_S * 2**state.restarts, _LONGEST_DELAY_S)
        for task, state in tasks.items()
        if _may_restart(state, rules)
    }
    if again and rules.together:
        if running:
            return OneShotDecision(recall=running, wake_at=min(waits, default=None))
        again = dict.fromkeys(tasks, max(again.values()))
    due_now = tuple(task for task, at in again.items() if now >= at)
    wake_at = min([*waits, *again.values()], default=None)
    return OneShotDecision(restart=due_now, wake_at=wake_at, over=not running and not again)


def _last_calls(tasks: Mapping[TaskId, OneShotTask], rules: Rules) -> list[tuple[float, str]]:
    """Return when the running tasks have to end, and why."""
    found = []
    if rules.until is not None:
        found.append((rules.until, "the time is up"))
    if _chief_is_over(tasks, rules):
        found.append((tasks[_CHIEF].ended_at + rules.chief_grace_s, "the chief has ended"))
    failed = {
        task: state.failed_at
        for task, state in tasks.items()
        if state.failed_at is not None
        and not _may_restart(state, rules)
        and (state.raised_at is not None or not rules.waits_for_peers)
    }
    if failed and rules.watched_since is not None:
        task = min(failed, key=lambda t: failed[t] or 0.0)
        since = max(failed[task] or 0.0, rules.watched_since)
        found.append((since + rules.failure_grace_s, f"{task} failed"))
    return found


def _chief_is_over(tasks: Mapping[TaskId, OneShotTask], rules: Rules) -> bool:
    chief = tasks.get(_CHIEF)
    has_ended = chief is not None and chief.end is not None and not _may_restart(chief, rules)
    return rules.dependence_on_chief and has_ended


def _may_restart(state: OneShotTask, rules: Rules) -> bool:
    return bool(state.exit_code) and not state.dismissed and state.restarts < rules.auto_restart
