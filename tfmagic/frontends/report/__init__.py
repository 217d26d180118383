"""Write what a run was, for a bug report: one html file, without what is of the machine.

    run folder ─┐
    doctor ─────┼─ Redactor ─→ Contents ─→ page ─→ file
    versions ───┘

Everything is redacted before it is drawn, since a picture shortens texts.
"""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from tfmagic.errors import TfmagicError
from tfmagic.frontends.doctor import Case, examine
from tfmagic.frontends.doctor.software import find_package
from tfmagic.frontends.report import page
from tfmagic.frontends.report.redaction import Redactor
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.cell_records import CellRecord, read_records
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import tail_lines
from tfmagic.runs.schemas import ErrorReport, cell_report, describe, error_reports
from tfmagic.runs.stack_files import ask_for_stacks, group_stacks
from tfmagic.runs.status_reader import Snapshot, read_snapshot, row_of, state_of
from tfmagic.system import files
from tfmagic.system.memory import format_bytes
from tfmagic.views.pictures import run_timeline
from tfmagic.views.pictures.cluster_map import map_of_rows
from tfmagic.views.pictures.lanes import NoRecords
from tfmagic.views.pictures.timeline_svg import draw

_PACKAGES = (
    *("tfmagic", "tensorflow", "tensorflow-cpu", "tf-nightly", "keras", "keras-nightly", "tf_keras", "numpy"),
    *("protobuf", "dill", "tblib", "msgspec", "ipython", "ipykernel", "ipywidgets", "anywidget", "traitlets"),
    *("jupyterlab", "notebook", "jupyter_server", "nbclient", "papermill", "h5py", "ray"),
)
_LINES, _LOG_BYTES, _MOST_LOGS = 200, 50_000, 64
_MOST_CELLS = 20


def write(run: RunFolder, case: Case, path: Path) -> None:
    """Write the report of a run into a file, which only this user can read.

    Args:
        case: What the doctor examines.

    Raises:
        TfmagicError: The file is there and is no report, it cannot be written, or the folder is no run.
    """
    snapshot = read_snapshot(run.folder)
    if snapshot is None:
        raise TfmagicError(f"{run.folder} is no run, or its run.json cannot be read")
    try:
        if path.exists() and page.MARK not in files.read_bytes(path, 200).decode("utf-8", "replace"):
            raise TfmagicError(f"{path} is not a report, and is left as it is; name another file with --out")
        files.replace_text(path, page.build(_contents(run, snapshot, case)), 0o600)
    except OSError as error:
        raise TfmagicError(f"{path} cannot be written ({error.strerror or error})") from error


def default_path(run: RunFolder) -> Path:
    """Return where a report is written by default."""
    return Path(f"tfmagic-report-{run}.html")


def _contents(run: RunFolder, snapshot: Snapshot, case: Case) -> page.Contents:
    records = read_records(run)
    redactor = _redactor(run, snapshot, records, case.environ)
    failed = next((record for record in reversed(records) if error_reports(record, run)), None)
    stacks = group_stacks(ask_for_stacks(run)) if snapshot.live else ""
    return page.Contents(
        run=redactor.text(str(run)),
        facts=_facts(redactor, run, snapshot, records),
        errors=[] if failed is None else _errors(redactor, failed, run),
        no_errors=_why_no_errors(records),
        pictures=_pictures(redactor, run, snapshot),
        stacks=redactor.text(stacks),
        doctor=[redactor.value(finding.report) for finding in examine(case)],
        versions=_versions(),
        logs=[(task.name, redactor.text(_tail(run, task))) for task in run.tasks[:_MOST_LOGS]],
        taken_out=sorted(redactor.counts.items()),  # at the end: what the lines above have written
    )


def _redactor(
    run: RunFolder, snapshot: Snapshot, records: Sequence[CellRecord], environ: Mapping[str, str]
) -> Redactor:
    hosts = {snapshot.host, *(task.texts.get("host", "") for task in snapshot.tasks)}
    hosts |= {task.host for record in records for task in record.tasks}
    state, project = str(run.folder.parent.parent), os.path.dirname(run.notebook)
    return Redactor({"state": state, "project": project}, hosts, environ)


def _facts(
    redactor: Redactor, run: RunFolder, snapshot: Snapshot, records: Sequence[CellRecord]
) -> list[tuple[str, str]]:
    """Return what is known of the run, and a line for each of its last cells."""
    cells = [redactor.text(describe(cell_report(record, run))) for record in records[-_MOST_CELLS:]]
    facts = [
        ("cluster", snapshot.cluster),
        ("shape", snapshot.shape),
        ("state", state_of(snapshot)),
        ("started", _when(snapshot.started)),
        ("last seen", _when(snapshot.written)),
        (
            "not forked",
            "; ".join(sorted({t.texts["not_forked"] for t in snapshot.tasks if t.texts.get("not_forked")})),
        ),
        ("report of", _when(time.time())),
    ]
    shown = [(name, redactor.text(value)) for name, value in facts if value]
    return [*shown, *((f"cell {n}", text) for n, text in enumerate(cells, len(records) - len(cells) + 1))]


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds)) if seconds else ""


def _errors(redactor: Redactor, record: CellRecord, run: RunFolder) -> list[tuple[ErrorReport, str]]:
    texts = {part.task: part.error.text for part in record.tasks if part.error is not None}
    return [
        (redactor.value(msgspec.structs.replace(error, log="")), redactor.text(texts[error.task]))
        for error in error_reports(record, run)
    ]


def _why_no_errors(records: Sequence[CellRecord]) -> str:
    if records:
        return "No cell of this run has failed."
    return "This run has no cells: a script's failures are in its logs and in the timeline."


def _pictures(redactor: Redactor, run: RunFolder, snapshot: Snapshot) -> list[tuple[str, str]]:
    rows = [row_of(redactor.value(task)) for task in snapshot.tasks]
    found = []
    if rows:
        title = redactor.text(f"cluster {snapshot.cluster}: {snapshot.shape}, when it was last seen")
        found.append(("Map", map_of_rows(title, rows).svg))
    try:
        timeline = run_timeline.of_run(run, f"run {run}", whole=True, has_sources=False).timeline
        found.append(("Timeline", draw(redactor.value(timeline)).svg))
    except NoRecords:
        pass
    return found


def _tail(run: RunFolder, task: TaskId) -> str:
    return "\n".join(tail_lines(run.log_path(task), _LINES, _LOG_BYTES)) or "(no output)"


def _versions() -> list[tuple[str, str]]:
    """Return the versions of the environment that writes the report."""
    packages = [(name, found["Version"]) for name in _PACKAGES if (found := find_package(name)) is not None]
    memory = format_bytes(psutil.virtual_memory().total)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {memory} of memory"
    system = f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}"
    return [("Python", platform.python_version()), ("system", system), ("machine", machine), *packages]
