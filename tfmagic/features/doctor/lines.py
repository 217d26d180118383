"""The line command ``%tfcluster doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfmagic.clusters.api.lines import flag, line_command
from tfmagic.clusters.launch.given_options import GivenOptions
from tfmagic.features.doctor import checks
from tfmagic.features.doctor.findings import case_of
from tfmagic.frontends.notebook.options import SHAPE
from tfmagic.runs import schemas

if TYPE_CHECKING:
    from tfmagic.frontends.notebook.magic import NotebookClusters


@line_command(
    "doctor",
    "check this environment for a cluster of that shape, and print how to fix problems",
    SHAPE,
    flag("--json", "print JSON, for programs", dest="plain"),
    after="attach",
)
def _doctor(magics: NotebookClusters, name: str, shape: GivenOptions, plain: bool) -> None:
    """Look at this environment, for a cluster of the given shape or for the one that runs."""
    cluster = magics.clusters.get(name)
    if cluster is None or not cluster.running or shape.given:
        cluster = magics.new_cluster(name, shape)
    findings = checks.examine(case_of(magics.shell, cluster))
    if plain:
        print(schemas.as_json([finding.for_programs for finding in findings]))
    else:
        print(*findings, sep="\n")
