"""``tfmagic doctor``: the checks of ``%tfcluster doctor``, with lines that a shell understands."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from typing import Any

from tfmagic.clusters.arguments import ShapeOptions, shape_of
from tfmagic.clusters.settings import TFCluster
from tfmagic.clusters.task_settings import TaskSettings
from tfmagic.errors import ClusterSpecError
from tfmagic.frontends.cli.parsers import BAD_USAGE, program_name
from tfmagic.frontends.doctor import Case, Finding, Severity, examine
from tfmagic.protocol.cluster_spec import ClusterShape

_COLOURS = {Severity.FINE: "32", Severity.NOTE: "33", Severity.TROUBLE: "31"}
_IN_A_SHELL = tuple(  # what checks advise is typed into a notebook: what it is called in a shell
    (re.compile(pattern), words)
    for pattern, words in (
        (r"%env (\w+)=", r"export \1="),
        (r'import os; del os\.environ\["(\w+)"\]', r"unset \1"),
        (r'import os; os\.environ\["(\w+)"\] = "([^"]*)"', r"export \1=\2"),
        (
            r"import resource; resource\.setrlimit\(resource\.RLIMIT_NOFILE, \((\d+), -?\d+\)\)",
            r"ulimit -n \1",
        ),
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
)


def main(found: argparse.Namespace) -> int:
    """Print the findings; 1 where one of them is trouble."""
    try:
        case = case_of(shape_of(found, found.parser))
    except ClusterSpecError as error:
        sys.stderr.write(f"{program_name()} doctor: {error}\n")
        return BAD_USAGE
    findings = examine(case)
    if found.json:
        print(json.dumps([as_json(finding) for finding in findings], ensure_ascii=False))
    else:
        for finding in findings:
            print(tell(finding, colours_wanted(sys.stdout)))
    return int(any(finding.severity is Severity.TROUBLE for finding in findings))


def case_of(asked: ShapeOptions) -> Case:
    """The cluster that is asked for, seen from a shell, with the presets of all settings."""
    settings = TFCluster.instance()
    workers = settings.workers if asked.workers is None else asked.workers
    shape = ClusterShape(workers, asked.ps or 0, bool(asked.chief), bool(asked.evaluator))
    keras = 3 if asked.keras is None else asked.keras
    make = TaskSettings(
        dict(asked.env), asked.gpus_per_task, keras, asked.keras_fix, asked.auto_restart or 0, asked.isolate
    )
    return Case(None, shape, make, lambda name: getattr(settings, name))


def tell(finding: Finding, coloured: bool = False) -> str:
    """A finding in one or two lines."""
    mark = finding.severity.value
    mark = f"\x1b[{_COLOURS[finding.severity]}m{mark}\x1b[0m" if coloured else mark
    head = f"{mark} {in_a_shell(finding.what)}"
    return f"{head}\n    {in_a_shell(finding.advice)}" if finding.advice else head


def as_json(finding: Finding) -> dict[str, str]:
    """A finding for programs."""
    severity, advice = finding.severity.name.lower(), in_a_shell(finding.advice)
    return {"severity": severity, "what": in_a_shell(finding.what), "advice": advice}


def in_a_shell(advice: str) -> str:
    """The same advice for who has no notebook."""
    for pattern, words in _IN_A_SHELL:
        advice = pattern.sub(words.replace("{program}", program_name()), advice)
    return advice


def colours_wanted(stream: Any) -> bool:
    """Whether colours are seen there, and not unwelcome."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
