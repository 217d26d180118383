"""What kernel and tasks tell each other: the part of a trace that a cell is, and the profile of one task.

`task` sends a profile; `shares` compares it with others.
Times are in nanoseconds since the epoch, by the clock of the task's machine.
"""

import enum

import msgspec

from tfmagic.features.profile.intervals import Interval
from tfmagic.protocol.payload import Record

FOLDER = "profile"  # of a run, in which tasks leave the traces of cells


class Trace(enum.Enum):
    """A part of a trace of TensorFlow's profiler."""

    WHOLE = "this cell"
    BEGIN = "what happens from this cell on"
    END = "what happened since the cell that began it"


class Asked(Record, frozen=True):
    """What a cell is asked to trace.

    Attributes:
        part: The part of a trace that the cell is.
        seconds: How long the trace lasts, at most.
    """

    part: Trace
    seconds: float = 0.0


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


encode = msgspec.msgpack.encode
decode_asked = msgspec.msgpack.Decoder(Asked).decode
decode_profile = msgspec.msgpack.Decoder(TaskProfile).decode
