"""Call a function that might never return: a user's `__repr__` or `__reduce__`, or a remote file system.

Each call runs in a daemon thread "tfmagic-bounded" and is abandoned when it takes too long: an exception is
raised in the thread, which ends a loop in Python. A call that waits in C remains, idle. A call that
holds the interpreter in C cannot be abandoned, since then no other thread of the process can run.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class TookTooLong(TimeoutError):
    """The call did not return in time."""


class _Abandoned(BaseException):
    """Raised inside an abandoned call; an `except Exception` of the user's does not stop it."""


def raise_if_stopped(error: BaseException) -> None:
    """Raise an error again that comes from outside of the code that ran: Ctrl-C, or an abandoned call.

    For handlers of BaseException around code of the user's, which can raise everything else.
    """
    if issubclass(type(error), KeyboardInterrupt | _Abandoned):
        raise error


@dataclass(frozen=True, slots=True)
class Result:
    """The value of a call, or what it raised."""

    value: Any = None
    error: BaseException | None = None


class _Caller(threading.Thread):
    """Thread that makes the calls from number `start` on, one after the other."""

    def __init__(self, calls: Sequence[Callable[[], Any]], results: list[Result], start: int):
        super().__init__(name="tfmagic-bounded", daemon=True)
        self.calls, self.results, self.index = calls, results, start

    def run(self) -> None:
        try:
            while self.index < len(self.calls):
                self.results[self.index] = self._call(self.calls[self.index])
                self.index += 1
        except _Abandoned:
            pass

    def _call(self, call: Callable[[], Any]) -> Result:
        try:
            return Result(call())
        except _Abandoned:
            raise
        except BaseException as error:  # foreign code can raise anything, and that is its result
            return Result(error=error)

    def abandon(self) -> None:
        if self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.ident), ctypes.py_object(_Abandoned)
            )


def call_each(calls: Sequence[Callable[[], Any]], each_s: float, total_s: float) -> list[Result]:
    """Make the calls in another thread, one after the other, and return their results in order.

    The error of a call that takes longer than `each_s`, or would begin after `total_s`, is `TookTooLong`.
    """
    results = [Result(error=TookTooLong(f"took longer than {each_s:g} s"))] * len(calls)
    end = time.monotonic() + total_s
    index = 0
    while index < len(calls) and time.monotonic() < end:
        caller = _Caller(calls, list(results), index)
        caller.start()
        index = _watch(caller, each_s, end)
        results = list(caller.results)
    return results


def call(function: Callable[[], Any], seconds: float | Callable[[], float]) -> Any:
    """Return the value of one call. Raises what it raises, or `TookTooLong` after `seconds`.

    Where `seconds` is a function, it says how long to wait from now on, while the call makes progress; 0 ends
    the wait.
    """
    if callable(seconds):
        caller = _Caller([function], [Result(error=TookTooLong("made no progress"))], 0)
        caller.start()
        while caller.is_alive() and (left := seconds()) > 0:
            caller.join(left)
        if caller.is_alive():
            caller.abandon()
        (result,) = caller.results
    else:
        (result,) = call_each([function], seconds, seconds)
    if result.error is not None:
        raise result.error
    return result.value


def _watch(caller: _Caller, each_s: float, end: float) -> int:
    """Wait while the calls make progress; return the index from which another thread continues."""
    while True:
        at = caller.index
        caller.join(max(min(each_s, end - time.monotonic()), 0))
        if not caller.is_alive():
            return len(caller.calls)
        if caller.index == at or time.monotonic() >= end:
            caller.abandon()
            return caller.index + 1
