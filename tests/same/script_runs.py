"""Run scripts one after the other as `tfmagic run` does, in one process, so that TensorFlow is imported once.

    python script_runs.py FOLDER     for each FOLDER/*/x.py, write out.txt, err.txt and code.txt beside it

Only the start of the command's process is left out: `tfmagic.frontends.cli.main` gets the arguments.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from tfmagic.frontends import cli


def main(folder: Path) -> None:
    """Run all scripts of a folder."""
    kept = os.dup(1), os.dup(2), os.getcwd()
    for script in sorted(folder.glob("*/x.py")):
        place = script.parent
        for number, name in ((1, "out.txt"), (2, "err.txt")):
            file = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
            os.close(file)
        os.chdir(place)
        try:
            code = cli.main(["run", "--workers", "1", "x.py"])
        except BaseException:
            traceback.print_exc()
            code = -1
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        os.chdir(kept[2])
        (place / "code.txt").write_text(str(code))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
