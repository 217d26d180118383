"""A cell or call that is to run, runs, or has run: begun once, shown by a view, settled once.

    Cluster makes it ──→ start ──→ (the supervisor runs it, the view shows it) ──→ settle: results, or raise

Whoever waits for it is in `tfmagic.clusters.waiting`, or nobody is: then it goes on by itself.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

from tfmagic.clusters.outcomes import CellResult
from tfmagic.errors import TfmagicError
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellRequested, CellReturned
from tfmagic.protocol.payload import release
from tfmagic.supervisor.state import CellState
from tfmagic.supervisor.supervisor import RunningCell, Supervisor
from tfmagic.views.protocol import View
from tfmagic.views.text import QuietView

Settle = Callable[[RunningCell, CellState], CellResult]


class Job:
    """See the module.

    Args:
        make_view: What shows it, made when it starts.
        settle: Turns its outcome into results, or raises what the tasks raised.
        may_begin: See `RunningCell`.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        request: CellRequested,
        make_view: Callable[[RunningCell], View],
        settle: Settle,
        may_begin: Callable[[], bool] = lambda: True,
    ):
        self.supervisor, self.request, self._may_begin = supervisor, request, may_begin
        self._make_view, self._settle = make_view, settle
        self._run: RunningCell | None = None
        self._view: View | None = None
        self._is_shown = False
        self.call_later: Callable[[Callable[[], object]], object] | None = None  # on the loop that shows it
        self.presses: Any = None  # what takes Ctrl-C meanwhile: see `tfmagic.clusters.waiting`

    @property
    def number(self) -> int:
        """Of its cell."""
        return next(iter(self.request.commands.values())).cell

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(self.request.commands)

    @property
    def run(self) -> RunningCell:
        """The cell under way. Raises `RuntimeError` before the start."""
        if self._run is None:
            raise RuntimeError("the cell has not been started")
        return self._run

    @property
    def view(self) -> View:
        if self._view is None:
            raise RuntimeError("the cell has not been started")
        return self._view

    @property
    def outcome(self) -> CellState | None:
        """How it ended, as soon as it has."""
        return None if self._run is None else self._run.outcome

    def start(self, at_once: bool = False) -> None:
        """Hand it to the supervisor, and show it; see `Supervisor.run_cell`."""
        self._run = self.supervisor.run_cell(self.request, self._may_begin, at_once)
        self._view = self._make_view(self._run)

    @property
    def has_started(self) -> bool:
        return self._run is not None

    def update(self) -> None:
        """Let the view show what is new."""
        try:
            self.view.update()
        except Exception:  # a display that fails must not cost the cell its results
            self._give_up_view()

    def show_end(self) -> None:
        """Let the view show how it ended. Does nothing a second time."""
        if self._is_shown:
            return
        self._is_shown = True
        try:
            self.view.finish(self.run.outcome)
        except Exception:  # as above
            self._give_up_view()

    def add_note(self, text: str) -> None:
        """Show something that came after the end, where an event loop has shown the cell. From any thread."""
        if self.call_later is not None and self._is_shown:
            self.call_later(functools.partial(self.view.add_note, text))

    def _give_up_view(self) -> None:
        """Say what went wrong, once, and show nothing more; the logs have everything."""
        traceback.print_exc()
        self._view = QuietView(self.run.displays)

    def settle(self) -> CellResult:
        """The results of a cell that has ended.

        Raises:
            BaseException: What the tasks raised.
            TfmagicError: The cluster was stopped meanwhile.
        """
        __tracebackhide__ = True
        outcome = self.run.outcome
        if outcome is None:
            is_call = next(iter(self.request.commands.values())).call is not None
            what = "call ran or waited" if is_call else "cell ran"
            raise TfmagicError(f"the cluster was stopped while the {what}") from self.supervisor.crashed
        try:
            return self._settle(self.run, outcome)
        finally:  # where a task raised, the others' values are not read
            returned = [end for end in outcome.outcomes.values() if isinstance(end, CellReturned)]
            release(packed for end in returned for packed in (end.value, *end.pulled.values()))
