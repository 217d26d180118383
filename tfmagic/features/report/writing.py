"""Write what a run was, for a bug report: one html file with what tfmagic knows, without the user's texts.

    run folder ─┐
    findings ───┼─ own_words ─→ Contents ─→ page ─→ file
    versions ───┤
    story ──────┘

Each field is of a known kind: a number, a state, a version, or words that tfmagic's source has. Only
`with_output` adds the user's own texts.
"""

import builtins
import os
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from msgspec import structs

from tfmagic import errors
from tfmagic.clusters.cells import features
from tfmagic.clusters.cells.features import Startable
from tfmagic.errors import TfmagicError
from tfmagic.features.report import own_story, page
from tfmagic.features.report.own_words import own_values, own_words
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.cell_records import CellRecord, TaskRecord, read_records
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.given_hints import Hint, read_hints
from tfmagic.runs.log_reader import tail_lines
from tfmagic.runs.stack_files import ask_for_stacks, group_stacks
from tfmagic.runs.status_reader import Snapshot, TaskStatus, read_snapshot, row_of, state_of
from tfmagic.supervisor import story_files
from tfmagic.system import files, secret_rules
from tfmagic.system.features import halves
from tfmagic.system.installed_packages import find_package
from tfmagic.system.memory import format_bytes

_PACKAGES = (
    *("tfmagic", "tensorflow", "tensorflow-cpu", "tf-nightly", "keras", "keras-nightly", "tf_keras", "numpy"),
    *("protobuf", "dill", "tblib", "msgspec", "ipython", "ipykernel", "ipywidgets", "anywidget", "traitlets"),
    *("jupyterlab", "notebook", "jupyter_server", "nbclient", "papermill", "h5py", "ray"),
)
_LINES, _LOG_BYTES, _MOST_LOGS = 200, 50_000, 64
_MOST_CELLS = 20


def write(run: RunFolder, shell: Any, cluster: Startable, path: Path, with_output: bool = False) -> None:
    """Write the report of a run into a file, which only this user can read.

    Args:
        shell: IPython's, or None.
        cluster: The cluster of this run, or one like it: what is found about this machine and environment.
        with_output: Add output, messages, tracebacks and stacks.

    Raises:
        TfmagicError: The file is there and is no report, it cannot be written, or the folder is no run.
    """
    snapshot = read_snapshot(run.folder)
    if snapshot is None:
        raise TfmagicError(f"{run.folder} is no run, or its run.json cannot be read")
    snapshot = replace(snapshot, tasks=_own_tasks(snapshot))
    try:
        if path.exists() and page.MARK not in files.read_bytes(path, 200).decode("utf-8", "replace"):
            raise TfmagicError(f"{path} is not a report, and is left as it is; name another file with --out")
        drawn = [half.of_run(run, snapshot, own_words, own_values) for half in halves("for_report")]
        environ = {**os.environ, **cluster.task_settings.env}
        contents = _contents(run, snapshot, environ if with_output else None)
        events = [event for part in drawn for event in part.events]
        contents = structs.replace(contents, doctor=_findings(shell, cluster), events=events)
        pictures = [picture for part in drawn for picture in part.pictures]
        files.replace_text(path, page.build(contents, pictures), 0o600)
    except OSError as error:
        raise TfmagicError(f"{path} cannot be written ({error.strerror or error})") from error


def default_path(run: RunFolder) -> Path:
    """Return where a report is written by default."""
    return Path(f"tfmagic-report-{run}.html")


def what_to_do(with_output: bool) -> str:
    """Return the end of the sentence that names the file."""
    return (
        "read it before you send it" if with_output else "--with-output adds output, messages and tracebacks"
    )


def _contents(run: RunFolder, snapshot: Snapshot, environ: Mapping[str, str] | None) -> page.Contents:
    """Return all but findings and events; with `environ`, also the user's texts, without its secrets."""
    records = read_records(run)
    failed = next((record for record in reversed(records) if any(part.error for part in record.tasks)), None)
    texts = list(_texts(run, snapshot, failed)) if environ is not None else []
    clean, replaced = _without_secrets(texts, environ or {})
    told = story_files.read(run.folder)
    lines, loop = own_story.of_run(told) if told is not None else ([], "")
    return page.Contents(
        run=str(run),
        facts=_facts(snapshot),
        cells=[
            _cell(number, record, read_hints(run, record.cell)) for number, record in enumerate(records, 1)
        ][-_MOST_CELLS:],
        failures=[_failure(part) for part in failed.tasks if part.error] if failed else [],
        tasks=[row_of(task) for task in snapshot.tasks],
        versions=_versions(),
        story=lines,
        loop=loop,
        texts=clean,
        replaced=replaced,
    )


