"""Waiting for a cell, in the thread that asked for it: its output, its questions, and Ctrl-C.

Two ways to wait, alike in all but this: `finish` blocks its thread, `finish_async` leaves the event loop
free, so that the buttons of a panel work. Only this thread displays, prints and reads the keyboard. While it
waits for the user to type, a thread "tfmagic-question" watches whether the question still stands: when the
task that asked has ended, it interrupts the wait.
"""

from __future__ import annotations

import _thread
import builtins
import contextlib
import contextvars
import functools
import getpass
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from tfmagic.clusters.job import Job
from tfmagic.clusters.outcomes import CellResult
from tfmagic.failures import ipython_tracebacks
from tfmagic.protocol.commands import AnswerInput
from tfmagic.protocol.events import InputAnswered, InputWanted
from tfmagic.serialization import exceptions
from tfmagic.supervisor.supervisor import Supervisor

_LOOK_S = 0.1


def finish(job: Job) -> CellResult:
    """Show a job that has begun, wait for it, and settle it; this thread does nothing else meanwhile.

    Ctrl-C interrupts the tasks, a second one kills what is left. It does not interrupt this code: only
    a cell that has ended is left.

    Raises:
        As `Job.settle`.
    """
    __tracebackhide__ = True
    try:
        watch(job)
    finally:
        job.ctrl_c.give_back()
    return job.settle()


async def finish_async(job: Job) -> CellResult:
    """As `finish`, while the event loop of this thread goes on: what a page asks for is done meanwhile."""
    __tracebackhide__ = True
    try:
        await _wait_async(job, interrupts=True)
    finally:
        job.ctrl_c.give_back()
    return _settle_async(job)


def _settle_async(job: Job) -> CellResult:
    """As `Job.settle`; StopIteration, which no coroutine may raise, becomes the cause of another error."""
    __tracebackhide__ = True
    try:
        return job.settle()
    except StopIteration as error:
        told = RuntimeError(f"the cell raised StopIteration({', '.join(map(repr, error.args))})")
        told.__notes__ = exceptions.notes_of(error)
        raise ipython_tracebacks.dress(told.with_traceback(error.__traceback__)) from None


def wait(job: Job, timeout_s: float | None = None) -> bool:
    """Show a job that was started until it ends; False when the time has passed. Ctrl-C leaves it alone."""
    __tracebackhide__ = True  # of pytest-timeout, which raises here
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not job.done.wait(job.view.interval_s):
        look(job)
        if deadline is not None and time.monotonic() >= deadline:
            return False
    job.show_end()
    return True


def look(job: Job) -> None:
    """Show what is new of a job that runs, and answer what it asks."""
    job.update()
    _answer_inputs(job)


async def wait_async(job: Job, timeout_s: float | None = None) -> bool:
    """As `wait`, while the event loop of this thread goes on."""
    return await _wait_async(job, timeout_s=timeout_s)


async def finish_awaited(job: Job) -> CellResult:
    """Wait for a job that was started, while the event loop goes on; whoever awaits it may be cancelled.

    Then the tasks are interrupted, and the loop goes on until they have ended; another cancellation kills
    what is left.
    """
    __tracebackhide__ = True
    import asyncio

    try:
        await _wait_async(job)
    except asyncio.CancelledError:
        await _interrupt_async(job)
        raise
    except BaseException:  # the loop has ended, and nobody can wait
        job.interrupt()
        raise
    return _settle_async(job)


async def _interrupt_async(job: Job) -> None:
    import asyncio

    job.interrupt()
    while not job.done.is_set():
        try:
            await _wait_async(job)
        except asyncio.CancelledError:
            job.interrupt()


async def follow(job: Job) -> None:
    """Show a job that nobody waits for to its end; what it asks is answered by who waits."""
    await _wait_async(job, answers=False)


def watch(job: Job) -> None:
    """As `wait`, to the end; a job that nobody can watch any more is interrupted."""
    __tracebackhide__ = True
    try:
        wait(job)
    except BaseException:  # whatever the front end does to a view: no cell runs on unseen
        job.interrupt()
        job.done.wait()
        raise


