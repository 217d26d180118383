"""Waiting for a cell, in the thread that asked for it: its output, its questions, and Ctrl-C.

Only this thread displays, prints and reads the keyboard. While it waits for the user to type, a thread
"tfmagic-question" watches whether the question still stands: when the task that asked has ended, it
interrupts the wait.
"""

from __future__ import annotations

import _thread
import builtins
import getpass
import threading
from collections.abc import Callable

from tfmagic.errors import TfmagicError
from tfmagic.events import AnswerInput, InputAnswered, InputWanted
from tfmagic.states import CellState
from tfmagic.supervisor import CellRun, Supervisor
from tfmagic.views import View

_LOOK_S = 0.1


def wait_for_cell(run: CellRun, view: View, supervisor: Supervisor) -> CellState:
    """The outcome; Ctrl-C interrupts the tasks, a second one kills what is left.

    Raises:
        TfmagicError: The cluster was stopped meanwhile.
    """
    __tracebackhide__ = True
    while not run.done.is_set():
        try:
            while not run.done.wait(view.interval_s):
                view.update()
                if run.inputs:
                    _answer(run.inputs.popleft(), run, supervisor)
        except KeyboardInterrupt:
            supervisor.interrupt()
    view.finish(run.outcome)
    if run.outcome is None:
        raise TfmagicError("the cluster was stopped while the cell ran") from supervisor.crashed
    return run.outcome


def _answer(wanted: InputWanted, run: CellRun, supervisor: Supervisor) -> None:
    """Ask the user what the task wants to know."""
    answer = _ask_user(wanted, lambda: run.done.is_set() or _has_ended(wanted, supervisor))
    if answer is not None:
        supervisor.ask(InputAnswered(wanted.task, answer))


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
