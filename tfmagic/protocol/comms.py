"""Messages of comms, by which a widget and its page talk to each other, and the queue in which they wait."""

import itertools
import json
from typing import Any, Literal

from tfmagic.protocol.payload import Record

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"  # the type of a display of a widget
Kind = Literal["comm_open", "comm_msg", "comm_close"]


class CommMessage(Record, frozen=True):
    """A message of Jupyter's protocol for comms, in either direction.

    Attributes:
        comm: The id of the comm, which no other task uses.
        data, metadata: JSON.
        sets: The names of the values that it sets, if it is an update of a widget's state; else ().
        target: Which part of the page it is for; only of a `comm_open`.
    """

    kind: Kind
    comm: str
    data: bytes = b"{}"
    metadata: bytes = b"{}"
    buffers: tuple[bytes, ...] = ()
    sets: tuple[str, ...] = ()
    target: str = ""
    target_module: str | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.data) + sum(map(len, self.buffers))


def updated_names(data: Any) -> tuple[str, ...]:
    """Return the names of the values that the data of a message set, if it is an update; else ()."""
    if isinstance(data, dict) and data.get("method") == "update" and isinstance(data.get("state"), dict):
        return tuple(map(str, data["state"]))
    return ()


class CommQueue:
    """Messages that wait, in order. An update joins the last one of its comm if that still waits.

    So a million updates of a progress bar take the place of one. Nothing joins an update that is before
    another kind of message: the page handles that in the state in which it was sent.

    Args:
        limit: How many messages can wait that are no state; more are refused.
    """

    def __init__(self, limit: int = 1000):
        self.limit = limit
        self._messages: dict[int, CommMessage] = {}
        self._numbers = itertools.count()
        self._last_updates: dict[str, int] = {}  # by comm: the number of its message
        self._limited = set[int]()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: CommMessage) -> bool:
        """Append a message; return False if there is no room for it."""
        number = self._last_updates.get(message.comm) if message.sets else None
        if number is not None and (joined := _join(self._messages[number], message)) is not None:
            self._messages[number] = joined
            return True
        is_limited = message.kind == "comm_msg" and (number is not None or not message.sets)
        if is_limited and len(self._limited) >= self.limit:
            return False
        number = next(self._numbers)
        self._messages[number] = message
        if is_limited:
            self._limited.add(number)
        if message.sets:
            self._last_updates[message.comm] = number
        else:
            self._last_updates.clear()
        return True

    def take(self, count: int | None = None, size_bytes: int | None = None) -> list[CommMessage]:
        """Remove the first messages and return them: at least one, at most so many and so large ones."""
        taken: list[CommMessage] = []
        room = size_bytes or 0
        for number in list(itertools.islice(self._messages, count)):
            message = self._messages[number]
            if taken and size_bytes is not None and message.size_bytes > room:
                break
            room -= message.size_bytes
            taken.append(self._messages.pop(number))
            self._limited.discard(number)
            if self._last_updates.get(message.comm) == number:
                del self._last_updates[message.comm]
        return taken


def _join(old: CommMessage, new: CommMessage) -> CommMessage | None:
    """Return one update with the effect of both; None if that takes more than decoding them."""
    if set(old.sets) <= set(new.sets):
        return new
    if old.buffers or new.buffers:
        return None
    data = json.loads(new.data)
    data["state"] = {**json.loads(old.data)["state"], **data["state"]}
    return CommMessage(new.kind, new.comm, json.dumps(data).encode(), new.metadata, (), tuple(data["state"]))
