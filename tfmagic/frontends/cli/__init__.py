"""``python -m tfmagic`` and the script ``tfmagic``: commands for a shell.

    argv ── parsers ──→ Namespace ── run | doctor | status | logs | timeline | ... ──→ exit code

Each command is a module with a `main`. It is imported when the command is used; help imports none of them.
"""

import json
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module

from tfmagic.frontends.cli import parsers, streams
from tfmagic.system import linux_only
from tfmagic.system.advice import FrontEnd, set_front_end

_EVERYWHERE = ("explain", "course")  # also on systems on which no task can run
_NOT_STARTED = 125
_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    streams.prepare()
    set_front_end(FrontEnd.SHELL)
    try:
        args = parsers.parse(words)
        if args.command not in _EVERYWHERE and (sentence := linux_only.why_not()):
            return _refuse(args, sentence)
        code = int(import_module(f"tfmagic.frontends.cli.{args.command}").main(args))
    except BrokenPipeError:
        code = streams.BROKEN_PIPE
    except KeyboardInterrupt:
        code = _INTERRUPTED
    finally:
        set_front_end(None)
    lost = streams.finish()
    return code or lost


def _refuse(args: Namespace, sentence: str) -> int:
    """Say on a system without tasks what to do; the doctor has that one finding."""
    if args.command != "doctor":
        sys.stderr.write(f"{args.parser.prog}: {sentence}\n")
        return _NOT_STARTED
    found = {"severity": "trouble", "what": sentence, "advice": ""}
    print(json.dumps([found]) if args.json else f"✕ {sentence}")
    return 1
