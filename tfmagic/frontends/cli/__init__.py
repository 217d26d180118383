"""``python -m tfmagic`` and the script ``tfmagic``: commands for a shell.

    argv ── parsers ──→ Namespace ── run | doctor | status | logs | timeline | ... ──→ exit code

Each command is a module with a `main`. It is imported when the command is used; help imports none of them.
"""

import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from tfmagic.frontends.cli import parsers
from tfmagic.system.advice import FrontEnd, set_front_end

_BROKEN_PIPE = 128 + signal.SIGPIPE  # the code of a program that SIGPIPE ends: its reader has read enough
_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    _prepare_streams()
    set_front_end(FrontEnd.SHELL)
    try:
        args = parsers.parse(words)
        code = import_module(f"tfmagic.frontends.cli.{args.command}").main(args)
        sys.stdout.flush()
        return int(code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is left in the buffer
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        set_front_end(None)


def _prepare_streams() -> None:
    """Replace closed streams, and let the streams take any text, since logs hold any bytes."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
