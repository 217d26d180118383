"""Search lines with a regular expression in a process of its own, which is killed when that takes too long.

`re` tries all ways to match, so that ``(a+)+$`` takes a minute for a line of 27 letters, and it holds the GIL
meanwhile: in a kernel or a Jupyter server no other thread would run.
"""

import json
import re
import select
import subprocess
import time
from collections.abc import Iterable, Iterator

from tfmagic.system import helper_process

LIMIT_S = 10.0  # for a piece, which takes some 50 ms with a pattern of the usual kind
_PIECE_CHARACTERS = 1 << 18
_MOST_CHARACTERS = 10_000
_CODE = """\
import json, re, sys
pattern = re.compile(json.loads(sys.stdin.readline()))
for line in sys.stdin:
    found = [n for n, text in enumerate(json.loads(line)) if pattern.search(text)]
    sys.stdout.write(json.dumps(found) + "\\n")
    sys.stdout.flush()
"""


class SlowPattern(ValueError):
    """A search took too long, and was ended."""


def check(pattern: str) -> None:
    """Raise ValueError if this is no regular expression."""
    if len(pattern) > _MOST_CHARACTERS:
        raise ValueError(f"it has more than {_MOST_CHARACTERS} characters")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None


class LineSearch:
    """Finds lines that match; its process starts with the first piece, and `close` ends it."""

    def __init__(self, pattern: str):
        self._pattern = pattern
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "LineSearch":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def matching(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines that match.

        Raises:
            SlowPattern: It takes too long.
        """
        piece, size = list[str](), 0
        for line in lines:
            piece.append(line)
            size += len(line) + 1
            if size >= _PIECE_CHARACTERS:
                yield from self._search(piece)
                piece, size = [], 0
        yield from self._search(piece)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            helper_process.kill_session(self._process)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None

    def _search(self, lines: list[str]) -> list[str]:
        if not lines:
            return []
        if self._process is None:
            self._process = helper_process.start_killed_with_us(
                "tfmagic-search", _CODE, flags=("-I", "-S"), bufsize=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            self._send(self._pattern)
        self._send(lines)
        return [lines[place] for place in self._answer()]

    def _send(self, content: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        left = memoryview(json.dumps(content).encode() + b"\n")  # it reads a line whole before it searches
        while left:
            left = left[self._process.stdin.write(left) :]

    def _answer(self) -> list[int]:
        assert self._process is not None and self._process.stdout is not None
        answer, until = b"", time.monotonic() + LIMIT_S
        while not answer.endswith(b"\n"):
            left_s = max(until - time.monotonic(), 0.0)
            if not select.select([self._process.stdout], [], [], left_s)[0]:
                self.close()
                raise SlowPattern(
                    f"the search for {self._pattern!r} took more than {LIMIT_S:g} s, and was ended: a "
                    "repeat in a repeat, such as (a+)+, tries all ways; use one repeat"
                )
            read = self._process.stdout.read(1 << 16)
            if not read:
                self.close()
                raise ValueError(f"the process that searches for {self._pattern!r} has ended")
            answer += read
        found: list[int] = json.loads(answer)
        return found
