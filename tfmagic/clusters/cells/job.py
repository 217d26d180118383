"""A job is one cell or call of a cluster: started once, shown by a view, settled once.

    RunningCluster.begin ─→ start ─→ (the supervisor runs it, the view shows it) ─→ settle: results, or raise

`tfmagic.clusters.cells.waiting` waits for a job. A detached job has no waiter.
"""

from __future__ import annotations

import functools
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from tfmagic.clusters.cells.cell_plan import Options
from tfmagic.clusters.cells.results import CellResult
from tfmagic.errors import TfmagicError
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellRequested, CellReturned
from tfmagic.protocol.payload import release
from tfmagic.runs.cell_records import CellRecord
from tfmagic.supervisor.running_cell import RunningCell
from tfmagic.supervisor.state import CellState
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import notices, signal_handlers
from tfmagic.views.protocol import View
from tfmagic.views.task_widgets import TaskWidgets
from tfmagic.views.text import QuietView

CallLater = Callable[[Callable[[], object]], object]
Describe = Callable[[CellState | None], CellRecord]


class Job(RunningCell):
    """A cell or call under way. The supervisor and the views use only its base class, `RunningCell`.

    Args:
        options: How the cell runs.
        supervisor: Runs it.
        widgets: The widgets of its tasks.
        make_view: Returns the view of a job that was started.
        settle: Turns the outcome into results, or raises what the tasks raised.
        may_begin: See `RunningCell`.

    Attributes:
        run: The run folder of its cluster.
        number: The number of the cell, unique in this kernel.
        command: The command of one task; those of the others differ only in the variables that they carry.
        ctrl_c: Interrupts the job while a thread waits for it.
        has_shown_end: Whether the view has shown the end.
        describe: Returns the present record of the cell, from its outcome if it has one, after the start.
        note_hints: Keeps the hints on its end; called once, before the view shows that.
        found: What features have found out, or None, by their names, once the job was settled.
        announces_end: Whether a page tells the user when the job is done.
        partial: The results of the tasks that returned, once a job with `keep_going` was settled and others
            failed.
    """

    def __init__(
        self,
        request: CellRequested,
        options: Options,
        supervisor: Supervisor,
        widgets: TaskWidgets,
        make_view: Callable[[Job], View],
        settle: Callable[[Job, CellState], CellResult],
        may_begin: Callable[[], bool] | None = None,
    ):
        starts = {task: supervisor.run.log_bytes(task) for task in request.commands}
        super().__init__(request, starts, may_begin)
        self.options, self.supervisor, self.run = options, supervisor, supervisor.run
        self.number, self.command = request.cell, next(iter(request.commands.values()))
        self._widgets, self._make_view, self._settle = widgets, make_view, settle
        self.ctrl_c = CtrlC(self._press)
        self._is_sent, self._early_presses = False, 0  # Ctrl-C before it is sent is only counted
        self._view: View | None = None
        self.has_shown_end = False
        self.describe: Describe = _undescribed
        self.note_hints: Callable[[CellState], object] = lambda outcome: None
        self._call_later: CallLater | None = None
        self.found: dict[str, Any] = {}
        self.announces_end = False
        self.partial: CellResult | None = None

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """The tasks that run it."""
        return tuple(self.request.commands)

    @property
    def out(self) -> str:
        """The name to which the notebook binds the results, or ""."""
        return self.options.out

    @property
    def view(self) -> View:
        """The view that shows the cell. Raises `RuntimeError` before the start."""
        if self._view is None:
            raise RuntimeError("the cell has not been started")
        return self._view

    def start(self, takes_ctrl_c: bool) -> None:
        """Give the cell to the supervisor, and make its view.

        With `takes_ctrl_c`, Ctrl-C interrupts the cell until `waiting.finish`, which must follow.
        """
        if takes_ctrl_c:
            self.ctrl_c.take()
        try:
            self.supervisor.run_cell(self)
            self._is_sent = True  # before the count is read: a signal can come between two lines
            for _ in range(self._early_presses):
                self.interrupt()
            self._view = self._make_view(self)
        except BaseException:
            self.ctrl_c.release()
            self.give_up()  # it might have been sent, and nothing would show it
            raise

    def resume(self, starts: Mapping[TaskId, int], age_s: float) -> None:
        """Go on with a cell that a former kernel has sent, instead of starting it."""
        self.starts.update(starts)
        self.requested_at -= age_s
        self._is_sent = self.has_records = self.has_hints = True

    def show_resumed(self) -> None:
        """Make the view of a job that goes on."""
        self._view = self._make_view(self)

    def interrupt(self) -> None:
        """Interrupt the tasks that run it; a second time kills what is left."""
        self.supervisor.interrupt(cell=self.number)

    def give_up(self) -> None:
        """Interrupt the tasks that run it, and kill what is left: no user waits who could press again."""
        self.supervisor.interrupt(cell=self.number, insists=True)

    def _press(self) -> None:
        if self._is_sent:
            self.interrupt()
        else:
            self._early_presses += 1

    def show_now(self) -> None:
        """Let the view show the cell at its place as it is now."""
        try:
            self.view.show_now()
        except Exception:  # a display that fails must not cost the cell its results
            self._give_up_view()

    def update(self) -> None:
        """Let the view show what is new."""
        try:
            self._widgets.flush()
            self.view.update()
        except Exception:  # as above
            self._give_up_view()

    def show_end(self) -> None:
        """Let the view show the end. Do nothing a second time."""
        if self.has_shown_end:
            return
        self.has_shown_end = True
        try:
            if self.outcome is not None:
                self.note_hints(self.outcome)
            self._widgets.flush(everything=True)
            self.view.finish(self.outcome)
        except Exception:  # as above
            self._give_up_view()

    def is_shown_by(self, call_later: CallLater) -> None:
        """Note that an event loop updates the view; `call_later`, from any thread, runs a function there."""
        self._call_later = call_later

    def add_note(self, text: str) -> None:
        """Show news after the end, if an event loop has updated the view. Callable from any thread."""
        if self._call_later is not None and self.has_shown_end:
            self._call_later(functools.partial(self.view.add_note, text))

    def _give_up_view(self) -> None:
        """Print the view's exception once, and show nothing more; the logs have all output."""
        notices.tell(traceback.format_exc())
        self._view = QuietView(self.displays)

    def settle(self) -> CellResult:
        """Return the results of a cell that has ended.

        Raises:
            BaseException: What the tasks raised.
            TfmagicError: The cluster was stopped meanwhile.
        """
        outcome = self.outcome
        if outcome is None:
            what = "cell ran" if self.command.call is None else "call ran or waited"
            crash = self.supervisor.crashed
            why = f": {type(crash).__name__}: {crash}" if crash is not None else ""
            raise TfmagicError(f"the cluster was stopped while the {what}{why}") from crash
        try:
            return self._settle(self, outcome)
        finally:  # if a task raised, the others' values are not read
            for end in outcome.outcomes.values():
                if isinstance(end, CellReturned) and (end.value is not None or end.pulled):
                    release((end.value, *end.pulled.values()))


def _undescribed(cell: CellState | None) -> CellRecord:
    raise RuntimeError("the cell has not been started")


class CtrlC:
    """Turn Ctrl-C into a callback while this process waits for tasks: our own code is not interrupted.

    Call `on_press` at SIGINT between `take` and `release`, or inside a ``with`` block.

    It works in the main thread only, which alone gets signals, and not where SIGINT is ignored.
    """

    def __init__(self, on_press: Callable[[], object]):
        self._on_press = on_press
        self._former: Any = None

    def take(self) -> None:
        """Replace the present handler."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and callable(signal_handlers.handler_of(signal.SIGINT)):
            self._former = signal_handlers.set_handler(signal.SIGINT, lambda number, frame: self._on_press())

    def release(self) -> None:
        """Restore the former handler. Do nothing a second time."""
        if self._former is not None:
            signal_handlers.set_handler(signal.SIGINT, self._former)
            self._former = None

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self.release()
