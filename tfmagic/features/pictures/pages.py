"""The page of ``tfmagic timeline``, and its options."""

import argparse

from tfmagic.clusters.launch.arguments import parse_count
from tfmagic.frontends.cli.pages import Page


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", nargs="?", default="", metavar="RUN", help="a run (default: the newest)")
    add("--all", action="store_true", help="the whole run, not only its last cell")
    add("--cell", type=parse_count, metavar="N", help="number of another cell in the notebook")
    add("--svg", metavar="FILE", help="write a picture instead")
    add("--perfetto", metavar="FILE", help="write a trace for https://ui.perfetto.dev instead")


PAGES = {
    "timeline": Page(
        "draw what each task of a run did and when, also after its kernel was killed",
        "[options] [RUN]",
        """\
Draws a row for each task over the last cell or call of a run: where it started, ran,
waited and for whom, failed, died and came back; then a list of these events. RUN is the
name of a run or the beginning of that name, its folder, or the name of a cluster, which
stands for its newest run. Without RUN it is the newest run of this folder, else of all.""",
        (
            ("timeline", "the last cell of the newest run"),
            ("timeline --all", "the newest run from its start to its end"),
            ("timeline 20260131-0930 --cell 7", "a cell, by its number in the notebook"),
            ("timeline --all --svg run.svg", "a picture"),
            ("timeline --all --perfetto run.json", "a trace, to zoom into and to query"),
        ),
        (
            ("0", "success"),
            ("1", "no such run or cell, or the file cannot be written"),
            ("2", "bad usage"),
        ),
        _add,
        after="wait",
    ),
}
