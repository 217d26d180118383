"""``%tfcluster export``."""

import argparse
import re

from tfmagic.clusters.api.lines import Notebook, line_command, option
from tfmagic.features.exports.methods import Exports


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
    after="explain",
)
def _export(magics: Notebook[Exports], name: str, folder: str, cells: frozenset[int] | None) -> None:
    for line in str(magics.known(name).export(folder, cells=cells)).splitlines():
        print(f"tfmagic: {line}")
