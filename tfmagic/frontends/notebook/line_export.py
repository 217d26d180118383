"""``%tfcluster export``."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from tfmagic.clusters.api.lines import line_command, option

if TYPE_CHECKING:
    from tfmagic.frontends.notebook.magic import NotebookClusters


def parse_numbers(text: str) -> frozenset[int]:
    """Parse numbers of cells, such as ``3-7,9``, for argparse."""
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} are no numbers of cells; write 3-7,9")
    pairs = [part.partition("-") for part in text.split(",")]
    return frozenset(n for low, _, high in pairs for n in range(int(low), int(high or low) + 1))


@line_command(
    "export",
    "write the cells just run as main.py, with files for Slurm, Compose, Kubernetes and Ray:  export DIR",
    option("folder", "DIR", "the folder, which is made"),
    option(
        "--cells", "N-M", "cells by number, such as 3-7,9 (default: all that succeeded)", type=parse_numbers
    ),
)
def _export(magics: NotebookClusters, name: str, folder: str, cells: frozenset[int] | None) -> None:
    for line in str(magics.known(name).export(folder, cells=cells)).splitlines():
        print(f"tfmagic: {line}")
