"""Run the lessons of the course in place, as a learner does who leaves the exercises open.

    python scripts/course.py [LESSON ...]      all lessons, or those whose file names begin so, as 03

The outputs in the repository come from here: a real run, in a kernel of its own for each lesson.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from platformdirs import user_state_path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks" / "course"
_PATHS = {
    str(ROOT): "",
    sys.base_prefix: "",
    os.environ.get("TFMAGIC_STATE_DIR") or str(user_state_path("tfmagic")): "~/.local/state/tfmagic/",
}


def main(chosen: list[str]) -> int:
    """Run the chosen lessons. Return 0 if each ran to its end."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if chosen and not path.name.startswith(tuple(chosen)):
            continue
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
        for cell in notebook.cells:
            cell.get("metadata", {}).pop("execution", None)  # times
            if "outputs" in cell:
                cell.outputs = _without_checkout(cell.outputs)
        notebook.metadata.pop("widgets", None)
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, path)
        print(path.name)
    return 0


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
