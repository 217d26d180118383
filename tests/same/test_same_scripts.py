"""`python x.py` and `tfmagic run --workers 1 x.py` have the same output, exit code and last traceback line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from corpus import Program, read_sample
from differences import DEFECTS, MEANT
from sides import tidy

PROGRAMS = read_sample("scripts")
RUN_S = 280.0
_ENVIRON = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": ""}
_OUR_WORDS = re.compile(r"^tfmagic: .*\n(    .*\n)*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Run:
    """The end of a script. Its lines are sorted, since both streams are one log on a task."""

    code: int
    lines: tuple[str, ...]
    last_line: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Put every script into a folder of its own and run it with tfmagic. Return the folder of both sides."""
    made = tmp_path_factory.mktemp("scripts")
    for program in PROGRAMS:
        for side in ("ours", "bare"):
            place = made / side / _name(program)
            place.mkdir(parents=True)
            (place / "x.py").write_text(program.cells[0].source + "\n", "utf-8")
    command = [sys.executable, Path(__file__).with_name("script_runs.py"), made / "ours"]
    subprocess.run(command, check=True, timeout=RUN_S, stdin=subprocess.DEVNULL, env=os.environ | _ENVIRON)
    yield made


def _name(program: Program) -> str:
    return re.sub(r"\W+", "-", program.title)


def _run_bare(place: Path) -> Run:
    done = subprocess.run(
        [sys.executable, "x.py"],
        cwd=place,
        env=os.environ | _ENVIRON,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=RUN_S,
    )
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode  # as a shell reports a signal
    return _seen(code, done.stdout, done.stderr)


def _run_of_ours(place: Path) -> Run:
    err = _OUR_WORDS.sub("", (place / "err.txt").read_text("utf-8", "replace"))
    return _seen(int((place / "code.txt").read_text()), (place / "out.txt").read_bytes(), err.encode())


def _seen(code: int, out: bytes, err: bytes) -> Run:
    texts = [tidy(text.decode("utf-8", "replace")) for text in (out, err)]
    texts = [re.sub(r"/\S*/(ours|bare)/", "", text) for text in texts]
    texts = [
        re.sub(r"repeated \d+ more", "repeated … more", text) for text in texts
    ]  # tfmagic adds a few frames
    lines = tuple(sorted(line for text in texts for line in text.splitlines() if line.strip()))
    errors = [
        line for line in "".join(reversed(texts)).splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)
    ]
    return Run(code, lines, errors[-1] if errors else "")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_script_behaves_on_a_task_as_under_python(program, folder):
    ours, bare = _run_of_ours(folder / "ours" / _name(program)), _run_bare(folder / "bare" / _name(program))
    if program.name in DEFECTS or program.name in MEANT:
        assert ours != bare, f"no longer differs: delete {program.name!r} from differences.py"
    else:
        assert ours == bare
