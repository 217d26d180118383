"""The line command ``%tfcluster report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tfmagic.clusters.api.lines import flag, line_command, option
from tfmagic.clusters.launch.given_options import NO_OPTIONS
from tfmagic.features.report import writing
from tfmagic.frontends.notebook.line_reports import find_run

if TYPE_CHECKING:
    from tfmagic.frontends.notebook.magic import NotebookClusters


@line_command(
    "report",
    "write one html file about a run for a bug report, without texts of yours:  report [--out FILE] [RUN]",
    option("run_name", "RUN", "name of a run (default: that of the cluster here)", nargs="?"),
    option("--out", "FILE", "the file (default: tfmagic-report-RUN.html)"),
    flag("--with-output", "add output, messages, tracebacks and stacks"),
    after="timeline",
)
def _report(
    magics: NotebookClusters, name: str, run_name: str | None, out: str | None, with_output: bool
) -> None:
    run = find_run(magics, name, run_name)
    cluster = magics.clusters.get(name) or magics.new_cluster(name, NO_OPTIONS)
    if cluster.state is not None:
        cluster.write_records()
    path = Path(out).expanduser() if out else writing.default_path(run)
    writing.write(run, magics.shell, cluster, path, with_output)
    print(f"tfmagic: wrote {path}; {writing.what_to_do(with_output)}")
