"""Interrupt a thread that waits inside TensorFlow, where no KeyboardInterrupt arrives.

Measured on TensorFlow 2.21: SIGINT ends Python code, eager loops and a coordinator's join at once. It does
not end a tf.function that waits (for a queue, an iterator, a while loop, a collective), but a cancellation
ends that within 10 ms. Only SIGKILL ends an eager `for x in dataset` or `q.dequeue()`.

No Python runs while a tf.data iterator is deleted, by the garbage collector for example. On a busy machine
that can take up to 60 s: the iterator wakes its thread that tunes the pipeline a moment before it sets what
that thread checks, and then waits for the end of the thread's interval.
"""

import abc
import operator
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from tfmagic.protocol import channel
from tfmagic.protocol.commands import RunCell
from tfmagic.task import cell_position, comm_sender, data_reading
from tfmagic.task.cell_parts import Attempt, CellPart
from tfmagic.task.tensorflow import function_calls, loopback_only, patches

_TENSORFLOW = "/tensorflow/python/"
_ERRORS = "/tensorflow/python/framework/errors_impl.py"
_ERRORS_OF_INTERRUPTS = ("CancelledError", "UnavailableError", "UnknownError")
_ABC = abc.ABCMeta.__instancecheck__.__code__.co_filename
_NO_INTERRUPT = {
    _ABC,
    loopback_only.__file__,
    channel.__file__,
    comm_sender.__file__,
    __file__,
}
_STILL_S = 0.04  # in one call, without computing, after a peer has failed: then it waits
_JOIN_S = 0.02
_BUSY = 0.5  # share of one core above which a process computes


def never_inside(file: str) -> None:
    """Let no interrupt arrive inside the functions of a module, such as one that holds a lock."""
    _NO_INTERRUPT.add(file)


class Interrupts(CellPart):
    """The interrupts of the cell that runs, and the tf.functions that it calls."""

    def __init__(self) -> None:
        # of the two below; reentrant, since a finalizer can run a function meanwhile
        self.lock = threading.RLock()
        self.calls_under_way: weakref.WeakSet[Any] = weakref.WeakSet()
        self.is_cancelled = False
        self.is_raised = False  # whether KeyboardInterrupt was raised in the cell
        self.is_late = False  # whether it is to be raised again, since TensorFlow makes another error of it
        self.is_held = False  # whether all tasks start their first strategy: each waits in C++ for all others
        self._entered: Scopes | None = None

    def begin(self, cell: RunCell) -> None:
        """Forget that the last cell was cancelled, and note the scopes that are entered."""
        self.is_cancelled = self.is_raised = self.is_late = self.is_held = False
        self._entered = take_scopes()

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """Leave the scopes that an interrupt has left entered."""
        if attempt.error is not None and is_interrupt(attempt.error):
            put_back(self._entered)

    def cancel_ops(self) -> None:
        """Cancel the tf.functions that the cell runs now and later. For the side thread."""
        with self.lock:
            self.is_cancelled = True
            managers = list(self.calls_under_way)
        for manager in managers:
            manager.start_cancel()


STATE = Interrupts()


def with_manager(own_context: Callable[[], Any]) -> Callable[[], Any]:
    """Run each call of a tf.function in this process under a cancellation manager of its own, and count it.

    Replaces ``cancellation.context``, which only `Context.call_function` calls, once a call. TensorFlow's own
    context manager is no solution: it sets a process-wide variable, which `ClusterCoordinator` replaces. One
    manager for several calls is none either: a function that fails cancels its manager, and every later
    function under it raises CancelledError before it starts.

    Only `call_function` refers to a manager, so those that are alive belong to running calls.
    """
    from tensorflow.python.eager import cancellation

    counts = patches.TABLE.fits(patches.CALLS)

    class CallManager(cancellation.CancellationManager):  # TensorFlow is untyped
        __slots__ = ("__weakref__",)

    def context() -> Any:
        if counts:
            with STATE.lock:
                function_calls.CALLS.note(sys._getframe(1))
        given = own_context()
        if given is not None:
            return given
        manager = CallManager()
        with STATE.lock:
            STATE.calls_under_way.add(manager)
            is_cancelled = STATE.is_cancelled
        if is_cancelled:
            manager.start_cancel()
        return manager

    return context


def joining_promptly(original: Callable[..., None]) -> Callable[..., None]:
    """Let a strategy whose `run` was interrupted wait no longer than needed for its threads.

    `Coordinator.join` sleeps twice as long each time. And a thread waited for ever that cleared its event
    just after the strategy had set it, to let the thread see the stop: `join` gave up after 120 s (once in a
    hundred interrupts on a busy machine).
    """

    def join(
        self: Any, threads: Any = None, stop_grace_period_secs: float = 120, *rest: Any, **options: Any
    ) -> None:
        given, until = list(threads or ()), float("inf")
        while alive := [thread for thread in given if thread.is_alive()]:
            if self.should_stop():
                until = min(until, time.monotonic() + stop_grace_period_secs)
                if time.monotonic() >= until:
                    break
                for event in (getattr(thread, "should_run", None) for thread in alive):
                    if event is not None:
                        event.set()
            alive[0].join(_JOIN_S)
        left = None if threads is None else given  # an iterator is used up
        original(self, left, max(min(until - time.monotonic(), stop_grace_period_secs), 0), *rest, **options)

    return join


