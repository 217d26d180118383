"""Run the lessons of the course in place, as a learner does who leaves the exercises open.

    python scripts/course.py [LESSON ...]            all lessons, or those whose file names begin so, as 03
    python scripts/course.py --times [LESSON ...]    measures how long they run, and keeps their outputs

The outputs in the repository come from here: a real run, in a kernel of its own for each lesson. So does the
time that its cells ran, in the metadata of the notebook; the minutes that a lesson and the page for teachers
name follow from it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from platformdirs import user_state_path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks" / "course"
TEACHING = ROOT / "docs" / "teaching.md"
WORDS_A_MINUTE = 175  # the slower readers of Brysbaert, doi.org/10.1016/j.jml.2019.104047
CODE_LINES_A_MINUTE = (
    500 / 60
)  # above it reviewers miss much: Cohen, Best Kept Secrets of Peer Code Review, 2006
PREDICTION, EXERCISE = 0.5, 4  # minutes that we plan
_MINUTES = re.compile(r"About \d+ minutes to read and run, and \d+ for the exercises")
_PATHS = {
    str(ROOT): "",
    sys.base_prefix: "",
    os.environ.get("TFMAGIC_STATE_DIR") or str(user_state_path("tfmagic")): "~/.local/state/tfmagic/",
}


def main(words: list[str]) -> int:
    """Run the chosen lessons. Return 0 if each ran to its end."""
    parser = argparse.ArgumentParser(description="Run the lessons of the course in place.")
    parser.add_argument("--times", action="store_true", help="keep the outputs; measure only")
    parser.add_argument("lessons", nargs="*")
    args = parser.parse_args(words)
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not args.lessons or path.name.startswith(tuple(args.lessons)):
            notebook = nbformat.read(path, as_version=4)
            ran = nbformat.read(path, as_version=4)
            _run(ran)
            notebook = notebook if args.times else ran
            notebook.metadata.tfmagic = {"running_s": ran.metadata.tfmagic.running_s}
            _say_minutes(notebook)
            nbformat.write(notebook, path)
            load = " ".join(f"{average:.1f}" for average in os.getloadavg())
            print(f"{path.name}: {notebook.metadata.tfmagic.running_s} s, load {load}", flush=True)
    write_timetable()
    return 0


def minutes(notebook: Any) -> tuple[int, int]:
    """Return the minutes to read and run a lesson, to the next five, and those for its exercises.

    Reading is computed from words, lines of code and predictions; running is what was measured.
    """
    texts = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tfmagic", {})]
    text = "\n".join(cell.source for cell in texts if cell.cell_type == "markdown")
    lines = "\n".join(cell.source for cell in texts if cell.cell_type == "code").splitlines()
    reading = len(text.split()) / WORDS_A_MINUTE
    reading += len([line for line in lines if line.strip()]) / CODE_LINES_A_MINUTE
    reading += text.count("**Predict:**") * PREDICTION
    total = reading + notebook.metadata.tfmagic.running_s / 60
    exercises = {cell.metadata.get("tfmagic", {}).get("exercise") for cell in texts} - {None}
    return 5 * round(total / 5), EXERCISE * len(exercises)


def write_timetable() -> None:
    """Write the minutes of all lessons into the table of the page for teachers."""
    page, totals = TEACHING.read_text("utf-8"), (0, 0, 0)
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        row = round(notebook.metadata.tfmagic.running_s), *minutes(notebook)
        totals = tuple(map(sum, zip(totals, row, strict=True)))
        shown = "| {} s | {} min | {} min |".format(*row)
        page = re.sub(
            rf"(\]\(\.\./notebooks/course/{path.name}\)) \|.*", lambda m, s=shown: f"{m[1]} {s}", page
        )
    page = re.sub(r"^\| all \|.*", "| all | {} s | {} min | {} min |".format(*totals), page, flags=re.M)
    TEACHING.write_text(page, "utf-8")


def _say_minutes(notebook: Any) -> None:
    said = "About {} minutes to read and run, and {} for the exercises".format(*minutes(notebook))
    notebook.cells[0].source = _MINUTES.sub(said, notebook.cells[0].source)


def _run(notebook: Any) -> None:
    """Run all cells of a notebook, in place; keep how many seconds they took."""
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    seconds = 0.0
    for cell in notebook.cells:
        if (times := cell.metadata.pop("execution", None)) is not None:
            began, ended = (
                datetime.fromisoformat(times[f"iopub.status.{state}"].replace("Z", "+00:00"))
                for state in ("busy", "idle")
            )
            seconds += (ended - began).total_seconds()
        if "outputs" in cell:
            cell.outputs = _without_checkout(cell.outputs)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata.tfmagic = nbformat.NotebookNode(running_s=round(seconds, 1))


def _without_checkout(value: Any) -> Any:
    """Take the paths of this machine out of texts, at any depth."""
    if isinstance(value, str):
        for path, shown in _PATHS.items():
            value = value.replace(f"{path}/", shown)
        return value
    if isinstance(value, list):
        return [_without_checkout(part) for part in value]
    if isinstance(value, dict):
        return type(value)({key: _without_checkout(part) for key, part in value.items()})
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
