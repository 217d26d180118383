"""Clients that run a notebook as a whole, each from the environment of `scripts/beside` that has them.

And cells as functions, for those that know no magics.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

PYTHON = Path(__file__).parents[2] / ".venv-beside" / "front-ends" / "bin" / "python"


class WholeNotebook:
    """A client that gets all cells before the first one runs."""

    takes, in_session = "tmp_path", False

    def __init__(self, folder: Path):
        assert PYTHON.exists(), "it is not installed: scripts/beside .venv front-ends"
        self.folder = folder
        self.outputs: dict[str, list[dict[str, Any]]] = {}

    def open(self, cells: list[str]) -> None:
        """Run all cells. Those that stop the notebook come last."""
        cells = sorted(cells, key=lambda cell: "raise " in cell)
        self.outputs = dict(zip(cells, self.execute(cells), strict=True))

    def execute(self, cells: list[str]) -> list[list[dict[str, Any]]]:
        """Return the outputs of each cell."""
        raise NotImplementedError

    def run(self, code: str, seen: Any) -> list[dict[str, Any]]:
        return self.outputs[code]


def as_function(code: str) -> dict[str, str | None]:
    """Return the body of a function that does what a cell does, and which tasks run it."""
    options, _, body = code.partition("\n")
    head, end, last = body.rpartition("\n")
    body = head + end + ("" if last.startswith(" ") else "return ") + last
    return {"body": textwrap.indent(body, "    "), "on": options.partition("--on ")[2] or None}
