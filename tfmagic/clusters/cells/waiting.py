"""Wait for a job in the thread that started it: show its output, answer its `input()`, handle Ctrl-C.

`finish` blocks its thread. `finish_async` leaves the event loop free, so that the buttons of a panel work.
Only the waiting thread displays, prints and reads the keyboard. While it waits for the user to type, a thread
"tfmagic-question" interrupts it as soon as the task that asked has ended.
"""

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

from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.cells.results import CellResult
from tfmagic.failures import ipython_tracebacks
from tfmagic.protocol.commands import AnswerInput
from tfmagic.protocol.events import InputAnswered, InputWanted
from tfmagic.serialization import exceptions
from tfmagic.supervisor.supervisor import Supervisor

_LOOK_S = 0.1


def finish(job: Job) -> CellResult:
    """Wait for a job that was started, show it, and settle it. Raise as `Job.settle` does.

    Ctrl-C interrupts the tasks, and a second Ctrl-C kills what is left. It does not interrupt this function,
    which returns only when the cell has ended.
    """
    try:
        watch(job)
    finally:
        job.ctrl_c.release()
    return job.settle()


async def finish_async(job: Job) -> CellResult:
    """Do as `finish`, while the event loop of this thread goes on and serves the page."""
    try:
        await wait_async(job, interrupts=True)
    finally:
        job.ctrl_c.release()
    return _settle_async(job)


def _settle_async(job: Job) -> CellResult:
    """Settle the job. StopIteration, which a coroutine cannot raise, becomes a RuntimeError."""
    try:
        return job.settle()
    except StopIteration as error:
        replacement = RuntimeError(f"the cell raised StopIteration({', '.join(map(repr, error.args))})")
        replacement.__notes__ = exceptions.notes_of(error)
        raise ipython_tracebacks.hide_our_frames(replacement.with_traceback(error.__traceback__)) from None


def wait(job: Job, timeout_s: float | None = None) -> bool:
    """Show a job until it ends; return False when the time has passed. Ctrl-C does not interrupt the job."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not job.done.wait(job.view.interval_s):
        look(job)
        if deadline is not None and time.monotonic() >= deadline:
            return False
    job.show_end()
    return True


def look(job: Job) -> None:
    """Show the new output of a job that runs, and answer its `input()`."""
    job.update()
    _answer_inputs(job)


async def finish_awaited(job: Job) -> CellResult:
    """Wait for a job that was started, while the event loop goes on.

    A cancellation interrupts the tasks, and is raised when they have ended; another one kills what is left.
    """
    import asyncio

    cancellation: asyncio.CancelledError | None = None
    while not job.has_shown_end:
        try:
            await wait_async(job)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):  # the loop has ended, so nothing can wait
                job.give_up()
                raise
            job.interrupt()
            cancellation = error
    if cancellation is not None:
        raise cancellation
    return _settle_async(job)


def watch(job: Job) -> None:
    """Wait until the job has ended. If waiting fails, interrupt the job."""
    try:
        wait(job)
    except BaseException:  # raised by the front end's display, for example: no cell runs on unseen
        job.give_up()
        job.done.wait()
        raise


async def wait_async(
    job: Job, timeout_s: float | None = None, *, interrupts: bool = False, answers: bool = True
) -> bool:
    """Do as `wait`, while the event loop of this thread goes on.

    Args:
        interrupts: Interrupt the job and wait for its end if this coroutine is cancelled.
        answers: Ask the user what the job asks; without, another waiter does.
    """
    import asyncio  # takes a tenth of a second, which a plain script need not pay

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    job.on_done(lambda: _call_soon(loop, ended.set))
    # the context holds the request of the page to which published output belongs
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
    except BaseException:  # as in `watch`; or the coroutine was cancelled
        if interrupts:
            job.give_up()
            job.done.wait()
            job.show_end()
        raise
    job.show_end()
    return True


def _call_soon(loop: Any, function: Callable[[], object], context: Any = None) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(function, context=context)


def _answer_inputs(job: Job) -> None:
    """Ask the user what the job asks, and send the answer to the task."""
    if not job.inputs:
        return
    job.update()  # a second time: an update shows what the one before it has read
    question = job.inputs.popleft()
    is_main = threading.current_thread() is threading.main_thread()
    # Ctrl-C must end the reading, even where an event loop has its own handler
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if is_main else None
    try:
        answer = _ask_user(question, lambda: job.done.is_set() or _has_ended(question, job.supervisor))
        if answer is not None:
            job.supervisor.ask(InputAnswered(question.task, answer))
    except KeyboardInterrupt:
        job.interrupt()
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _has_ended(question: InputWanted, supervisor: Supervisor) -> bool:
    cell = supervisor.state.cells.get(question.cell)
    return cell is None or question.task in cell.outcomes


def _ask_user(question: InputWanted, is_over: Callable[[], bool]) -> AnswerInput | None:
    """Ask the user for a line after a prompt with the task's name; return None if the task has ended."""
    if threading.current_thread() is not threading.main_thread():
        return _refuse(question, "a call in the background (Cluster.submit) has no keyboard")
    read = getpass.getpass if question.hidden else builtins.input
    try:
        text = _read_unless(is_over, lambda: read(f"[{question.task}] {question.prompt}"))
    except EOFError:
        return _refuse(question, "standard input has ended")
    except KeyboardInterrupt:
        raise
    except Exception as error:  # StdinNotImplementedError, or another one of the front end
        return _refuse(question, f"this front end cannot ask ({type(error).__name__}: {error})")
    return None if text is None else AnswerInput(question.number, text)


def _refuse(question: InputWanted, why: str) -> AnswerInput:
    message = (
        f"the cell called input() on {question.task}, but {why}. Pass the value as a notebook variable, or "
        "run the cell where there is an input box."
    )
    return AnswerInput(question.number, error=message)


def _read_unless(is_over: Callable[[], bool], read: Callable[[], str]) -> str | None:
    """Call `read`, and return its result; None if `is_over` became true before, which interrupts it."""
    lock, answered, withdrawn = threading.Lock(), threading.Event(), threading.Event()

    def watch() -> None:
        while not answered.wait(_LOOK_S):
            with lock:
                if not answered.is_set() and is_over():
                    withdrawn.set()
                    _thread.interrupt_main()
                    return

    watcher = threading.Thread(target=watch, name="tfmagic-question", daemon=True)
    try:
        watcher.start()
        text = read()
        with lock:
            answered.set()
        return text
    except KeyboardInterrupt:
        if not withdrawn.is_set():
            raise
        return None
    finally:
        answered.set()
        watcher.join()
