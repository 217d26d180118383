"""``python -m tfmagic`` and the script ``tfmagic``: commands for a shell.

    argv ── parsers ──→ Namespace ── run | doctor | status | logs | timeline | ... ──→ exit code

Each command is a module with a `main`, here or in a feature. It is imported when the command is used; help
imports none of them.
"""

import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from tfmagic.frontends.cli import parsers, streams
from tfmagic.system import linux_only
from tfmagic.system.advice import FrontEnd, set_front_end

_NOT_STARTED = 125
_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    streams.prepare()
    set_front_end(FrontEnd.SHELL)
    try:
        args = parsers.parse(words)
        page = parsers.PAGES[args.command]
        if not page.everywhere and (sentence := linux_only.why_not()):
            sys.stderr.write(f"{args.parser.prog}: {sentence}\n")
            return _NOT_STARTED
        code = int(import_module(page.module or f"tfmagic.frontends.cli.{args.command}").main(args))
    except BrokenPipeError:
        code = streams.BROKEN_PIPE
    except KeyboardInterrupt:
        code = _INTERRUPTED
    finally:
        set_front_end(None)
    lost = streams.finish()
    return code or lost
