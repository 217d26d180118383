"""``tfmagic explain``: what a short name in a message means, and what to do."""

import argparse
import sys

from tfmagic.frontends import symptoms


def main(args: argparse.Namespace) -> int:
    """Print an entry, or the names. Return the exit code."""
    try:
        print(symptoms.explain(args.name))
    except LookupError as error:
        print(f"tfmagic explain: {error.args[0]}", file=sys.stderr)
        return 1
    return 0
