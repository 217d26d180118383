"""The page of ``tfmagic report``, and its options."""

import argparse

from tfmagic.frontends.cli.pages import Page


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", nargs="?", default="", metavar="RUN", help="a run (default: the newest)")
    add("--out", metavar="FILE", help="the file (default: tfmagic-report-RUN.html, here)")
    add("--with-output", action="store_true", help="add output, messages, tracebacks and stacks")


PAGES = {
    "report": Page(
        "write one html file about a run, for a bug report, without names and paths",
        "[--out FILE] [RUN]",
        """\
Writes what a run was into one html file: its state, map and timeline, the failures of
its last failed cell, the last lines of each task, for a running one where each task is
now, what doctor finds, and versions. A browser shows the file without a network.
RUN is as for timeline.

Names of users and machines, paths of home, project and other folders, addresses, and
what looks like a password, key or token are replaced by labels such as <home> and
<host-1>. What your code printed stays otherwise, and so do names of files and the lines
of code in tracebacks. So read the file before you send it.""",
        (
            ("report", "of the newest run"),
            ("report 20260131-0930 --out bug.html", "of another run, into that file"),
        ),
        (("0", "written"), ("1", "no such run, or the file cannot be written"), ("2", "bad usage")),
        _add,
        after="timeline",
    ),
}
