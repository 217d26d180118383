"""Read a trace of TensorFlow's profiler (`*.xplane.pb`) into a `TaskProfile`.

The wall-clock time of the *task* is divided, not that of its threads: two ops at the same time count once.
Where several things happen at once, the first of these counts:

    input           an op waits for the next element of a data set (IteratorGetNext and its kind)
    compute         an op runs in any thread; not those of the other rows, nor those that only call functions
                    (While, PartitionedCall), nor those inside a stage of an input pipeline
    collective      between the entry into a collective op and its result; the notebook divides this into
                    waiting and transferring, since only there the tasks can be compared
    remote          a call to another task is under way, as from a coordinator or to a parameter server
    tracing         a tf.function is traced, into a graph
    idle            the rest: other Python code, `time.sleep`, or nothing at all

Names as TensorFlow 2.21 writes them:

- ``name:Type`` for an op of a graph, ``EagerLocalExecute: Type`` for an eager one. A collective has two
  events; the one with the stats ``group_key`` and ``instance_key`` lasts for the whole exchange.
- ``CollectiveOpV2Kernel::Run`` comes before each of them, as the task enters it. There can be some time
  between the two in the first run, where the tasks agree on their parameters.
- ``IteratorGetNextOp::DoCompute``; ``Iterator::Map`` and so on for the work of a pipeline's stages, whose ops
  run in threads ``tf_data_...``.
- ``EagerExecute`` with no ``EagerLocalExecute`` inside: the op runs on another task. Its counterpart there
  is ``EagerService:Enqueue``; while nothing is computed in it, it waits for variables of a parameter server.
  ``_Send`` and ``_Recv`` exchange tensors with other tasks.
"""

import math
import re
from collections import defaultdict, deque
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfmagic.features.profile import intervals
from tfmagic.features.profile.intervals import Interval
from tfmagic.features.profile.records import Collective, OpTime, TaskProfile

_OP = re.compile(r"[\w./>-]*:([A-Z_]\w*)")
_EAGER_OP = re.compile(
    r"EagerLocalExecute(?:Async)?: (_?[A-Z]\w*)"
)  # a function's name begins with two lines
_ONE_DNN = re.compile("^_Mkl(Native)?")  # kernels that replace TensorFlow's own
_INPUT = re.compile(r"(?:IteratorGetNext|OptionalGetNext|MultiDeviceIteratorGetNext)\w*(?:::DoCompute)?")
_PIPELINE = ("Iterator::", "InstantiatedCapturedFunction::")
_PIPELINE_THREAD = "tf_data"
_CALLS = frozenset(
    {
        *("PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient", "RemoteCall"),
        *("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"),
    }
)
_EXCHANGES = frozenset({"_Send", "_Recv", "_HostSend", "_HostRecv"})
_REQUEST = "EagerService:Enqueue"
_EAGER = "EagerExecute"
_GRAPH_BUILDING = "tf.function-graph_building"
_ENTRY = "CollectiveOpV2Kernel::Run"
_HOST_PLANE = "/host:CPU"
_DEVICE_PLANE = "/device:"
_ENVIRONMENT_PLANE = "Task Environment"
_MOST_OPS = 20
_MOST_COLLECTIVES = 20_000


def read_trace(path: Path, is_cut: bool = False) -> TaskProfile:
    """Return where the time of a trace went."""
    return summarize(_parse(path), str(path), is_cut)


def summarize(space: Any, path: str, is_cut: bool = False) -> TaskProfile:
    """Return where the time went in a trace that was parsed; `path` and `is_cut` are passed on."""
    start, end = _span_of(space)
    reader = _Reader(start)
    for plane in space.planes:
        if plane.name == _HOST_PLANE:
            reader.read_threads(plane)
        elif plane.name.startswith(_DEVICE_PLANE):
            for line in plane.lines:
                reader.read_device(line)
    return reader.summarize(end, path, is_cut)


def _parse(path: Path) -> Any:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    return space


