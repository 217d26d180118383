"""``tfmagic doctor``: the checks of ``%tfcluster doctor``, with advice for a shell."""

import argparse
import json
import os
import re
import sys
from dataclasses import asdict, replace
from typing import Any

from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.launch.arguments import ShapeOptions, shape_of
from tfmagic.errors import BackendError, ClusterSpecError
from tfmagic.frontends import doctor
from tfmagic.frontends.cli.parsers import BAD_USAGE, program_name
from tfmagic.frontends.doctor import Case, Severity, examine

_COLOURS = {Severity.FINE: "32", Severity.NOTE: "33", Severity.TROUBLE: "31"}
_IN_A_SHELL = (  # lines for a notebook, as the checks write them, and the same for a shell
    (r"%env (\w+)=", r"export \1="),
    (r'import os; del os\.environ\["(\w+)"\]', r"unset \1"),
    (r'import os; os\.environ\["(\w+)"\] = "([^"]*)"', r"export \1=\2"),
    (r"import resource; resource\.setrlimit\(resource\.RLIMIT_NOFILE, \((\d+), -?\d+\)\)", r"ulimit -n \1"),
    (r"!mv ", "mv "),
    (r"%config TFCluster\.(\w+) = (\S+)", r"tfmagic.Cluster(\1=\2)"),
    (r"%tfcluster restart --workers (\d+) --ps (\d+)", r"{program} run --workers \1 --ps \2 SCRIPT"),
    (r"after %tfcluster restart put it into the first cell", "put it first in the script"),
    (r"%tfcluster (restart|revive)\b", "another run"),
    (r"%pip install", "pip install"),
    (r"%tfcluster start", "{program} reap"),
    (r"%tfcluster attach", "{program} logs"),
    (r" +before Jupyter is started|, where Jupyter is started|, then restart the kernel", ""),
    (r"the notebook's is left as it is", "yours is left as it is"),
)


def main(args: argparse.Namespace) -> int:
    """Print the findings. Return 1 if something will fail."""
    try:
        case = case_of(shape_of(args, args.parser))
    except (BackendError, ClusterSpecError) as error:
        sys.stderr.write(f"{program_name()} doctor: {error}\n")
        return BAD_USAGE
    findings = [replace(f, what=in_a_shell(f.what), advice=in_a_shell(f.advice)) for f in examine(case)]
    if args.json:
        plain = [{"severity": f.severity.name.lower(), "what": f.what, "advice": f.advice} for f in findings]
        print(json.dumps(plain, ensure_ascii=False))
    else:
        has_colours = _has_colours(sys.stdout)
        for finding in findings:
            mark, text = finding.severity.value, str(finding)
            colour = _COLOURS[finding.severity]
            print(f"\x1b[{colour}m{mark}\x1b[0m{text.removeprefix(mark)}" if has_colours else text)
    return int(any(finding.severity is Severity.TROUBLE for finding in findings))


def case_of(asked: ShapeOptions) -> Case:
    """Return the cluster that the options ask for, for a shell, with the presets of all settings."""
    given = {option: value for option, value in asdict(asked).items() if value is not None}
    return doctor.case_of(
        None, Cluster(**{**given, "env": dict(asked.env), "resources": dict(asked.resources)})
    )


def in_a_shell(advice: str) -> str:
    """Return the advice with lines for a shell instead of a notebook."""
    for pattern, words in _IN_A_SHELL:
        advice = re.sub(pattern, words.replace("{program}", program_name()), advice)
    return advice


def _has_colours(stream: Any) -> bool:
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
