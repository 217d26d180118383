"""``tfmagic course``: copy the lessons into a folder."""

import argparse
import sys
from pathlib import Path

from tfmagic import course
from tfmagic.errors import TfmagicError


def main(args: argparse.Namespace) -> int:
    """Copy the lessons. Return the exit code."""
    folder = Path(args.folder)
    try:
        copies = course.copy(folder, with_outputs=args.with_outputs)
    except (OSError, TfmagicError) as error:
        sys.stderr.write(f"tfmagic course: {error}\n")
        return 1
    print(f"{len(copies)} lessons are in {folder}. Begin with:\n\n    jupyter lab {copies[0]}")
    return 0
