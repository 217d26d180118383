"""``tfmagic doctor``: the checks of ``%tfcluster doctor``."""

import argparse
import os
import sys
from typing import Any

from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.launch.given_options import GivenOptions, given_options
from tfmagic.errors import BackendError, ClusterSpecError
from tfmagic.frontends import doctor
from tfmagic.frontends.cli.parsers import BAD_USAGE
from tfmagic.frontends.doctor import Case, Severity, examine
from tfmagic.runs.schemas import as_json
from tfmagic.system.advice import program_name

_COLOURS = {Severity.FINE: "32", Severity.NOTE: "33", Severity.TROUBLE: "31"}


def main(args: argparse.Namespace) -> int:
    """Print the findings. Return 1 if something will fail."""
    try:
        case = case_of(given_options(args, args.parser))
    except (BackendError, ClusterSpecError) as error:
        sys.stderr.write(f"{program_name()} doctor: {error}\n")
        return BAD_USAGE
    findings = examine(case)
    if args.json:
        print(as_json([finding.report for finding in findings]))
    else:
        has_colours = _has_colours(sys.stdout)
        for finding in findings:
            mark, text = finding.severity.value, str(finding)
            colour = _COLOURS[finding.severity]
            print(f"\x1b[{colour}m{mark}\x1b[0m{text.removeprefix(mark)}" if has_colours else text)
    return int(any(finding.severity is Severity.TROUBLE for finding in findings))


def case_of(asked: GivenOptions) -> Case:
    """Return the cluster that the options ask for, for a shell, with the presets of all settings."""
    return doctor.case_of(None, Cluster(**asked.values))


def _has_colours(stream: Any) -> bool:
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
