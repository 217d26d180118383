"""Files of a story: what the run folder and a report have, and a trace of all of it (TFMAGIC_TRACE)."""

import base64
import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tfmagic.supervisor import story_words
from tfmagic.supervisor.state import replace
from tfmagic.supervisor.story import Entry, Story, Told, decode
from tfmagic.system import files, notices

FILE = "story.msgpack"  #: In a run folder.
TRACE = "TFMAGIC_TRACE"
_LATER_S, _SAVE_S = 1.0, 5.0  # after trouble; at least between two writes


class StoryFile:
    """Writes a story into a run folder after trouble, and at the end. Used on the loop's thread."""

    def __init__(self, story: Story, folder: Path):
        self._story, self._path = story, folder / FILE
        self._may_at, self._due = 0.0, 0.0

    def write_if_due(self) -> None:
        """Write it some time after trouble, so that no restart waits for it."""
        now = time.monotonic()
        if not self._story.has_trouble:
            return
        if not self._due:
            self._due = max(now + _LATER_S, self._may_at)
        elif now >= self._due:
            self._story.has_trouble, self._due, self._may_at = False, 0.0, now + _SAVE_S
            self.write()

    def write(self) -> None:
        """Write it now. A full disk costs the file, nothing else."""
        with contextlib.suppress(OSError):
            self._path.unlink(
                missing_ok=True
            )  # ext4 writes out at once what a rename puts over a file: 50 ms
            files.replace_bytes(self._path, msgspec.msgpack.encode(self._story.told()), 0o600)


def read(folder: Path) -> Told | None:
    """Return the story in a run folder; None if there is none that this version can read."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return decode((folder / FILE).read_bytes())
    return None


def trace(run: str) -> Callable[[Told | Entry], object] | None:
    """Return what appends the story of a run to the file that TFMAGIC_TRACE names; None without such a file.

    A line is a JSON object: "run", "words", and "begin" (a `Told`) or "entry", as base64 of msgpack.
    """
    named = os.environ.get(TRACE)
    if not named:
        return None
    path, clock = Path(named).absolute(), time.time() - time.monotonic()

    def append(text: str) -> None:
        with open(
            files.open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "w", encoding="utf-8"
        ) as file:
            file.write(text)

    def write(part: Told | Entry) -> None:
        name, entries = ("begin", ()) if isinstance(part, Told) else ("entry", (part,))
        content = {"run": run, "words": story_words.lines(entries, clock), name: text_of(part)}
        append(json.dumps(content) + "\n")

    try:
        append("")
    except OSError as error:
        notices.tell(f"tfmagic: {TRACE}={named} cannot be written ({error.strerror}): there will be no trace")
        return None
    return write


def read_trace(path: Path) -> dict[str, Told]:
    """Return the story of each run in a trace."""
    found: dict[str, Told] = {}
    entries: dict[str, list[Entry]] = {}
    for line in path.read_text("utf-8").splitlines():
        content = json.loads(line)
        if "begin" in content:
            found[content["run"]] = decode(base64.b64decode(content["begin"]))
        else:
            entry = msgspec.msgpack.decode(base64.b64decode(content["entry"]), type=Entry)
            entries.setdefault(content["run"], []).append(entry)
    return {run: replace(told, entries=tuple(entries.get(run, ()))) for run, told in found.items()}


def text_of(part: Told | Entry) -> str:
    """Return a part of a story as text for programs: base64 of msgpack."""
    return base64.b64encode(msgspec.msgpack.encode(part)).decode()
