"""``tfmagic course``: copy the lessons into a folder."""

import argparse
import shlex
import sys
from pathlib import Path

from tfmagic.errors import TfmagicError
from tfmagic.features.course import classroom, lessons


def main(args: argparse.Namespace) -> int:
    """Copy the lessons. Return the exit code."""
    folder = Path(args.folder)
    try:
        if args.format:
            print(classroom.MAKERS[args.format](folder))
            return 0
        copies = lessons.copy(folder, with_outputs=args.with_outputs)
    except (OSError, TfmagicError) as error:
        reason = getattr(error, "strerror", None)  # of the system's own errors
        text = f"{folder} cannot be written ({reason}); choose another folder" if reason else error
        sys.stderr.write(f"tfmagic course: {text}\n")
        return 1
    first = shlex.quote(str(copies[0]))
    print(f"{len(copies)} lessons are in {folder}. Begin with:\n\n    jupyter lab {first}")
    return 0