def _findings(shell: Any, cluster: Startable) -> list[tuple[str, str, str]]:
    return [
        (found.severity, own_words(found.what), own_words(found.advice))
        for found in features.findings(shell, cluster)
    ]


def _own_tasks(snapshot: Snapshot) -> tuple[TaskStatus, ...]:
    """Return the tasks with numbered hosts instead of their names, and without addresses."""
    hosts = sorted({task.texts.get("host", "") for task in snapshot.tasks} - {""})
    return tuple(
        own_values(
            replace(
                task,
                texts={
                    name: f"host-{hosts.index(text) + 1}" if name == "host" and text else text
                    for name, text in task.texts.items()
                    if name != "address"
                },
            )
        )
        for task in snapshot.tasks
    )


def _facts(snapshot: Snapshot) -> list[tuple[str, str]]:
    facts = [
        ("shape", snapshot.shape),
        ("state", state_of(snapshot)),
        ("not forked", "; ".join(sorted({task.texts.get("not_forked", "") for task in snapshot.tasks}))),
        ("cells", ", ".join(f"{n} {state}" for state, n in (snapshot.cells or {}).items())),
    ]
    times = [("started", snapshot.started), ("last seen", snapshot.written), ("report of", time.time())]
    return [
        *((name, own_words(value)) for name, value in facts if value),
        *((name, time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at))) for name, at in times if at),
    ]


def _cell(number: int, record: CellRecord, hints: Iterable[Hint]) -> tuple[str, str]:
    states = ", ".join(f"{part.task} {part.state}" for part in record.tasks)
    names = "".join(f"; hint {name}" for name in dict.fromkeys(hint.name for hint in hints))
    return f"cell {number}", own_words(
        f"{record.verdict or 'running'} after {record.elapsed_s:.1f} s: {states}{names}"
    )


def _failure(part: TaskRecord) -> page.Failure:
    error = part.error
    assert error is not None
    ours = error.type in vars(errors)
    known = ours or error.type in vars(builtins)
    return page.Failure(
        part.task,
        error.type if known else own_words(error.type),
        not error.root,
        error.line or None,
        own_words(error.hint_name),
        own_words(error.message) if ours else "",
    )


def _versions() -> list[tuple[str, str]]:
    """Return the versions of the environment that writes the report."""
    packages = [(name, found["Version"]) for name in _PACKAGES if (found := find_package(name)) is not None]
    memory = format_bytes(psutil.virtual_memory().total)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {memory} of memory"
    release = re.match(r"[\d.]*", platform.release())  # a kernel of one's own can have a name
    system = f"{platform.system()} {release[0] if release else ''}, {' '.join(platform.libc_ver())}"
    own = [(name, re.sub(r"\+.*", "+…", version)) for name, version in packages]
    return [("Python", platform.python_version()), ("system", system), ("machine", machine), *own]


# -- the user's own texts ----------------------------------------------------------------------------


def _texts(run: RunFolder, snapshot: Snapshot, failed: CellRecord | None) -> Iterator[tuple[str, str]]:
    if snapshot.live:
        yield "stacks of all tasks", group_stacks(ask_for_stacks(run))
    for part in failed.tasks if failed else ():
        if part.error is not None:
            yield f"failure of {part.task}", f"{part.error.type}: {part.error.message}\n{part.error.text}"
    for task in run.tasks[:_MOST_LOGS]:
        yield f"output of {task.name}", _tail(run, task)


def _tail(run: RunFolder, task: TaskId) -> str:
    return "\n".join(tail_lines(run.log_path(task), _LINES, _LOG_BYTES)) or "(no output)"


def _without_secrets(
    texts: Sequence[tuple[str, str]], environ: Mapping[str, str]
) -> tuple[list[tuple[str, str]], int]:
    """Return the texts without tokens and values of secret variables, and how many were replaced."""
    values = sorted(secret_rules.secret_values(environ), key=len, reverse=True)
    known = "|".join(map(re.escape, values)) or "(?!)"
    patterns = (re.compile(known), secret_rules.ISSUED, secret_rules.SENT)
    count, found = 0, []
    for title, text in texts:
        for pattern in patterns:
            text, times = pattern.subn("<secret>", text)
            count += times
        found.append((title, text))
    return found, count
