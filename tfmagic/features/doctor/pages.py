"""The page of ``tfmagic doctor``, and its options."""

import argparse

from tfmagic.clusters.launch.given_options import add_options
from tfmagic.frontends.cli.pages import Page


def _add(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "the cluster to check for (default: two workers)", can_keep=False)
    parser.add_argument("--json", action="store_true", help="for programs")


PAGES = {
    "doctor": Page(
        "check this machine, and print the line that fixes each problem",
        "[options]",
        """\
Checks Python, TensorFlow, Keras, memory, cores, GPUs, limits, network, proxies and
the state folder, without importing TensorFlow. Each finding is marked: ✓ fine,
! works, but perhaps not as expected, ✕ will fail or hang. The line that fixes a
problem follows it. With a shape, the check is whether that cluster fits.""",
        (
            ("doctor", "check for two workers"),
            ("doctor --workers 64", "check for another shape"),
            ("doctor --json", "for programs: a list of {severity, what, advice}"),
        ),
        (("0", "nothing will fail"), ("1", "a finding is marked ✕"), ("2", "bad usage")),
        _add,
        after="run",
        everywhere=True,
    ),
}
