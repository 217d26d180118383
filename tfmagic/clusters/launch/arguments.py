"""Read the text of arguments, for the magics and for ``tfmagic`` on the command line.

Imports nothing heavy, so that `tfmagic --help` is quick.
"""

from __future__ import annotations

import argparse
import re

DEFAULT_KEEP = "8h"
PLACEMENTS = ("pack", "spread", "strict-spread")


def parse_count(text: str) -> int:
    """Parse a count, for argparse."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"it cannot be {value}; use 0 or more")
    return value


def parse_number(text: str) -> float:
    """Parse a number of 0 or more, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return value


def parse_resource(text: str) -> tuple[str, float]:
    """Parse ``NAME=NUMBER``, for argparse."""
    name, value = parse_variable(text)
    return name, parse_number(value)


def parse_seconds(text: str) -> float:
    """Parse a time limit in seconds, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"a time limit cannot be {text} s; use more than 0")
    return value


def read_duration(text: str | float) -> float:
    """Return the seconds of a duration: ``90s``, ``30m``, ``2h``, ``1d``, or a number of seconds.

    Raises:
        ValueError: It is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(text).strip())
    seconds = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]] if found else 0.0
    if not seconds:
        raise ValueError(f"{text!r} is not a duration; write 30m, 2h or 1d")
    return seconds


def parse_duration(text: str) -> float:
    """Parse a duration, for argparse."""
    try:
        return read_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_variable(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``, for argparse."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value
