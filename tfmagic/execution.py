"""Waiting for a cell, in the thread that asked for it: its output, its questions, and Ctrl-C.

Only this thread displays, prints and reads the keyboard. While it waits for the user to type, a thread
"tfmagic-question" watches whether the question still stands: when the task that asked has ended, it
interrupts the wait.
"""

from __future__ import annotations

import _thread
import builtins
import getpass
import signal
import threading
from collections.abc import Callable
from typing import Any

from tfmagic.errors import TfmagicError
from tfmagic.events import AnswerInput, CellRequested, InputAnswered, InputWanted
from tfmagic.states import CellState
from tfmagic.supervisor import CellRun, Supervisor
from tfmagic.views import View

_LOOK_S = 0.1


def run_cell(
    supervisor: Supervisor, request: CellRequested, make_view: Callable[[CellRun], View]
) -> tuple[CellRun, CellState]:
    """Start the cell, show it, and wait for its outcome.

    Ctrl-C interrupts the tasks, a second one kills what is left. It does not interrupt this code: only
    a cell that has ended is left.

    Raises:
        TfmagicError: The cluster was stopped meanwhile.
    """
    __tracebackhide__ = True
    with _Presses(supervisor) as presses:
        run = supervisor.run_cell(request)
        presses.begin()
        view = make_view(run)
        try:
            while not run.done.wait(view.interval_s):
                view.update()
                if run.inputs:
                    _answer(run.inputs.popleft(), run, supervisor, presses)
        except BaseException:  # whatever the front end does to a view: no cell runs on unseen
            supervisor.interrupt()
            run.done.wait()
            raise
        view.finish(run.outcome)
    if run.outcome is None:
        raise TfmagicError("the cluster was stopped while the cell ran") from supervisor.crashed
    return run, run.outcome


class _Presses:
    """Takes SIGINT for the time of a cell, where this is the thread that gets it."""

    def __init__(self, supervisor: Supervisor):
        self._supervisor = supervisor
        self._began = False
        self._early = 0
        self._before: Any = None

    def __enter__(self) -> _Presses:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def begin(self) -> None:
        """The cell is on its way: from now on a press is for it, and so are those before."""
        self._began = True
        for _ in range(self._early):
            self._supervisor.interrupt()

    def take(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and callable(signal.getsignal(signal.SIGINT)):  # who ignores it goes on doing so
            self._before = signal.signal(signal.SIGINT, self._press)

    def give_back(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _press(self, number: int, frame: object) -> None:
        if self._began:
            self._supervisor.interrupt()
        else:
            self._early += 1


def _answer(wanted: InputWanted, run: CellRun, supervisor: Supervisor, presses: _Presses) -> None:
    """Ask the user what the task wants to know."""
    presses.give_back()  # a press ends the reading
    try:
        answer = _ask_user(wanted, lambda: run.done.is_set() or _has_ended(wanted, supervisor))
        if answer is not None:
            supervisor.ask(InputAnswered(wanted.task, answer))
    except KeyboardInterrupt:
        supervisor.interrupt()
    finally:
        presses.take()


def _has_ended(wanted: InputWanted, supervisor: Supervisor) -> bool:
    cell = supervisor.state.cell
    return cell is None or cell.request.cell != wanted.cell or wanted.task in cell.outcomes


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