def _span_of(space: Any) -> tuple[int, int]:
    """Return when the trace began and ended, in nanoseconds since the epoch."""
    plane = next(plane for plane in space.planes if plane.name == _ENVIRONMENT_PLANE)
    names = {key: found.name for key, found in plane.stat_metadata.items()}
    found = {names[stat.metadata_id]: stat.uint64_value or stat.int64_value for stat in plane.stats}
    return found["profile_start_time"], found["profile_stop_time"]


class _Reader:
    """Sorts the events of a trace, whose clock begins with 0 at its start."""

    def __init__(self, start: int):
        self._start, self._events = start, 0
        self._compute: list[Interval] = []
        self._input: list[Interval] = []
        self._remote: list[Interval] = []
        self._tracing: list[Interval] = []
        self._collectives: list[tuple[int, int, int, int]] = []  # start, end, group and instance key
        self._entries: list[int] = []
        self._ops: dict[str, list[int]] = defaultdict(lambda: [0, 0])  # calls and self time by type

    def read_threads(self, plane: Any) -> None:
        """Sort the events of all threads; most events are none of ours."""
        found = {key: _kind_of(metadata.name) for key, metadata in plane.event_metadata.items()}
        kinds = {key: kind for key, kind in found.items() if kind[0]}
        stats = {key: metadata.name for key, metadata in plane.stat_metadata.items()}
        for line in plane.lines:
            self._read_thread(line, kinds, stats)

    def _read_thread(self, line: Any, kinds: Mapping[int, tuple[str, str]], stats: Mapping[int, str]) -> None:
        inside = _Nesting(line.name.startswith(_PIPELINE_THREAD), self._ops)
        self._events += len(line.events)
        for begin, end, number, event in _in_order(line, kinds):
            what, op = kinds[number]
            within_pipeline = inside.enter(begin, end, what, op)
            span = (begin, end)
            if what == "op":
                if not within_pipeline:
                    self._compute.append(span)
            elif what == "input":
                self._input.append(span)
            elif what == "remote":
                self._remote.append(span)
            elif what == "tracing":
                self._tracing.append(span)
            elif what == "entry":
                self._entries.append(begin)
            elif what == "collective":
                instance = _stat(event, stats, "instance_key")
                if instance is not None:
                    self._collectives.append((begin, end, _stat(event, stats, "group_key") or 0, instance))
        self._remote += inside.finish()

    def read_device(self, line: Any) -> None:
        """Count what a GPU executes as compute."""
        if line.name.startswith("Stream"):
            self._events += len(line.events)
            self._compute += ((begin, end) for begin, end, *_ in _in_order(line))

    def summarize(self, end: int, path: str, is_cut: bool) -> TaskProfile:
        whole = [(0, end - self._start)]
        waits = intervals.intersect(intervals.union(self._input), whole)
        compute = intervals.subtract(intervals.intersect(intervals.union(self._compute), whole), waits)
        known = intervals.union([*waits, *compute])
        met = self._meetings()
        in_collectives = intervals.union((one.start, one.end) for one in met)
        exchange = intervals.subtract(intervals.intersect(in_collectives, whole), known)
        known = intervals.union([*known, *exchange])
        remote = intervals.subtract(intervals.intersect(intervals.union(self._remote), whole), known)
        known = intervals.union([*known, *remote])
        tracing = intervals.subtract(intervals.intersect(intervals.union(self._tracing), whole), known)
        ops = sorted(self._ops.items(), key=lambda one: -one[1][1])[:_MOST_OPS]
        at = self._start
        return TaskProfile(
            start=at,
            end=end,
            compute_ns=intervals.length(compute),
            input_ns=intervals.length(waits),
            remote_ns=intervals.length(remote),
            tracing_ns=intervals.length(tracing),
            collective_parts=tuple((at + begin, at + over) for begin, over in exchange),
            collectives=tuple(
                Collective(one.key, at + one.start, at + one.end) for one in met[:_MOST_COLLECTIVES]
            ),
            ops=tuple(OpTime(op, calls, self_ns) for op, (calls, self_ns) in ops),
            events=self._events,
            path=path,
            is_cut=is_cut,
        )

    def _meetings(self) -> list[Collective]:
        """Return the collectives in order; each begins with its entry."""
        entries = deque(sorted(self._entries))
        found = []
        for begin, end, group, instance in sorted(self._collectives):
            entered = entries.popleft() if entries and entries[0] <= begin else begin
            found.append(Collective(f"{group}/{instance}", entered, end))
        return sorted(found, key=lambda one: one.start)


