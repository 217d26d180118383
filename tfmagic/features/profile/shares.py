"""Where the time of a cell went, compared over its tasks: `results.profile` and what ``--profile`` shows.

Each task has sent its own `TaskProfile`. They are compared here, since which part of a collective is a wait
for another task depends on when that one came:

    waiting         in a collective, before the last task has entered it
    transferring    in a collective, afterwards
    straggler       the task that came last to most of the collectives

Collectives of the tasks are matched by key and order. The clocks of the tasks of one machine agree. Those of
two machines do not: there they are shifted so that collectives end at the same time on all tasks (by the
median).
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfmagic.features.profile import intervals
from tfmagic.features.profile.records import Collective, OpTime, TaskProfile
from tfmagic.views import tables
from tfmagic.views.palette import AMBER, BLUE, GREEN, GREY, PURPLE, RED, TEAL

_LOOKS = {  # of each part: its mark, its colour and its meaning
    "compute": ("█", GREEN.mid, "TensorFlow computes"),
    "waiting": ("░", RED.mid, "in a collective, before the last task has entered it"),
    "transferring": ("▒", AMBER.mid, "in a collective that every task has entered"),
    "remote": ("▓", PURPLE.mid, "in a call to another task, such as a parameter server"),
    "input": ("=", BLUE.mid, "waits for the next batch of its data set"),
    "tracing": ("~", TEAL.mid, "a tf.function is traced into a graph"),
    "idle": ("·", GREY.mid, "nothing of TensorFlow runs: other Python code, or nothing at all"),
}
PARTS = tuple(_LOOKS)
_RARE = ("remote", "tracing")
_SEEN = 0.005  # of the trace; less is 0 % in the table
_STRAGGLER_TIMES = 2 / 3  # of the collectives; of two equal tasks one comes last to more than half of them
_STRAGGLER_SHARE = 0.03  # of the trace that the others waited for it, at least


@dataclass(frozen=True, slots=True)
class TaskShare:
    """Where the time of one task went.

    Attributes:
        seconds: By part, see `PARTS`; together they are the length of the trace.
        ops: The types of ops with the longest times, the longest first.
        trace: The file with the full trace, on the task's machine.
        is_cut: Whether the trace ended before the cell, at its limit.
        events: The number of events in the trace.
    """

    seconds: Mapping[str, float]
    ops: tuple[OpTime, ...]
    trace: str
    is_cut: bool
    events: int

    @property
    def total_s(self) -> float:
        """The length of the trace, in seconds."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """The share of each part, from 0 to 1."""
        total = self.total_s or 1.0
        return {part: taken / total for part, taken in self.seconds.items()}


@dataclass(frozen=True, slots=True)
class Straggler:
    """The task for which the others waited.

    Attributes:
        last: How many of the `collectives` it entered last.
        cost_s: How long the others waited for it, in seconds: the mean over them.
    """

    task: str
    last: int
    collectives: int
    cost_s: float

    def __str__(self) -> str:
        each_ms = 1000 * self.cost_s / self.last
        return (
            f"{self.task} is the straggler: it came last to {self.last} of {self.collectives} collectives, "
            f"and the others waited {self.cost_s:.2f} s for it ({each_ms:.3g} ms each time)"
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of a cell went.

    Attributes:
        tasks: By task name.
        straggler: None if no task kept the others waiting.
        problems: Why a task has no profile, by task name.
        advice: How to see the full traces.
    """

    tasks: Mapping[str, TaskShare]
    straggler: Straggler | None
    problems: Mapping[str, str]
    advice: str = ""

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        shares = [share.shares for share in self.tasks.values()]  # a rare part is shown if it can be seen
        parts = [part for part in PARTS if part not in _RARE or any(found[part] >= _SEEN for found in shares)]
        keys = [tables.key(part, *_LOOKS[part]) for part in parts]
        header: tuple[tables.Cell, ...] = ("task", "seconds", "where they went", *keys, "slowest op / calls")
        shown = tables.bundle(header, _rows(self, parts), _remarks(self))
        page = f'<div class="tex2jax_ignore mathjax_ignore">{shown["text/html"]}</div>'
        return {**shown, "text/html": page}


def compare(found: Mapping[str, TaskProfile], hosts: Mapping[str, str], advice: str = "") -> Profile:
    """Compare the profiles of the tasks of a cell; `hosts` are their machines. Both are by task name."""
    good = {task: profile for task, profile in found.items() if not profile.problem}
    meetings = _meetings({task: profile.collectives for task, profile in good.items()})
    shifts = _clock_shifts(good, meetings) if len({hosts.get(task) for task in good}) > 1 else {}
    waits: dict[str, list[intervals.Interval]] = defaultdict(list)
    kept_waiting: dict[str, dict[str, list[intervals.Interval]]] = defaultdict(lambda: defaultdict(list))
    last_of: dict[str, int] = defaultdict(int)
    for meeting in meetings:
        entered = {task: one.start - shifts.get(task, 0) for task, one in meeting.items()}
        last = max(entered, key=lambda task: entered[task])
        last_of[last] += 1
        for task, one in meeting.items():
            wait = (one.start, min(one.start + entered[last] - entered[task], one.end))
            waits[task].append(wait)
            kept_waiting[last][task].append(wait)
    tasks = {task: _share(profile, waits[task]) for task, profile in good.items()}
    straggler = _straggler(last_of, kept_waiting, len(meetings), tasks)
    problems = {task: profile.problem for task, profile in found.items() if profile.problem}
    return Profile(tasks, straggler, problems, advice)


