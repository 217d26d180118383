"""Real processes for the tests of `tfmagic.hdf5`, which a test continues step by step."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any


class Other:
    """A Python process that prints lines with `say(...)`; its `wait()` ends when the test calls `go()`."""

    def __init__(self, program: str, *argv: object, env: dict[str, str] | None = None):
        head = "import sys, h5py, numpy as np, tfmagic\nfrom tfmagic.hdf5 import *\n"
        head += "def say(text): print(text, flush=True)\ndef wait(): sys.stdin.readline()\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", head + program, *map(str, argv)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
        )  # fmt: skip

    def hear(self) -> str:
        """Return its next line; "" after its end."""
        assert self.process.stdout
        return self.process.stdout.readline().rstrip("\n")

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(30)


@contextlib.contextmanager
def other(program: str, *argv: object, env: dict[str, str] | None = None) -> Iterator[Any]:
    """Start a process and end it with the block, also after an error."""
    process = Other(program, *argv, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.end()