def can_interrupt(frame: FrameType | None) -> bool:
    """Check whether KeyboardInterrupt can be raised in this frame without damage. It cannot:

    - inside an isinstance(): TensorFlow's C++ takes the exception for "yes" and remembers that for the type;
      a list was a composite tensor from then on (one in twenty interrupts while a function was traced),
    - in Python's import system, which would leave C++ modules half imported,
    - while TensorFlow's C++ makes its exception of a cancelled op: it makes a RuntimeError of both, which an
      `except Exception` of the program takes for a failure, and the interrupt was lost,
    - while a message is sent, since half of it would be sent, or lost before it is sent,
    - in our function that C++ calls to start a server,
    - while TensorFlow's context starts: half started, with its port taken, it can serve no strategy,
    - where TensorFlow's C++ asks for the context of a `tf.py_function`: it aborts the process then, also
      without tfmagic,
    - from the moment in which all tasks have met to start their first strategy.
    """
    if STATE.is_held:
        return False
    if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        return False
    if frame is not None and frame.f_code.co_filename.endswith(_ERRORS):
        STATE.is_late = True
        return False
    while frame is not None:
        code = frame.f_code
        if code.co_filename in _NO_INTERRUPT or (
            code.co_name in ("ensure_initialized", "_ctx") and _TENSORFLOW in code.co_filename
        ):
            return False
        frame = frame.f_back
    return True


def is_in_py_function(frame: FrameType | None) -> bool:
    """Check whether TensorFlow's C++ has called this code: it makes an UnknownError of what that raises."""
    while frame is not None and not frame.f_code.co_filename.endswith(data_reading.CALLED_BY_TENSORFLOW):
        frame = frame.f_back
    return frame is not None


def is_interrupt(error: BaseException) -> bool:
    """Check whether this is a KeyboardInterrupt, also in the forms that TensorFlow's bindings make of it."""
    kind = type(error)
    if issubclass(kind, KeyboardInterrupt) or (STATE.is_late and kind.__name__ in _ERRORS_OF_INTERRUPTS):
        return True
    if (
        STATE.is_raised and type(error) is SystemError
    ):  # of C code that went on with the result of a failed call
        return True
    kind = type(error)
    if (
        not (kind is RuntimeError or kind is SystemError)
        or not error.args
        or not isinstance(error.args[0], str)
    ):
        return False
    text = error.args[0]
    return ("MISMATCH" in text and "KeyboardInterrupt" in text) or (
        "with an exception set" in text and isinstance(error.__cause__, KeyboardInterrupt)
    )


class StuckWatch:
    """Detects that the main thread waits inside TensorFlow: the same call lasts, without computing.

    Called repeatedly by the side thread. Keeps the frame of the call, so that no other frame takes its place
    in memory.
    """

    def __init__(self) -> None:
        self._call: FrameType | None = None
        self._since = self._cpu_s = 0.0

    def is_stuck(self) -> bool:
        """Look again; return whether the main thread waits."""
        with cell_position.looking():
            call = call_in_tensorflow()
        now, cpu_s = time.monotonic(), time.process_time()
        if call is None or call is not self._call:
            self._call, self._since, self._cpu_s = call, now, cpu_s
            return False
        still_s = now - self._since
        if still_s < _STILL_S:
            return False
        if cpu_s - self._cpu_s > _BUSY * still_s:
            self._since, self._cpu_s = now, cpu_s
            return False
        return True


def call_in_tensorflow() -> FrameType | None:
    """Return the frame in which the main thread is inside TensorFlow, or None.

    A strategy's eager `run` makes its collectives in threads of its own, for which the main thread waits in
    Python's library.
    """
    frame = cell_position.main_frame()
    while frame is not None and frame.f_code.co_filename in cell_position.WAITING_MODULES:
        frame = frame.f_back
    return frame if frame is not None and _TENSORFLOW in frame.f_code.co_filename else None


# ---- scopes of TensorFlow ------------------------------------------------------------------------

_SETTINGS = ("is_eager", "scope_name", "device_name", "device_spec")
_get_settings = operator.attrgetter(*_SETTINGS)


class Scopes(NamedTuple):
    """The scopes that a thread has entered, and the context's settings."""

    graphs: list[Any]
    strategies: list[Any]
    switches: list[Any] | None
    settings: tuple[Any, ...]


def take_scopes() -> Scopes | None:
    """Return the scopes that are entered now. Takes microseconds."""
    if not patches.TABLE.fits(patches.SCOPES):
        return None
    ops, context = _ops(), _context()
    graphs, strategies = ops._default_graph_stack.stack, ops.get_default_graph()._distribution_strategy_stack
    if context is None:  # TensorFlow has not been used: its first values
        return Scopes(list(graphs), list(strategies), None, (True, "", "", None))
    settings = _get_settings(context._thread_local_data)
    return Scopes(list(graphs), list(strategies), list(context.context_switches.stack), settings)


def put_back(scopes: Scopes | None) -> None:
    """Enter exactly these scopes, after an interrupt.

    A KeyboardInterrupt inside an ``__enter__`` or ``__exit__`` leaves a device, a graph or a strategy entered
    for good: later cells then ran on an "unknown device" (once in twenty interrupts of code that makes
    tensors).
    """
    if scopes is None:
        return
    ops, context = _ops(), _context()
    ops._default_graph_stack.stack[:] = scopes.graphs
    ops.get_default_graph()._distribution_strategy_stack[:] = scopes.strategies
    if context is None:
        return
    switches = context.context_switches.stack
    switches[:] = switches[:1] if scopes.switches is None else scopes.switches
    for name, value in zip(_SETTINGS, scopes.settings, strict=True):
        if name == "device_spec" and value is None:
            value = sys.modules["tensorflow.python.framework.device"].DeviceSpec.from_string("")
        setattr(context._thread_local_data, name, value)


def _ops() -> Any:
    return sys.modules["tensorflow.python.framework.ops"]


def _context() -> Any:
    return sys.modules["tensorflow.python.eager.context"]._context
