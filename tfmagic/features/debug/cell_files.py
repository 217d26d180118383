"""The source of cells as files, which an editor can open: `<run>/cells/cell-3-1f8a9c02.py`.

A file belongs to a text: a cell that runs again unchanged has the same file, so its breakpoints hold. The
tasks of a cluster share the folder.
"""

import hashlib
import linecache
import os
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = "cells"  # of a run
_CELL = re.compile(r"<?Cell In\[(\d+)\]|<tfcluster-(\d+)>|<ipython-input-(\d+)-")


def write_cell(folder: Path, name: str, text: str) -> Path:
    """Return the file of a cell, written if it is not there.

    Args:
        name: Under which Python knows the cell.
    """
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    folder.mkdir(mode=0o700, exist_ok=True)
    if known := next(folder.glob(f"*-{digest}.py"), None):
        return known
    number = next(filter(None, found.groups()), "") if (found := _CELL.match(name)) else ""
    path = folder / f"cell-{number or 'x'}-{digest}.py"
    whole = folder / f".{path.name}.{os.getpid()}"
    whole.touch(mode=0o600)
    whole.write_text(text, encoding="utf-8", errors="surrogateescape")
    whole.replace(path)  # another task can write the same
    return path


def known_cells() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each cell of which this process knows the lines."""
    for name, entry in list(linecache.cache.items()):
        if len(entry) == 4 and entry[1] is None and (_CELL.match(name) or _is_of_kernel(name)):
            yield name, "".join(entry[2])


def _is_of_kernel(name: str) -> bool:
    """Check whether it is the name of a plain cell, a function of which has come from the notebook."""
    return re.search(r"[/\\]ipykernel_\d+[/\\]\d+\.py$", name) is not None
