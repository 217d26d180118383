"""``python -m tfmagic`` and the script ``tfmagic``: what is of use outside of a notebook.

    argv ── parsers ──→ Namespace ── run | doctor | status | logs | reap ──→ exit code

Each command is a module with a `main`, loaded when it is asked for; help loads none of them.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from tfmagic.frontends.cli import parsers

_BROKEN_PIPE = 128 + signal.SIGPIPE  # as of a program that SIGPIPE ends: nobody reads on, which is no failure
_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    _prepare_streams()
    try:
        found = parsers.parse(words)
        code = import_module(f"tfmagic.frontends.cli.{found.command}").main(found)
        sys.stdout.flush()
        return int(code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the stream has to go somewhere
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return _INTERRUPTED


def _prepare_streams() -> None:
    """Streams that take anything, since logs hold anything; and are there, also where they were closed."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