class _Nesting:
    """The events of one thread that are under way, and the time of each op without those inside it.

    Args:
        is_pipeline: Whether the whole thread works for an input pipeline.
        ops: Calls and self time by type, to be added to.
    """

    def __init__(self, is_pipeline: bool, ops: dict[str, list[int]]):
        self._open: list[_Open] = []
        self._ops = ops
        self._pipelines = int(is_pipeline)
        self._remote: list[Interval] = []

    def enter(self, begin: int, end: int, what: str, op: str) -> bool:
        """Note an event; return whether it is part of an input pipeline."""
        self._leave(begin)
        within = self._pipelines > 0
        opened = self._open
        if op:
            name = f"{op} (input)" if within else op
            outer = next((one.op for one in reversed(opened) if one.op), "")
            if outer:
                self._ops[outer][1] -= end - begin
            self._ops[name][0] += 1
            self._ops[name][1] += end - begin
            op = name
        if what:
            for one in opened:
                one.is_local = True
        opened.append(_Open(begin, end, what, op))
        self._pipelines += what == "pipeline"
        return within

    def _leave(self, now: float) -> None:
        while self._open and self._open[-1].end <= now:
            left = self._open.pop()
            self._pipelines -= left.what == "pipeline"
            if left.what == "eager" and not left.is_local:
                self._remote.append((left.begin, left.end))

    def finish(self) -> list[Interval]:
        """Return when eager execution waited for another task: nothing was executed here."""
        self._leave(math.inf)
        return self._remote


@dataclass(slots=True)
class _Open:
    """An event under way."""

    begin: int
    end: int
    what: str
    op: str
    is_local: bool = False


def _kind_of(name: str) -> tuple[str, str]:
    """Classify an event; return its kind, and the type of its op if it is the execution of one."""
    name = name.partition("#")[0]
    if name == _ENTRY:
        return "entry", ""
    if name == _EAGER:
        return "eager", ""
    if name == _GRAPH_BUILDING:
        return "tracing", ""
    if name == _REQUEST or name.startswith(("_Send ", "_Recv ")):
        return "remote", ""
    if name.startswith(_PIPELINE):
        return "pipeline", ""
    found = _OP.fullmatch(name) or _EAGER_OP.fullmatch(name)
    op = _ONE_DNN.sub("", found[1]) if found else ""
    if _INPUT.fullmatch(op or name):
        return "input", ""
    if op.startswith(("Collective", "NcclAllReduce")):
        return "collective", ""
    if op in _EXCHANGES:
        return "remote", ""
    if name.startswith("EagerLocalExecute") and not op:
        return "local", ""
    return ("", "") if not op or op in _CALLS else ("op", op)


def _in_order(line: Any, wanted: Container[int] | None = None) -> list[tuple[int, int, int, Any]]:
    """Return the events of a line: start and end in nanoseconds, number of the metadata, and the event.

    Outer events come first. With `wanted`, only events with such a number are returned.
    """
    shift, found = line.timestamp_ns, []
    for event in line.events:
        number = event.metadata_id
        if wanted is None or number in wanted:
            begin = shift + event.offset_ps // 1000
            found.append((begin, begin + event.duration_ps // 1000, number, event))
    found.sort(key=lambda one: (one[0], -one[1]))
    return found


def _stat(event: Any, names: Mapping[int, str], name: str) -> int | None:
    """Return a number of an event's statistics."""
    for stat in event.stats:
        if names.get(stat.metadata_id) == name:
            return int(stat.int64_value or stat.uint64_value or 0)
    return None
