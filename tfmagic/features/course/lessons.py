"""Where the notebooks of the course are, and how they are copied out."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfmagic.errors import TfmagicError

_INSTALLED = Path(__file__).parent / "notebooks"
_IN_CHECKOUT = Path(__file__).parents[3] / "notebooks" / "course"


def lesson_files() -> tuple[Path, ...]:
    """Return the notebooks, in their order. Raise `TfmagicError` if this installation has none."""
    folder = _INSTALLED if _INSTALLED.is_dir() else _IN_CHECKOUT
    found = tuple(sorted(folder.glob("[0-9][0-9]-*.ipynb")))
    if not found:
        raise TfmagicError(f"this installation has no lessons: they should be in {_INSTALLED}")
    return found


def copy(folder: Path, *, with_outputs: bool = False) -> list[Path]:
    """Copy the lessons, their pictures and the glossary into a folder, which is made; return the lessons.

    Args:
        with_outputs: Whether cells show the output of an earlier run; else a learner can predict it.

    Raises:
        FileExistsError: A lesson is there already, with your answers perhaps; nothing was copied.
        OSError: The folder cannot be written.
    """
    lessons = lesson_files()
    copies = [folder / lesson.name for lesson in lessons]
    present = [path.name for path in copies if path.exists()]
    if present:
        raise FileExistsError(f"{folder} has {', '.join(present)} already; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    copy_beside(folder, lessons)
    for lesson, path in zip(lessons, copies, strict=True):
        if with_outputs:
            shutil.copyfile(lesson, path)
        else:
            write(path, without_outputs(read(lesson)))
    return copies


def copy_beside(folder: Path, lessons: Iterable[Path]) -> None:
    """Copy the pictures and the glossary for which these lessons have a link into a folder."""
    texts = [lesson.read_text("utf-8") for lesson in lessons]
    for path in sorted(lesson_files()[0].parent.iterdir()):
        if path.suffix != ".ipynb" and any(f"]({path.name})" in text for text in texts):
            shutil.copyfile(path, folder / path.name)


def without_outputs(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook, in place, as if it had not run yet."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    return notebook


def read(path: Path) -> dict[str, Any]:
    """Read a notebook."""
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return notebook


def write(path: Path, notebook: dict[str, Any]) -> None:
    """Write a notebook."""
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")