async def _wait_async(
    job: Job, *, interrupts: bool = False, timeout_s: float | None = None, answers: bool = True
) -> bool:
    import asyncio  # costs a tenth of a second that a plain script need not pay

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    job.on_done(lambda: _call_soon(loop, ended.set))
    # the context says to which request on the page belongs what is published
    job.is_shown_by(functools.partial(_call_soon, loop, context=contextvars.copy_context()))
    try:
        while not job.done.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), job.view.interval_s)
                break
            job.update()
            if answers:
                _answer_inputs(job)
            if deadline is not None and time.monotonic() >= deadline:
                return False
    except BaseException:  # as above; and somebody may cancel what is awaited
        if interrupts:
            job.interrupt()
            job.done.wait()
            job.show_end()
        raise
    job.show_end()
    return True


def _call_soon(loop: Any, function: Callable[[], object], context: Any = None) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
        loop.call_soon_threadsafe(function, context=context)


def _answer_inputs(job: Job) -> None:
    if job.inputs:
        job.update()  # twice: a look shows what was there at the look before
        _answer(job.inputs.popleft(), job)


def _answer(wanted: InputWanted, job: Job) -> None:
    """Ask the user what the task wants to know."""
    is_main = threading.current_thread() is threading.main_thread()
    # a press ends the reading: whatever handler there was, such as that of an event loop
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if is_main else None
    try:
        answer = _ask_user(wanted, lambda: job.done.is_set() or _has_ended(wanted, job.supervisor))
        if answer is not None:
            job.supervisor.ask(InputAnswered(wanted.task, answer))
    except KeyboardInterrupt:
        job.interrupt()
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _has_ended(wanted: InputWanted, supervisor: Supervisor) -> bool:
    cell = supervisor.state.cells.get(wanted.cell)
    return cell is None or wanted.task in cell.outcomes


def _ask_user(wanted: InputWanted, is_over: Callable[[], bool]) -> AnswerInput | None:
    """What the user types, labelled with the task; None where the question is no longer asked."""
    if threading.current_thread() is not threading.main_thread():
        return _refuse(wanted, "a call in the background (Cluster.submit) has no keyboard")
    read = getpass.getpass if wanted.hidden else builtins.input
    question = _Question(is_over)
    try:
        text = question.ask(lambda: read(f"[{wanted.task}] {wanted.prompt}"))
    except EOFError:
        return _refuse(wanted, "standard input has ended")
    except KeyboardInterrupt:
        raise
    except Exception as error:  # StdinNotImplementedError of the front end, and what others raise
        return _refuse(wanted, f"this front end cannot ask ({type(error).__name__}: {error})")
    return None if text is None else AnswerInput(wanted.number, text)


def _refuse(wanted: InputWanted, why: str) -> AnswerInput:
    message = (
        f"the cell called input() on {wanted.task}, but {why}. Pass the value as a notebook variable, or "
        "run the cell where there is an input box."
    )
    return AnswerInput(wanted.number, error=message)


class _Question:
    """A read of the keyboard that ends when nobody needs the answer any more."""

    def __init__(self, is_over: Callable[[], bool]):
        self._is_over = is_over
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._withdrawn = False

    def ask(self, read: Callable[[], str]) -> str | None:
        """What `read` returns; None when the question was withdrawn."""
        watcher = threading.Thread(target=self._watch, name="tfmagic-question", daemon=True)
        try:
            watcher.start()
            text = read()
            with self._lock:
                self._answered.set()
        except KeyboardInterrupt:
            self._answered.set()
            if not self._withdrawn:
                raise
            return None
        except BaseException:
            self._answered.set()
            raise
        finally:
            watcher.join()
        return text

    def _watch(self) -> None:
        while not self._answered.wait(_LOOK_S):
            with self._lock:
                if not self._answered.is_set() and self._is_over():
                    self._withdrawn = True
                    _thread.interrupt_main()
                    return
