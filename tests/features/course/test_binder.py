"""What Binder installs and runs: files that are there, and the lessons without outputs."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat

from tfmagic import course

ROOT = Path(__file__).parents[3]
BINDER = ROOT / "binder"


def test_binder_installs_the_versions_of_its_python():
    options = dict(
        line.split() for line in (BINDER / "requirements.txt").read_text().splitlines() if line[0] == "-"
    )
    python = (BINDER / "runtime.txt").read_text().strip().removeprefix("python-")
    assert (BINDER / options["-c"]).resolve() == ROOT / "requirements" / f"{python}.txt"
    assert (ROOT / "requirements" / f"{python}.txt").exists()


def test_binder_shows_the_lessons_without_outputs(tmp_path):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "tfmagic"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tfmagic "$@"\n')
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    subprocess.run([BINDER / "postBuild"], cwd=tmp_path, env=environ, check=True, capture_output=True)
    made = sorted((tmp_path / "lessons").glob("*.ipynb"))
    assert [path.name for path in made] == [path.name for path in course.lesson_files()]
    cells = [cell for path in made for cell in nbformat.read(path, as_version=4).cells]
    assert not any(cell.get("outputs") for cell in cells)
