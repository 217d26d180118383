"""Find the line of the user's source at which a running cell is, and the call in which it has waited.

Used by the side thread, which reads the frames of the main thread and of threads that work for it. It keeps
no frame, since a frame keeps the user's variables alive.
"""

from __future__ import annotations

import ast
import concurrent.futures
import contextlib
import functools
import gc
import linecache
import multiprocessing.pool
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import LineReached, Wait
from tfmagic.system import own_code
from tfmagic.task import data_reading
from tfmagic.task.tensorflow import patches

_NAME_CHARACTERS = 60
_BUSY_S, _BUSY_SHARE = 0.002, 0.005  # of the main thread's CPU time; a thread that waits needs none
_STILL_S = 1.0  # in the same call: then it is reported
_AGAIN_S = 2.0  # until what it waits for is looked at again
_EXECUTE = "/tensorflow/python/eager/execute.py"
_WAITS = (  # a file of TensorFlow 2.21, and a function there, in which a task waits
    ("/tensorflow/python/data/ops/iterator_ops.py", "", Wait.DATASET),
    ("/tensorflow/python/eager/context.py", "ensure_initialized", Wait.PEERS),
    ("/tensorflow/python/distribute/coordinator/", "", Wait.RPC),
)
_EAGER_OPS = "/tensorflow/python/ops/gen_"  # one function for each op, called past execute.py
_SUSPENDED = ("_do_wait_suspend", "_wait_for_attach")  # of debugpy 1.8; `features.debug` probes them
WAITING_MODULES = (threading.__file__, multiprocessing.pool.__file__, concurrent.futures._base.__file__)
_INSTALLED = ("<frozen ", *{sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")})
_OP_WAITS = (("Collective", Wait.COLLECTIVE), ("Iterator", Wait.DATASET), ("Remote", Wait.RPC))
_COLLECTIVES = (  # as tf.distribute names them
    ("CollectiveReduceScatter", "reduce_scatter"),
    ("CollectiveReduce", "all_reduce"),
    ("CollectiveGather", "all_gather"),
    ("CollectiveBcast", "broadcast"),
    ("CollectiveAllToAll", "all_to_all"),
)


@dataclass(frozen=True, slots=True)
class _Still:
    """The call in which the main thread was, identified without keeping its frame.

    The frame of a later short call can be at the same place in memory, but that call computes.
    """

    where: tuple[int, ...] = ()  # cell; address and instruction of the innermost frame and of the user's
    at: float = 0.0
    cpu_s: float = 0.0

    def goes_on(self, now: _Still) -> bool:
        """Check whether `now` is the same call."""
        if self.where != now.where:
            return False
        return now.cpu_s - self.cpu_s < _BUSY_S + _BUSY_SHARE * (now.at - self.at)


class PlaceWatch:
    """Remembers the place that was reported last. One for each task, used by its side thread."""

    def __init__(self, boot: TaskBoot):
        self._boot = boot
        self._reported: tuple[int, str, int, str, Wait, bool] = (0, "", 0, "", Wait.NONE, False)
        self._clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        self._still = _Still()
        self._inside: tuple[str, Wait] | None = None
        self._named_at = 0.0

    def look(self, cell: RunCell, caught: bool = False) -> LineReached | None:
        """Return the place of the cell, if it is not the one that was reported last.

        `caught` says whether KeyboardInterrupt was raised in the cell.
        """
        try:
            with looking():
                return self._look(cell, caught)
        except Exception:  # frames change meanwhile, and code has many forms: the next look succeeds
            return None

    def _look(self, cell: RunCell, caught: bool) -> LineReached | None:
        frame = main_frame()
        found = find_frame(frame, cell.filename)
        if frame is None or found is None or found.f_lineno is None:  # it is between two lines, for example
            return None
        now, cpu_s = time.monotonic(), time.clock_gettime(self._clock)
        where = (cell.cell, id(frame), frame.f_lasti, id(found), found.f_lasti)
        still = _Still(where, now, cpu_s)
        if not self._still.goes_on(still):
            self._still, self._inside = still, None
        elif now - self._named_at >= _AGAIN_S if self._inside else now - self._still.at >= _STILL_S:
            self._inside, self._named_at = name_wait(frame, found), now
        inside, wait = ("", Wait.DEBUGGER) if _is_debugged() else self._inside or ("", Wait.NONE)
        file, line = found.f_code.co_filename, found.f_lineno
        if not cell.filename and cell.call is None:  # it is tfmagic's own
            file, line = cell.filename, 0
        place = (cell.cell, file, line, inside, wait, caught)
        if place == self._reported:
            return None
        self._reported = place
        return LineReached(self._boot.task, self._boot.attempt, *place)


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """Collect no garbage meanwhile; needed around all code that reads frames of other threads.

    Python 3.11 makes frame objects when they are read. Making one can start the garbage collector, and
    deleting what it finds can let other threads run (TensorFlow's deleters do). The frame can have ended by
    then, and Python writes to its old memory: tasks crashed or hung. Python 3.12 and later collect at other
    moments.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def main_frame() -> FrameType | None:
    """Return the innermost frame of the main thread. Call it only while `looking`."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def find_frame(frame: FrameType | None, cell_file: str) -> FrameType | None:
    """Return the innermost frame of the cell; of a call, its outermost frame.

    `frame` is the innermost frame of the thread, `cell_file` the cell's file name, "" for a call.
    """
    outermost = None
    while frame is not None:
        name = frame.f_code.co_filename
        if cell_file and name == cell_file:
            return frame
        if own_code.leads_to_user(name):
            if outermost is not None:
                break  # the frames below are ours, which made the call
        else:
            outermost = frame
        frame = frame.f_back
    return None if cell_file else outermost


def _is_debugged() -> bool:
    """Check whether a thread stands in the debugger of an editor: in a function of debugpy's pydevd."""
    if "pydevd" not in sys.modules:
        return False
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_name in _SUSPENDED and frame.f_code.co_filename.endswith("pydevd.py"):
                return True
            frame = frame.f_back
    return False


def name_wait(frame: FrameType, users: FrameType) -> tuple[str, Wait]:
    """Name what the thread waits for: a collective where known, else the user's call.

    `frame` is the innermost frame of the thread, `users` its frame in the user's source. A thread that waits
    for another one is in that one's collective: a strategy makes its eager ones in threads of its own.
    """
    called = called_in(users)
    if frame.f_code.co_filename in WAITING_MODULES and (found := _name_other_threads(called)) is not None:
        return found
    step: FrameType | None = frame
    while step is not None and step is not users:
        file = step.f_code.co_filename
        if _is_op(step):
            return _name_op(step, called)
        for part, function, wait in _WAITS:
            if part in file and function in ("", step.f_code.co_name):
                return called, wait
        step = step.f_back
    return called, Wait.NONE


def called_in(frame: FrameType) -> str:
    """Return the call at which the frame is, as written: ``time.sleep``; "" if that is not known."""
    positions = list(frame.f_code.co_positions())
    index = frame.f_lasti // 2
    line, end_line, start, end = positions[index] if index < len(positions) else (None,) * 4
    if line is None or end_line is None or start is None or end is None:
        return ""
    lines = [linecache.getline(frame.f_code.co_filename, n).encode() for n in range(line, end_line + 1)]
    lines[-1] = lines[-1][:end]  # first, since it can be the same line
    lines[0] = lines[0][start:]
    try:
        parsed = ast.parse(b"".join(lines)).body[0]
        call = parsed.value if isinstance(parsed, ast.Expr) else None
        return ast.unparse(call.func)[:_NAME_CHARACTERS] if isinstance(call, ast.Call) else ""
    except (SyntaxError, ValueError, IndexError, RecursionError, MemoryError):
        return ""  # no call, or its source has changed, or a chain of hundreds of calls


def is_in_collective() -> bool:
    """Check whether a thread waits for an op in which other tasks take part."""
    with contextlib.suppress(Exception), looking():  # as in `PlaceWatch.look`
        return any(map(_waits_in_collective, sys._current_frames().values()))
    return False


def runs_in_threads() -> bool:
    """Check whether code that is in no installed package runs in another thread."""
    with contextlib.suppress(Exception), looking():  # as in `PlaceWatch.look`
        main = threading.main_thread().ident
        return any(_is_users(frame) for thread, frame in sys._current_frames().items() if thread != main)
    return True


def _is_users(frame: FrameType | None) -> bool:
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_INSTALLED) and not own_code.is_ours(file):
            return True
        frame = frame.f_back
    return False


def _waits_in_collective(frame: FrameType | None) -> bool:
    while frame is not None:
        if _is_op(frame):
            return any(op.startswith("Collective") for op in _ops_of(frame))
        frame = frame.f_back
    return False


def _is_op(frame: FrameType) -> bool:
    """Check whether the frame waits for an op of TensorFlow, or for a tf.function."""
    file = frame.f_code.co_filename
    return file.endswith(_EXECUTE) or _EAGER_OPS in file


def _name_op(frame: FrameType, called: str) -> tuple[str, Wait]:
    """Return the op, or the call of a tf.function, for which `frame` of execute.py waits."""
    ops = _ops_of(frame)
    found = {wait: op for start, wait in _OP_WAITS for op in ops if op.startswith(start)}
    may_run_python = Wait.DATASET in found or any("PyFunc" in op for op in ops)
    if may_run_python and data_reading.runs_python():
        return called, Wait.DATASET if Wait.DATASET in found else Wait.NONE
    if Wait.COLLECTIVE in found and Wait.DATASET in found:
        return called, Wait.DATASET if data_reading.reads() else Wait.STEP
    if Wait.COLLECTIVE in found:
        return _collective_name(found[Wait.COLLECTIVE]), Wait.COLLECTIVE
    return called, next(iter(found), Wait.NONE)


def _ops_of(frame: FrameType) -> tuple[str, ...]:
    """Return the op for which `frame` waits, and, of a tf.function, the ops in it."""
    if _EAGER_OPS in frame.f_code.co_filename:
        return (frame.f_code.co_name.title().replace("_", ""),)  # collective_reduce_v2 is CollectiveReduceV2
    name = frame.f_locals.get("op_name")
    name = name.decode() if isinstance(name, bytes) else str(name or "")
    return (name, *_ops_of_function(name))


def _name_other_threads(called: str) -> tuple[str, Wait] | None:
    """Return the collective in which another thread waits."""
    for frame in sys._current_frames().values():
        step: FrameType | None = frame
        while step is not None and not _is_op(step):
            step = step.f_back
        if step is not None and (found := _name_op(step, called))[1] in (Wait.COLLECTIVE, Wait.STEP):
            return found
    return None


def _collective_name(op: str) -> str:
    return next((name for start, name in _COLLECTIVES if op.startswith(start)), op)


@functools.lru_cache(maxsize=64)
def _ops_of_function(name: str) -> tuple[str, ...]:
    """Return the kinds of ops in a tf.function and in those that it calls; none if it is no function."""
    module = sys.modules.get("tensorflow.python.eager.context")
    current: Any = module and patches.TABLE.fits(patches.OPS) and module._context
    if not current or not current._initialized:
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
