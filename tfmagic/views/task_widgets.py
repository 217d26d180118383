"""Widgets of tasks on the notebook's page: what they send waits here until the page's thread sends it on.

    CommsSent ── supervisor's thread ──→ CommQueue ── main thread, ten times a second ──→ mirrors ──→ page
    page ──→ mirror ──→ CommAnswered ──→ supervisor ──→ the task, when it is idle

A mirror stands for a widget in the kernel, as `tfmagic.views.widget_mirrors` makes it. It closes when its
task ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.comms import CommMessage, CommQueue
from tfmagic.protocol.events import CommAnswered, CommsSent, Event, TaskExited, TaskLost
from tfmagic.system import notices

if TYPE_CHECKING:
    from tfmagic.views.widget_mirrors import Mirrors

_FLUSH_S = 0.1
_FLUSH_MESSAGES, _FLUSH_BYTES = 50, 1 << 16  # a server drops what exceeds 1,000 messages or 1 MB a second
HEARD = (CommsSent, TaskExited, TaskLost)

Answer = Callable[[CommMessage], object]
Owner = tuple[TaskId, int]  # a task and its attempt


class WidgetPage:
    """The page of an ipykernel, whose main thread shows widgets."""

    def __init__(self, kernel: Any):
        self._kernel = kernel
        self._mirrors: Mirrors | None = None

    def call_later(self, delay_s: float, function: Callable[[], object]) -> None:
        """Run a function on the main thread when that is free. Any thread can call it.

        Do nothing if the kernel is none of ipykernel's, or ends now.
        """
        loop = getattr(self._kernel, "io_loop", None)
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.add_callback(lambda: loop.call_later(delay_s, function))

    @property
    def mirrors(self) -> Mirrors:
        if self._mirrors is None:
            from tfmagic.views.widget_mirrors import Mirrors  # imports ipywidgets

            self._mirrors = Mirrors(self._kernel)
        return self._mirrors


class TaskWidgets:
    """The widgets of the tasks of one cluster, on a page, if there is one.

    `ask` hands an event to the supervisor; `is_busy` returns whether a cell of the cluster runs.
    """

    def __init__(self, page: WidgetPage | None, ask: Callable[[Event], object], is_busy: Callable[[], bool]):
        self._page, self._ask, self._is_busy = page, ask, is_busy
        self._lock = threading.Lock()
        self._queue = CommQueue()
        self._owners: dict[str, Owner] = {}  # by comm
        self._is_scheduled, self._due, self._lost = False, 0.0, 0

    # -- the supervisor's thread --

    def hear(self, event: Event, state: object) -> None:
        """Note what widgets send, and close those of a task that has ended. Called with events of `HEARD`."""
        match event:
            case CommsSent(task, attempt, messages) if self._page is not None:
                with self._lock:
                    for message in messages:
                        self._add(message, (task, attempt))
                self._schedule()
            case TaskExited(task, attempt) | TaskLost(task, attempt) if self._owners:
                self._close([comm for comm, owner in self._owners.items() if owner == (task, attempt)])

    def end(self) -> None:
        """Close all widgets: the cluster has ended."""
        self._close(list(self._owners))

    def _add(self, message: CommMessage, owner: Owner) -> None:
        if message.kind == "comm_open":
            self._owners[message.comm] = owner
        elif message.kind == "comm_close":
            self._owners.pop(message.comm, None)
        self._lost += not self._queue.add(message)

    def _close(self, comms: Sequence[str]) -> None:
        if comms:
            with self._lock:
                for comm in comms:
                    del self._owners[comm]
                    self._queue.add(CommMessage("comm_close", comm))
            self._schedule()

    def _schedule(self) -> None:
        if self._page is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._page.call_later(_FLUSH_S, self._flush_scheduled)

    # -- the main thread --

    def _flush_scheduled(self) -> None:
        self._is_scheduled = False
        self.flush()
        if self._queue:
            self._schedule()

    def flush(self, everything: bool = False) -> None:
        """Send to the page what waits, or as much of it as the page can take. Only the main thread can."""
        is_due = everything or time.monotonic() >= self._due
        has_something = self._queue or (everything and self._lost)
        is_main = threading.current_thread() is threading.main_thread()
        if self._page is None or not (is_due and has_something and is_main):
            return
        self._due = time.monotonic() + _FLUSH_S
        with self._lock:
            limits = (None, None) if everything else (_FLUSH_MESSAGES, _FLUSH_BYTES)
            messages = [(m, self._owners.get(m.comm)) for m in self._queue.take(*limits)]
            lost = self._lost if everything else 0
            self._lost -= lost
        for message, owner in messages:
            try:
                self._page.mirrors.receive(message, self._answer(owner), self._is_busy)
            except Exception:  # of one widget; the others go on
                notices.tell(traceback.format_exc())
        if lost:
            why = f"at most {self._queue.limit} wait for the page; send fewer"
            notices.tell(f"tfmagic: {lost} messages of widgets were left out: {why}")

    def _answer(self, owner: Owner | None) -> Answer:
        return lambda message: owner and self._ask(CommAnswered(*owner, message))

    def control_panel(
        self, views: Sequence[tuple[str, str]], on_end: Callable[[], object]
    ) -> Mapping[str, Any] | None:
        """Return a display of those widgets (task, model id) that take input; None if there are none.

        It stays below the saved form of a cell, live as long as the tasks are; then `on_end` is called.
        """
        if self._page is None or not views:
            return None
        self.flush(everything=True)
        return self._page.mirrors.control_panel(views, on_end)