def _meetings(collectives: Mapping[str, Sequence[Collective]]) -> list[dict[str, Collective]]:
    """Return the collectives in which several tasks met, each by task."""
    found: dict[tuple[str, int], dict[str, Collective]] = defaultdict(dict)
    for task, entered in collectives.items():
        counts: dict[str, int] = defaultdict(int)
        for one in entered:
            found[one.key, counts[one.key]][task] = one
            counts[one.key] += 1
    return [meeting for meeting in found.values() if len(meeting) > 1]


def _clock_shifts(
    profiles: Mapping[str, TaskProfile], meetings: Sequence[Mapping[str, Collective]]
) -> dict[str, int]:
    """Return by how much the clock of each task is ahead of the first task's, in nanoseconds."""
    first = next(iter(profiles), "")
    ahead: dict[str, list[int]] = defaultdict(list)
    for meeting in meetings:
        for task, one in meeting.items():
            if task != first and first in meeting:
                ahead[task].append(one.end - meeting[first].end)
    return {task: round(statistics.median(found)) for task, found in ahead.items()}


def _share(profile: TaskProfile, waits: Sequence[intervals.Interval]) -> TaskShare:
    in_collectives = intervals.length(profile.collective_parts)
    waiting = intervals.length(intervals.intersect(profile.collective_parts, intervals.union(waits)))
    lengths = {
        "compute": profile.compute_ns,
        "waiting": waiting,
        "transferring": in_collectives - waiting,
        "remote": profile.remote_ns,
        "input": profile.input_ns,
        "tracing": profile.tracing_ns,
    }
    lengths["idle"] = max(profile.end - profile.start - sum(lengths.values()), 0)
    seconds = {part: taken / 1e9 for part, taken in lengths.items()}
    return TaskShare(seconds, profile.ops, profile.path, profile.is_cut, profile.events)


def _straggler(
    last_of: Mapping[str, int],
    kept_waiting: Mapping[str, Mapping[str, Sequence[intervals.Interval]]],
    collectives: int,
    tasks: Mapping[str, TaskShare],
) -> Straggler | None:
    """Return the task that came last to most of the collectives, if that took the others some time."""
    if not last_of:
        return None
    task = max(last_of, key=lambda name: last_of[name])
    others = [intervals.union(waits) for name, waits in kept_waiting[task].items() if name != task]
    cost_s = statistics.fmean(map(intervals.length, others)) / 1e9
    is_small = cost_s < _STRAGGLER_SHARE * max(share.total_s for share in tasks.values())
    if is_small or last_of[task] < _STRAGGLER_TIMES * collectives:
        return None
    return Straggler(task, last_of[task], collectives, cost_s)


# -- its forms ---------------------------------------------------------------------------------------


def _rows(profile: Profile, parts: Sequence[str]) -> list[tuple[tables.Cell, ...]]:
    rows: list[tuple[tables.Cell, ...]] = []
    for task, share in profile.tasks.items():
        slowest = share.ops[0] if share.ops else None
        op = f"{slowest.type} {slowest.self_ns / 1e9:.2f} s / {slowest.calls:,}" if slowest else ""
        percents = (f"{100 * share.shares[part]:.0f} %" for part in parts)
        rows.append((task, f"{share.total_s:.2f}", _bar(share), *percents, op))
    return rows


def _remarks(profile: Profile) -> list[str]:
    """Return the sentences below the table."""
    lines, shares = [], [share.seconds for share in profile.tasks.values()]
    if profile.straggler is not None:
        lines.append(str(profile.straggler))
    elif any(seconds["waiting"] + seconds["transferring"] > 0 for seconds in shares):
        lines.append(
            "no task is a straggler: none came last to most of the collectives and kept the others waiting"
        )
    for task, share in profile.tasks.items():
        if share.is_cut:
            lines.append(
                f"{task}: the trace was cut after {share.total_s:.1f} s ({share.events:,} events), and the "
                "cell went on; --profile SECONDS (in Python profile=SECONDS) sets another limit"
            )
    lines += [f"{task} has no profile: {problem}" for task, problem in profile.problems.items()]
    if profile.tasks and profile.advice:
        lines.append(profile.advice)
    return lines


def _bar(share: TaskShare) -> tables.Shown:
    """Return the parts of a task's time, one after the other."""
    titles = {p: f"{p} {100 * of_all:.1f} %, {share.seconds[p]:.3f} s" for p, of_all in share.shares.items()}
    return tables.bar(
        tables.Piece(share.shares[part], *_LOOKS[part][:2], title) for part, title in titles.items()
    )
