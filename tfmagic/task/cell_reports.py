"""Receive the names that a cell brings to a task, and report how the cell has ended.

Names that cells have assigned are the task's own; they are reported, so that later cells do not bring them.
Used by `tfmagic.task.program`, on the main thread.
"""

import contextlib
import os
import re
import socket
import sys
import time
from typing import Any

import msgspec

from tfmagic.errors import TfmagicError
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.commands import CellKind, RunCell, TaskBoot
from tfmagic.protocol.events import CellRaised, CellReturned, FailedPull
from tfmagic.protocol.payload import Packed
from tfmagic.serialization import exceptions, packing, pickling, tracebacks
from tfmagic.system import own_code
from tfmagic.task import cell_position, exits, own_builtins, streams
from tfmagic.task.cell_parts import Attempt
from tfmagic.task.shell import CellRunner
from tfmagic.task.tensorflow import collectives, function_calls, interrupts

_OF_HISTORY = re.compile(r"_i?\d+|_i{1,3}|_{1,3}")  # inputs and values of earlier cells


class Reports:
    """The names of a task's cells, and the events that end each of them."""

    def __init__(self, boot: TaskBoot, channel: Channel, runner: CellRunner):
        self._boot, self._channel, self._runner = boot, channel, runner
        self._received = runner.received
        self._kept_text = ""
        self._reported: set[str] = set()
        self._names_before: set[str] = set()  # all of the namespace, at the last report
        self._hidden: set[str] = {*runner.builtin_names}  # and the names of the history, as they come

    def bind(self, cell: RunCell) -> None:
        """Put the names that travel with a cell into the task's namespace; delete those deleted there.

        Make the settings of the notebook that have changed: `sys.path` before, since values import modules.
        """
        self._set(cell.carried.early_settings)
        for packed in cell.carried.names:
            self._names_before = set()
            for names in pickling.load_names(packed, self._runner.namespace):
                self._received.bind(names)
        self._set(cell.carried.settings)

    def _set(self, settings: Packed | None) -> None:
        if settings is not None:
            make, args, kwargs = pickling.loads(settings, self._runner.namespace)
            make(*args, **kwargs)

    def report_return(self, cell: RunCell, attempt: Attempt, seconds: float) -> None:
        """Report that the cell returned its value, with the variables that the notebook pulls."""
        self._settle_names()
        value = attempt.value
        packed, problem = self._pack(value) if cell.want_value and value is not None else (None, "")
        pulled: dict[str, Packed] = {}
        failed: dict[str, FailedPull] = {}
        for name in cell.pull:
            if name not in self._runner.namespace:
                failed[name] = FailedPull("there is no such variable on the task", is_missing=True)
                continue
            item, reason = self._pack(self._runner.namespace[name])
            if item is None:
                failed[name] = FailedPull(reason)
            else:
                pulled[name] = item
        end = self._end_of(cell, attempt, seconds)
        event = CellReturned(
            **end,
            value=packed,
            value_error=problem,
            pulled=pulled,
            failed_pulls=failed,
            steps=function_calls.CALLS.most(),
            goes_on=cell_position.runs_in_threads(),
        )
        self._channel.send(event)

    def _end_of(self, cell: RunCell, attempt: Attempt, seconds: float) -> dict[str, Any]:
        """Return the fields that both events have."""
        return {
            "task": self._boot.task,
            "attempt": self._boot.attempt,
            "cell": cell.cell,
            "seconds": seconds,
            "log_end": streams.log_offset(),
            "owned": self._owned_names(),
            "lost_bytes": streams.take_lost_bytes(),
            "extras": attempt.extras,
        }

    def _pack(self, value: Any) -> tuple[Packed | None, str]:
        """Pack a value for the notebook; or return why it cannot travel."""
        try:
            pickled = pickling.dumps(value, self._runner.namespace, self._received.has, for_notebook=True)
            return packing.pack(pickled), ""
        except BaseException as error:  # the user's own __reduce__ can raise anything, SystemExit too
            return None, f"{type(value).__qualname__} cannot be pickled: {exceptions.describe(error)}"

    def report_error(self, cell: RunCell, attempt: Attempt, seconds: float) -> None:
        """Report that the cell raised. An exception that cannot travel goes as text."""
        error = attempt.error
        assert error is not None
        self._settle_names()
        where = self._where()
        interrupted = interrupts.is_interrupt(error)
        collectives.end_background()
        is_data_loss = exceptions.of_class(error, "__name__") == "DataLossError"
        explained = is_data_loss and _explain_data_loss(error, seconds)
        if reason := collectives.explain(error):
            explained = True
            exceptions.add_note(error, f"hint: {reason}")
        if issubclass(type(error), SystemExit):  # isinstance() would run code of the user's classes
            packed = exits.exit_error(error, where)
        else:
            main, has = self._runner.namespace, self._received.has
            packed = tracebacks.pack_error(error, main, has, where, cell.filename, self._keep_text)
            packed = msgspec.structs.replace(packed, explained=explained)
        if cell.kind is CellKind.EXIT:
            _print_end(error, packed.text, only_text=interrupted or issubclass(type(error), SystemExit))
        end, bound, raised_at = self._end_of(cell, attempt, seconds), attempt.bound, attempt.raised_at
        is_stopped, has_lost_peers = collectives.were_stopped_in_cell(), collectives.has_lost_peers(error)
        self._channel.send(
            CellRaised(
                **end,
                error=packed,
                interrupted=interrupted,
                bound=bound,
                raised_at=raised_at,
                stopped=is_stopped,
                lost_peers=has_lost_peers,
            )
        )

    def report_failure(self, cell: RunCell, failure: BaseException, seconds: float) -> None:
        """Report that the end of a cell could not be reported, because of `failure`."""
        replaced = own_builtins.put_back()  # first: all that follows needs them
        reason = exceptions.describe(failure) + (replaced and f": {replaced}; they are put back")
        error = TfmagicError(
            f"how the cell ended could not be sent to the notebook: {reason}. The task "
            "and its variables are kept"
        )
        packed = tracebacks.pack_error(error, {}, lambda name: False, self._where())
        boot, log_end, now = self._boot, streams.log_offset(), time.monotonic()
        raised = CellRaised(boot.task, boot.attempt, cell.cell, seconds, log_end, packed, bound=False)
        self._channel.send(msgspec.structs.replace(raised, raised_at=now))

    def _where(self) -> str:
        return f"{self._boot.task} (pid {os.getpid()}, {socket.gethostname()})"

    def _keep_text(self, text: str) -> str:
        """Write a text that is too long for the notebook to a file beside the log; return its path.

        The file before is deleted, since each can be as long as memory allows.
        """
        if self._kept_text:
            with contextlib.suppress(OSError):
                os.unlink(self._kept_text)
        folder = os.path.dirname(self._boot.stacks_path)
        name = f"{self._boot.task}-{self._boot.attempt}-{time.time_ns()}.error.txt"
        self._kept_text = os.path.join(folder, name)
        fd = os.open(self._kept_text, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return self._kept_text

    def _settle_names(self) -> None:
        """Give up the names that the cell has assigned, and report them, also if no other one is received."""
        if self._received.settle():
            self._names_before = set()

    def _owned_names(self) -> tuple[str, ...] | None:
        """Return the names that cells assigned, or None if they are those reported last."""
        names = set(self._runner.namespace)
        if names == self._names_before and not self._received:  # as in most cells
            return None
        self._names_before = names
        found = names - self._hidden
        for name in found - self._reported:  # each cell adds one or two to the history
            if not isinstance(name, str) or _OF_HISTORY.fullmatch(name):  # others can be in globals(), too
                self._hidden.add(name)
        found -= self._hidden
        found.difference_update(self._received.unchanged())
        if found == self._reported:
            return None
        self._reported = found
        return tuple(found)


def _print_end(error: BaseException, text: str, only_text: bool) -> None:
    """Print the exception that ends the process as Python does, by `sys.excepthook`, possibly the script's.

    `text` is printed if the hook fails, and instead of the exception if `only_text` is set.
    """
    if not only_text:
        try:
            frames = own_code.without_leading(error.__traceback__)
            BaseException.with_traceback(error, frames)
            sys.excepthook(type(error), error, frames)
            return
        except BaseException:  # of the script's hook
            sys.stderr.write("Error in sys.excepthook:\n")
    sys.stderr.write(text)


def _explain_data_loss(error: BaseException, seconds: float) -> bool:
    """Add a hint that names the file, which only this process can know. Return whether it was found."""
    from tfmagic.tfrecord import data_loss_hint

    hint = data_loss_hint.explain(error, seconds)
    if hint:
        exceptions.add_note(error, f"hint: {hint}")
    return bool(hint)
