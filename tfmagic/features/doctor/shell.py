"""``tfmagic doctor``: the checks of ``%tfcluster doctor``."""

import argparse
import json
import os
import sys
from typing import Any

from tfmagic.errors import BackendError, ClusterSpecError
from tfmagic.frontends.cli.parsers import BAD_USAGE
from tfmagic.system import linux_only
from tfmagic.system.advice import program_name

_COLOURS = {"✓": "32", "!": "33", "✕": "31"}


def main(args: argparse.Namespace) -> int:
    """Print the findings. Return 1 if something will fail."""
    if sentence := linux_only.why_not():  # the one finding of a system on which the rest cannot be imported
        found = {"severity": "trouble", "what": sentence, "advice": ""}
        print(json.dumps([found]) if args.json else f"✕ {sentence}")
        return 1
    return _examine(args)


def _examine(args: argparse.Namespace) -> int:
    from tfmagic.clusters.cluster import Cluster
    from tfmagic.clusters.launch.given_options import given_options
    from tfmagic.features.doctor.checks import examine
    from tfmagic.features.doctor.findings import Severity, case_of
    from tfmagic.runs.schemas import as_json

    try:
        case = case_of(None, Cluster(**given_options(args, args.parser).values))
    except (BackendError, ClusterSpecError) as error:
        sys.stderr.write(f"{program_name()} doctor: {error}\n")
        return BAD_USAGE
    findings = examine(case)
    if args.json:
        print(as_json([finding.for_programs for finding in findings]))
    else:
        has_colours = _has_colours(sys.stdout)
        for finding in findings:
            mark, text = finding.severity.value, str(finding)
            colour = _COLOURS[mark]
            print(f"\x1b[{colour}m{mark}\x1b[0m{text.removeprefix(mark)}" if has_colours else text)
    return int(any(finding.severity is Severity.TROUBLE for finding in findings))


def _has_colours(stream: Any) -> bool:
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
