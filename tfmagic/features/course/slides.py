"""The lessons as slides: their sections, each prediction with its code, and the outputs one press later.

Each cell has the type of its slide in its metadata, as nbconvert and JupyterLab know it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfmagic.features.course.lessons import copy_beside, lesson_files, read, write

_SECTIONS = re.compile(r"\n\n(?=## |\*\*Predict:\*\*)")
_LINK = re.compile(r"\]\((\d\d-[\w-]+)\.ipynb\)")
_TO_SLIDES = r"](\1.slides.html)"
_BESIDE = 14  # lines of code that leave room for their output on one slide


def make_slides(folder: Path) -> str:
    """Write the lessons as slides into a folder, which is made; return what to do next.

    Raises:
        FileExistsError: The folder is there already.
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True)
    for path in lesson_files():
        notebook = read(path)
        notebook["cells"] = list(_slides(notebook["cells"]))
        write(folder / path.name, notebook)
    copy_beside(folder, lesson_files())
    return (
        f"{folder} has the lessons as slides. In this folder, for pages that a browser shows:\n\n"
        "    jupyter nbconvert --to slides --SlidesExporter.reveal_scroll=True *.ipynb\n"
    )


def _slides(cells: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the cells of a lesson without set-up, exercises and clean-up, each with its type of slide."""
    is_exercise = False
    for cell in cells[:-1]:  # the last one stops the cluster
        text = "".join(cell["source"])
        before, begins, _ = text.partition("## Exercises")
        is_exercise = bool(begins) or (is_exercise and not text.startswith("## What you know now"))
        if cell["cell_type"] == "markdown":
            pieces = _SECTIONS.split(before.strip()) if begins or not is_exercise else ()
            for number, piece in enumerate(pieces):
                kind = "slide" if piece.startswith("#") else "subslide"
                yield _slide(cell, kind, _LINK.sub(_TO_SLIDES, piece), f"-{number}")
        elif not (is_exercise or "set-up" in cell["metadata"].get("tags", ()) or text.startswith("assert ")):
            outputs, cell["outputs"] = cell["outputs"], []
            yield _slide(cell, "-", text)
            if outputs:
                kind = "fragment" if text.count("\n") < _BESIDE else "subslide"
                shown = _slide(cell, kind, text, "-out") | {"outputs": outputs}
                shown["metadata"]["transient"] = {"remove_source": True}  # as nbconvert's own preprocessor
                yield shown


def _slide(cell: dict[str, Any], kind: str, text: str, more: str = "") -> dict[str, Any]:
    metadata = {"slideshow": {"slide_type": kind}}
    return {**cell, "id": cell["id"] + more, "metadata": metadata, "source": text}
