"""Where in the user's source a running cell is, and in which call it has been for a while.

Used by the side thread, which looks at the frames of the main thread and of those that work for it. It
keeps no frame: a frame that somebody holds keeps the user's variables alive.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import LineReached, Wait
from tfmagic.system.own_code import OUR_FOLDER
from tfmagic.task import cell_frames

_NAME_CHARACTERS = 60
_BUSY_S, _BUSY_SHARE = 0.002, 0.005  # of the main thread's CPU time; one that waits needs none
_STILL_S = 1.0  # in one and the same call: worth a word
_EXECUTE = "/tensorflow/python/eager/execute.py"
_WAITS = (  # TensorFlow 2.21: a file of it, and a function there, in which a task waits
    ("/tensorflow/python/data/ops/iterator_ops.py", "", Wait.DATASET),
    ("/tensorflow/python/eager/context.py", "ensure_initialized", Wait.PEERS),
    ("/tensorflow/python/distribute/coordinator/", "", Wait.RPC),
)
_EAGER_OPS = "/tensorflow/python/ops/gen_"  # one function for each op, called past execute.py
_REPLICA_THREADS = "/tensorflow/python/distribute/mirrored_run.py"
_OP_WAITS = (("Collective", Wait.COLLECTIVE), ("Iterator", Wait.DATASET), ("Remote", Wait.RPC))
_COLLECTIVES = (  # in the words of tf.distribute
    ("CollectiveReduceScatter", "reduce_scatter"),
    ("CollectiveReduce", "all_reduce"),
    ("CollectiveGather", "all_gather"),
    ("CollectiveBcast", "broadcast"),
    ("CollectiveAllToAll", "all_to_all"),
)


@dataclass(frozen=True, slots=True)
class _Still:
    """The call in which the main thread was at a look, as far as one can know without holding its frame.

    The next short call may well have a frame at the same place in memory, but it computes.
    """

    where: tuple[int, ...] = ()  # the cell, and of the innermost frame and the user's: which, and where in it
    at: float = 0.0
    cpu_s: float = 0.0

    def goes_on(self, now: _Still) -> bool:
        """Whether `now` is the same call."""
        if self.where != now.where:
            return False
        return now.cpu_s - self.cpu_s < _BUSY_S + _BUSY_SHARE * (now.at - self.at)


class Lookout:
    """Remembers what the kernel was told last. One for each task, used by its side thread."""

    def __init__(self, boot: TaskBoot):
        self._boot = boot
        self._told: tuple[int, str, int, str, Wait] = (0, "", 0, "", Wait.NONE)
        self._clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        self._still = _Still()
        self._inside: tuple[str, Wait] | None = None

    def look(self, cell: RunCell) -> LineReached | None:
        """Where the cell is, if that is not what was said last."""
        try:
            with cell_frames.looking():
                return self._look(cell)
        except Exception:  # frames change under our eyes, and code may be of any form: there is a next look
            return None

    def _look(self, cell: RunCell) -> LineReached | None:
        frame = cell_frames.main_frame()
        found = find_frame(frame, cell.filename)
        if frame is None or found is None:
            return None
        now, cpu_s = time.monotonic(), time.clock_gettime(self._clock)
        where = (cell.cell, id(frame), frame.f_lasti, id(found), found.f_lasti)
        still = _Still(where, now, cpu_s)
        if not self._still.goes_on(still):
            self._still, self._inside = still, None
        elif self._inside is None and now - self._still.at >= _STILL_S:
            self._inside = name_wait(frame, found)
        inside, wait = self._inside or ("", Wait.NONE)
        place = (cell.cell, found.f_code.co_filename, found.f_lineno, inside, wait)
        if place == self._told:
            return None
        self._told = place
        return LineReached(self._boot.task, self._boot.attempt, *place)


def find_frame(frame: FrameType | None, cell_file: str) -> FrameType | None:
    """The innermost frame of the cell; of a call, its outermost frame.

    Args:
        frame: The innermost frame of the thread that runs it.
        cell_file: The cell's file name; "" for a call.
    """
    outermost = None
    while frame is not None:
        name = frame.f_code.co_filename
        if cell_file and name == cell_file:
            return frame
        if name.startswith((OUR_FOLDER, "<frozen")):
            if outermost is not None:
                break  # below it is how it was called
        else:
            outermost = frame
        frame = frame.f_back
    return None if cell_file else outermost


def name_wait(frame: FrameType, users: FrameType) -> tuple[str, Wait]:
    """What the thread is in, in the field's words where they are known, else what the user called.

    Args:
        frame: The innermost frame of the thread.
        users: The one of the user's source.
    """
    called = called_in(users)
    step: FrameType | None = frame
    while step is not None and step is not users:
        file = step.f_code.co_filename
        if _is_op(step):
            return _name_op(step, called)
        if file.endswith(_REPLICA_THREADS):
            return _name_replicas(called)
        for part, function, wait in _WAITS:
            if part in file and function in ("", step.f_code.co_name):
                return called, wait
        step = step.f_back
    return called, Wait.NONE


def called_in(frame: FrameType) -> str:
    """The call at which the frame is, as it is written: ``time.sleep``; "" where that is not known."""
    positions = list(frame.f_code.co_positions())
    index = frame.f_lasti // 2
    line, end_line, start, end = positions[index] if index < len(positions) else (None,) * 4
    if line is None or end_line is None or start is None or end is None:
        return ""
    lines = [linecache.getline(frame.f_code.co_filename, n).encode() for n in range(line, end_line + 1)]
    lines[-1] = lines[-1][:end]  # first, since it may be the same line
    lines[0] = lines[0][start:]
    try:
        parsed = ast.parse(b"".join(lines)).body[0]
        call = parsed.value if isinstance(parsed, ast.Expr) else None
        return ast.unparse(call.func)[:_NAME_CHARACTERS] if isinstance(call, ast.Call) else ""
    except (SyntaxError, ValueError, IndexError, RecursionError, MemoryError):
        return ""  # no call, or its source has changed, or it is a chain of hundreds


def _is_op(frame: FrameType) -> bool:
    """Whether the frame waits for an op of TensorFlow, or for a tf.function."""
    file = frame.f_code.co_filename
    return file.endswith(_EXECUTE) or _EAGER_OPS in file


def _name_op(frame: FrameType, called: str) -> tuple[str, Wait]:
    """The op, or the tf.function, that `frame` of execute.py waits for."""
    if _EAGER_OPS in frame.f_code.co_filename:
        ops = [frame.f_code.co_name.title().replace("_", "")]  # collective_reduce_v2 is CollectiveReduceV2
    else:
        name = frame.f_locals.get("op_name")
        name = name.decode() if isinstance(name, bytes) else str(name or "")
        ops = [name, *_ops_of_function(name)]
    found = {wait: op for start, wait in _OP_WAITS for op in ops if op.startswith(start)}
    if Wait.COLLECTIVE in found and Wait.DATASET in found:
        return called, Wait.STEP
    if Wait.COLLECTIVE in found:
        return _collective_name(found[Wait.COLLECTIVE]), Wait.COLLECTIVE
    return called, next(iter(found), Wait.NONE)


def _name_replicas(called: str) -> tuple[str, Wait]:
    """A strategy's eager `run` waits for threads of its own, which make the collectives."""
    for frame in sys._current_frames().values():
        if _is_op(frame):
            found = _name_op(frame, called)
            if found[1] is not Wait.NONE:
                return found
    return called, Wait.NONE


def _collective_name(op: str) -> str:
    return next((name for start, name in _COLLECTIVES if op.startswith(start)), op)


@functools.lru_cache(maxsize=64)
def _ops_of_function(name: str) -> tuple[str, ...]:
    """The kinds of ops in a tf.function and in those that it calls; none where it is no function."""
    module = sys.modules.get("tensorflow.python.eager.context")
    current: Any = module and module._context
    if current is None or not current._initialized:
        return ()
    ops: set[str] = set()
    names: list[str] = [name]
    seen: set[str] = set()
    while names and len(seen) < 200:
        name = names.pop()
        if name in seen or not current.has_function(name):
            continue
        seen.add(name)
        for node in current.get_function_def(name).node_def:
            ops.add(node.op)
            names += [attr.func.name for attr in node.attr.values() if attr.HasField("func")]
    return tuple(sorted(ops))
