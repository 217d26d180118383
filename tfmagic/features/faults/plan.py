"""Faults and when they happen: a plan that `FaultLab` carries out, drawn at random or given."""

import random
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from tfmagic.clusters.launch.checks import check
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.system.memory import format_bytes

KINDS = ("kill", "pause", "resume", "preempt", "slow", "flood", "interrupt", "partition", "heal")
DEFAULT_KINDS = ("kill", "pause", "slow", "flood", "interrupt")
_LASTING = ("pause", "slow", "partition")
_MOST_FAULTS = 10_000
_MOST_BYTES = 10**12


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one task.

    Attributes:
        at_s: Seconds from the start of the plan.
        kind: One of `KINDS`.
        amount: Factor of slowness, bytes of a flood, or signal of a kill (0 for SIGKILL).
        for_s: How long a pause or slowness lasts; None if the plan does not end it.
    """

    at_s: float
    kind: str
    task: TaskId
    amount: float = 0
    for_s: float | None = None

    def check(self) -> None:
        """Raise `ValueError` if the fault makes no sense."""
        if self.kind not in KINDS:
            raise ValueError(f"there is no fault {self.kind!r}; there are {', '.join(KINDS)}")
        if not isinstance(self.at_s, Real) or not 0 <= self.at_s <= threading.TIMEOUT_MAX:
            raise ValueError(f"a fault comes in 0 s or more, not in {self.at_s!r} s")
        match self.kind:
            case "kill":
                check_signal(self.amount or signal.SIGKILL)
            case "slow":
                check_factor(self.amount)
            case "flood":
                check_bytes(self.amount)

    def __str__(self) -> str:
        how = {"slow": f", {self.amount:.1f} times slower", "flood": f" with {format_bytes(self.amount)}"}
        amount = how.get(self.kind, "")
        span = "" if self.for_s is None else f" for {self.for_s:.1f} s"
        return f"{self.at_s:.1f} s: {self.kind} {self.task}{amount}{span}"


def draw_plan(
    seed: int, tasks: Sequence[TaskId], seconds: float, every_s: float, kinds: Sequence[str] = DEFAULT_KINDS
) -> tuple[Fault, ...]:
    """Return faults at random times; the same seed gives the same faults.

    Args:
        seconds: Length of the plan.
        every_s: Mean time between two faults.

    Raises:
        ValueError: There is no such kind of fault, or a time is not above 0.
    """
    kinds = check("kinds", kinds)
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        named = ", ".join(unknown) or "(none named)"
        raise ValueError(f"there is no fault {named}; there are {', '.join(KINDS)}")
    if not all(isinstance(time_s, Real) and 0 < time_s < float("inf") for time_s in (seconds, every_s)):
        raise ValueError(f"chaos needs times above 0, not {seconds} s and one fault each {every_s} s")
    if seconds / every_s > _MOST_FAULTS:
        raise ValueError(f"that would be {seconds / every_s:.0f} faults; chaos has at most {_MOST_FAULTS}")
    rng = random.Random(seed)
    plan: list[Fault] = []
    at_s = rng.expovariate(1 / every_s)
    while at_s < seconds:
        kind, task = rng.choice(list(kinds)), rng.choice(list(tasks))
        amount = {"slow": rng.uniform(2, 8), "flood": rng.uniform(1e6, 5e7)}.get(kind, 0)
        span = rng.uniform(0.2, 3.0)
        plan.append(Fault(at_s, kind, task, amount, span if kind in _LASTING else None))
        at_s += rng.expovariate(1 / every_s)
    return tuple(plan)


def check_signal(number: float) -> None:
    """Raise `ValueError` for what is no number of a signal."""
    if isinstance(number, bool) or not isinstance(number, int) or number not in signal.valid_signals():
        raise ValueError(f"there is no signal {number!r}; give a number, such as signal.SIGKILL")


def check_factor(factor: float) -> None:
    """Raise `ValueError` unless tasks can be slowed down by this factor."""
    if not isinstance(factor, Real) or not 1 <= factor <= 100:
        raise ValueError(f"a task can be 1 to 100 times slower, not {factor!r} times")


def check_bytes(size_bytes: float) -> None:
    """Raise `ValueError` unless a flood can have so many bytes."""
    if not isinstance(size_bytes, Real) or not 0 <= size_bytes <= _MOST_BYTES:
        raise ValueError(f"a flood has 0 to {_MOST_BYTES:.0e} bytes, not {size_bytes!r}")
