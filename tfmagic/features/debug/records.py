"""What kernel and task tell each other about an editor's debugger.

`methods` asks; `task` answers with the report of that cell.
"""

import os
from pathlib import Path

import msgspec

from tfmagic.protocol.payload import Record

HOST = "127.0.0.1"  # never another one: whoever reaches the port can run code in the task


class EditorAsked(Record, frozen=True):
    """The user wants to attach an editor.

    Attributes:
        loopback: The loopback device of the user's machine.
        looks: Whether the task waits for the editor, and shows its last failure to it.
    """

    loopback: str
    looks: bool = False


class Listening(Record, frozen=True):
    """A task listens for an editor.

    Attributes:
        port: On `HOST`.
        cells: The folder with the source of its cells.
        known: Whether it has listened before.
        attached: Whether an editor is attached.
        failure: The type of what the last cell has raised, if an editor can look at it; else "".
        lacks: A sentence on what the installed debugpy cannot do; else "".
    """

    port: int
    cells: str
    known: bool = False
    attached: bool = False
    failure: str = ""
    lacks: str = ""


encode = msgspec.msgpack.encode
decode_asked = msgspec.msgpack.Decoder(EditorAsked).decode
decode_listening = msgspec.msgpack.Decoder(Listening).decode


def loopback() -> str:
    """Return a text that processes share if and only if they have the same loopback device."""
    machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{machine} {os.stat('/proc/self/ns/net').st_ino}"
