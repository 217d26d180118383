"""Run pip and show its progress: one line in place on a terminal, one every 15 s elsewhere.

usage: pip_progress.py LOG PYTHON -m pip install ...

pip's own output goes to the file LOG; its end is printed if pip fails. A file beside
it, with the suffix .seconds, has how long this took last time. Needs nothing but Python.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

LOOK_S, LINE_S = 0.5, 15.0


class Progress:
    """What pip does, by its lines and by the packages in its environment.

    Args:
        packages: The environment.
        taken: A file with the seconds that this took last time.
    """

    def __init__(self, packages: Path, taken: Path):
        self._packages, self._taken = packages, taken
        self._last = f" of {_clock(taken.read_text())} last time" if taken.exists() else ""
        self._before = self._count()
        self._started = self._shown = time.monotonic()
        self._found = self._total = 0
        self._doing = "asking for packages"

    def _count(self) -> int:
        return len(list(self._packages.glob("lib/python*/site-packages/*.dist-info")))

    def read(self, line: str) -> None:
        """Take a line of pip's output."""
        self._found += line.startswith(("Collecting ", "Processing "))
        if found := re.match(r"\s*Downloading (?:.*/)?([\w.]+)-\S+(?<!\.metadata) (\(.*\))", line):
            self._doing = f"downloading {found[1]} {found[2]}"
        elif line.startswith("Installing collected packages: "):
            self._total = line.count(",") + 1

    def text(self) -> str:
        """Return the line to show."""
        if not self._total:
            return self._at(f"packages found: {self._found}, {self._doing}")
        return self._at(f"packages installed: {self._count() - self._before} of {self._total}")

    def _at(self, text: str) -> str:
        return f"  {_clock(time.monotonic() - self._started)}{self._last}  {text}"

    def show(self) -> None:
        """Show the line if it is time."""
        now, in_place = time.monotonic(), sys.stdout.isatty()
        if now - self._shown < (LOOK_S if in_place else LINE_S):
            return
        self._shown = now
        if in_place:
            print(f"\r\x1b[K{self.text()[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        else:
            print(self.text(), flush=True)

    def end(self, code: int) -> None:
        """Show the last line, with pip's exit code in mind; note how long a good end took."""
        if code == 0:
            self._taken.write_text(str(int(time.monotonic() - self._started)))
        start = "\r\x1b[K" if sys.stdout.isatty() else ""
        text = self._at(f"packages installed: {self._total}") if code == 0 else self.text()
        print(f"{start}{text}", flush=True)


def _clock(seconds: float | str) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def main(log_path: str, *command: str) -> int:
    """Run pip. Return its exit code."""
    progress = Progress(Path(command[0]).parents[1], Path(log_path).with_suffix(".seconds"))
    rest = b""
    with (
        open(log_path, "wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as pip,
    ):
        assert pip.stdout is not None
        while True:
            progress.show()
            if not select.select([pip.stdout], [], [], LOOK_S)[0]:
                continue
            data = os.read(pip.stdout.fileno(), 1 << 16)
            if not data:
                break
            log.write(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                progress.read(line.decode(errors="replace"))
    progress.end(pip.returncode)
    if pip.returncode:
        print(*Path(log_path).read_text(errors="replace").splitlines()[-25:], sep="\n")
        print(f"pip failed with exit code {pip.returncode}; all of its output is in {log_path}")
    return pip.returncode


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        print()
        sys.exit(130)
