"""Wait by messages: for other tasks at a barrier, and for the user's input.

The waiting thread sends a request through the channel; the side thread brings the answer. Messages work on
every backend, a barrier breaks when a task ends, and a wait in Python can be interrupted.
"""

import itertools
import queue
import threading
from collections import Counter

from IPython.core.error import StdinNotImplementedError

from tfmagic.protocol.channel import Channel
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import AnswerInput, RunCell, TaskBoot
from tfmagic.protocol.events import BarrierReached, InputWanted
from tfmagic.task import streams
from tfmagic.task.cell_parts import CellPart


class Barriers(CellPart):
    """The barriers of this task. `wait` is called by the main thread, `open` by the side thread."""

    def __init__(self, boot: TaskBoot, channel: Channel):
        self._boot, self._channel = boot, channel
        self._answers: queue.SimpleQueue[tuple[str, str, int]] = queue.SimpleQueue()
        self._counts: Counter[str] = Counter()

    def open(self, name: str, reason: str, place: int = 0) -> None:
        """Let the waiting thread continue as number `place` that came; with a reason, break the barrier."""
        self._answers.put((name, reason, place))

    def begin(self, cell: RunCell) -> None:
        """Count the barriers from one again, and drop answers to those of an earlier cell."""
        self._counts.clear()
        self._answers = queue.SimpleQueue()

    def wait(self, cell: RunCell, kind: str, members: tuple[TaskId, ...], timeout_s: float | None) -> int:
        """Wait for `members` in this cell; return this task's place in the order of their coming, from 0 on.

        The cells of a group do not count their barriers: a process can be a later one than its peers'.

        Raises:
            threading.BrokenBarrierError: A member ended or failed, or `timeout_s` passed.
        """
        self._counts[kind] += 1
        name = kind if cell.group else f"{kind} {self._counts[kind]}"
        boot, number = self._boot, cell.group or cell.cell
        self._channel.send(BarrierReached(boot.task, boot.attempt, name, members, timeout_s, number))
        while True:
            answered, reason, place = self._answers.get()
            if answered != name:
                continue  # the answer to a barrier for which this task no longer waits
            if reason:
                raise threading.BrokenBarrierError(f"{name}: {reason}")
            return place


class Keyboard:
    """The user's input in the notebook. `ask` is called by any thread, `type` by the side thread."""

    def __init__(self, boot: TaskBoot, channel: Channel):
        self._boot, self._channel = boot, channel
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[AnswerInput]] = {}

    def ask(self, cell: int, prompt: str, hidden: bool) -> str:
        """Return the text that the user types.

        Raises:
            StdinNotImplementedError: The notebook takes no input.
        """
        number = next(self._numbers)
        answers = self._waiting[number] = queue.SimpleQueue()
        streams.flush_all()
        wanted = InputWanted(
            self._boot.task, self._boot.attempt, cell, streams.log_offset(), number, str(prompt), hidden
        )
        self._channel.send(wanted)
        try:
            answer = answers.get()
        finally:
            del self._waiting[number]
        if answer.error:
            raise StdinNotImplementedError(answer.error)
        return answer.text

    def type(self, answer: AnswerInput) -> None:
        """Bring the text that was typed."""
        if (answers := self._waiting.get(answer.number)) is not None:
            answers.put(answer)
