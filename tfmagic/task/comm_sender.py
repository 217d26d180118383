"""Send the messages of widgets to the kernel: from a thread of its own, at most 20 times a second.

An interrupt of a cell waits until a function of this module has ended: it would lose a message.
"""

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable

from tfmagic.protocol.channel import Channel, encode
from tfmagic.protocol.commands import TaskBoot
from tfmagic.protocol.comms import CommMessage, CommQueue
from tfmagic.protocol.events import CommsSent

_PAUSE_S = 0.05
_MESSAGE_BYTES = 1 << 26


class CommSender:
    """The messages that wait, and the thread "tfmagic-widgets", which starts with the first one.

    Args:
        after: Called by the thread each time when it has sent something.
    """

    def __init__(self, boot: TaskBoot, channel: Channel, after: Callable[[], None]):
        self._boot, self._channel, self._after = boot, channel, after
        # these queues take no lock of Python's: the garbage collector, which closes comms, can run in them
        self._inbox: queue.SimpleQueue[CommMessage] = queue.SimpleQueue()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_awake = False
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_used(self) -> bool:
        """Whether there has been a message."""
        return self._thread is not None

    def put(self, message: CommMessage) -> None:
        """Let a message be sent. Any thread can call it.

        Raises:
            ProtocolError: It is none that can be sent; the thread that sends would find out too late.
        """
        encode(CommsSent(self._boot.task, self._boot.attempt, (message,)))
        self._inbox.put(message)
        if self._thread is None:
            self._thread = threading.Thread(target=self._pump, name="tfmagic-widgets", daemon=True)
            self._thread.start()
        if not self._is_awake:
            self._is_awake = True
            self._wake.put(None)

    def flush(self) -> None:
        """Send what waits."""
        with self._sending:
            waiting = CommQueue(sys.maxsize)  # the kernel has a limit
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.add(self._inbox.get_nowait())
            while waiting:
                taken = tuple(waiting.take(size_bytes=_MESSAGE_BYTES))
                self._channel.send(CommsSent(self._boot.task, self._boot.attempt, taken))

    def _pump(self) -> None:
        with contextlib.suppress(OSError):  # the kernel is gone
            while True:
                self._wake.get()
                self._is_awake = False
                self.flush()
                self._after()
                time.sleep(_PAUSE_S)
