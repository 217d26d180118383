"""Run the lessons of the course in place, as a learner does who leaves the exercises open.

    python scripts/course.py [LESSON ...]      all lessons, or those whose file names begin so, as 03

The outputs in the repository come from here: a real run, in a kernel of its own for each lesson.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks" / "course"


def main(chosen: list[str]) -> int:
    """Run the chosen lessons. Return 0 if each ran to its end."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if chosen and not path.name.startswith(tuple(chosen)):
            continue
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
        for cell in notebook.cells:
            cell.get("metadata", {}).pop("execution", None)  # times
        notebook.metadata.pop("widgets", None)
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, path)
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
