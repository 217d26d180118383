"""The profile of a cell on one task.

`tfmagic.task.tensorflow.profiler` sends it; `tfmagic.views.time_shares` compares it with others.
Times are in nanoseconds since the epoch, by the clock of the task's machine.
"""

from tfmagic.protocol.intervals import Interval
from tfmagic.protocol.payload import Record


class OpTime(Record, frozen=True):
    """The ops of one type.

    Attributes:
        type: Such as ``MatMul``.
        calls: How often it ran.
        self_ns: How long it ran in all threads together, without the ops inside it.
    """

    type: str
    calls: int
    self_ns: int


class Collective(Record, frozen=True):
    """One collective: from when the task entered it until it had its result.

    Attributes:
        key: The n-th collective of a key on one task meets the n-th of this key on the others.
    """

    key: str
    start: int
    end: int


class TaskProfile(Record, frozen=True):
    """Where the time of a cell went on a task.

    The times of the parts do not overlap; what is left of the trace is idle.

    Attributes:
        start, end: Of the trace.
        compute_ns, input_ns, remote_ns, tracing_ns: The length of these parts; see `trace_reader`.
        collective_parts: When the task did nothing but wait in collectives or transfer their data.
        collectives: Every collective, in the order in which the task entered them.
        ops: The types of ops with the longest times, the longest first.
        events: The number of events in the trace.
        path: The file with the trace, on the task's machine.
        is_cut: Whether the trace ended before the cell, at its limit.
        problem: Why there is no profile; then everything else is empty.
    """

    start: int = 0
    end: int = 0
    compute_ns: int = 0
    input_ns: int = 0
    remote_ns: int = 0
    tracing_ns: int = 0
    collective_parts: tuple[Interval, ...] = ()
    collectives: tuple[Collective, ...] = ()
    ops: tuple[OpTime, ...] = ()
    events: int = 0
    path: str = ""
    is_cut: bool = False
    problem: str = ""
