"""The story of a run's loop for a report: sentences in our words, and the same for programs.

Other texts than ours become ``…``, numbered by their order. So two names stay two,
and the rules can still decide it again: see `tfmagic.supervisor.story`.
"""

import base64
import zlib
from collections.abc import Callable

import msgspec

from tfmagic.features.report.own_words import own_words
from tfmagic.supervisor import story, story_words
from tfmagic.supervisor.state import replace
from tfmagic.supervisor.story import Told

_ENTRIES = 400  # at most; the last ones


def of_run(told: Told) -> tuple[list[str], str]:
    """Return a story in words, a line each, and as text for `read`."""
    told = story.mapped(_last(told), _numbered())
    packed = base64.b85encode(zlib.compress(msgspec.msgpack.encode(told), 9)).decode()
    return story_words.lines(told.entries, told.clock), packed


def read(text: str) -> Told:
    """Return the story that a report has under "loop" in its JSON.

    Raises:
        ValueError: It is none, or one of another version.
    """
    try:
        return story.decode(zlib.decompress(base64.b85decode(text)))
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"no story that this version can read: {error}") from None


def _last(told: Told) -> Told:
    """Return the end of a long story, which begins with the state that the rules have come to."""
    skipped = len(told.entries) - _ENTRIES
    if skipped <= 0:
        return told
    for number, (_, decision) in enumerate(story.replay(told), 1):
        if number == skipped:
            return replace(
                told, state=decision.state, wake_at=decision.wake_at, entries=told.entries[skipped:]
            )
    raise AssertionError("replay returns each entry")


def _numbered() -> Callable[[str], str]:
    seen: dict[str, str] = {}

    def change(text: str) -> str:
        ours = own_words(text)
        if ours == text:
            return text
        return seen.setdefault(text, f"{ours}{len(seen) + 1}")

    return change
