"""The signals that ask ``tfmagic run`` to end: from Ctrl-C, the terminal, a cloud or the batch system."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from tfmagic.frontends.cli.summary import SIGNALLED, StopReason

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class SignalReceived(BaseException):
    """A signal came before any task could get it. Not an Exception, so that no handler swallows it."""


class Signals:
    """Collects the signals that ask this process to end. One that is ignored, as by nohup, stays so."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._is_raising = False
        self._before: dict[int, Any] = {}

    @property
    def reason(self) -> StopReason:
        """Why the run stops, by the first signal."""
        return StopReason(SIGNALLED + self.received[0])

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Let a signal raise `SignalReceived`, in a long step that can be left half-way."""
        if self.received:
            raise SignalReceived
        self._is_raising = True
        try:
            yield
        finally:
            self._is_raising = False

    def __enter__(self) -> Signals:
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: object) -> None:
        self.received.append(number)
        if self._is_raising:
            raise SignalReceived

    def is_echo(self, number: int, handled: int) -> bool:
        """Check whether a further signal comes with the first one, and so asks for nothing more.

        The end of a terminal sends SIGHUP twice, from the shell and from the kernel. systemd ends a session
        with SIGTERM and SIGHUP at once.
        """
        asked = [each for each in self.received[:handled] if each != signal.SIGHUP]
        return number == signal.SIGHUP or (self.received[0] == signal.SIGHUP and len(asked) == 1)
