"""Calling code that may never come back: a user's `__repr__`, `__str__`, `__reduce__`, `__setstate__`.

Each call runs in a thread of its own name, "tfmagic-bounded", and is abandoned when it takes too long:
an exception is raised in it, which ends a loop in Python. What waits in C stays behind, idle, in a
daemon thread. A call that holds the interpreter in C cannot be left; nothing in the process can.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class TookTooLong(Exception):
    """The call did not come back in time."""


class _Abandoned(BaseException):
    """Raised inside an abandoned call; no `except Exception` of the user's stops it."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gave: its value, or what it raised."""

    value: Any = None
    error: BaseException | None = None


class _Caller(threading.Thread):
    """Makes the calls from `start` on, one after the other."""

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
        except BaseException as error:  # foreign code may raise anything, and that is its result
            return Result(error=error)

    def abandon(self) -> None:
        if self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.ident), ctypes.py_object(_Abandoned)
            )


def call_each(calls: Sequence[Callable[[], Any]], each_s: float, total_s: float) -> list[Result]:
    """Make every call; one that takes longer than `each_s`, or comes after `total_s`, is `TookTooLong`.

    Args:
        calls: Functions without arguments. They run in another thread, one after the other.
        each_s: Seconds for one of them.
        total_s: Seconds for all of them.
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


def call(function: Callable[[], Any], seconds: float) -> Any:
    """The value of one call.

    Raises:
        TookTooLong: It did not come back within `seconds`.
        BaseException: What the call raised.
    """
    (result,) = call_each([function], seconds, seconds)
    if result.error is not None:
        raise result.error
    return result.value


def _watch(caller: _Caller, each_s: float, end: float) -> int:
    """Wait while the calls make progress; the index from which another caller goes on."""
    while True:
        at = caller.index
        caller.join(max(min(each_s, end - time.monotonic()), 0))
        if not caller.is_alive():
            return len(caller.calls)
        if caller.index == at or time.monotonic() >= end:
            caller.abandon()
            return caller.index + 1
