"""Tell the user that a cell with ``--notify`` is done, detached or not: by a bell, or a command of the user.

A panel tells it by itself, as a notification of the browser: see `notify` in `panel.js`.
"""

import shlex
import subprocess
import sys
import threading

from tfmagic.clusters.cells.job import Job
from tfmagic.runs.schemas import cell_report, describe

_COMMAND_S = 60.0


def when_done(job: Job, command: str) -> None:
    """Tell it once when the job has ended.

    Args:
        command: A line of shell words that gets the sentence as its last word; "" for none.
    """
    told = threading.Event()

    def tell() -> None:  # on the supervisor's thread, which must not wait for the command
        if not told.is_set():
            told.set()
            threading.Thread(target=_tell, args=(job, command), name="tfmagic-notify", daemon=True).start()

    job.on_done(tell)


def _tell(job: Job, command: str) -> None:
    if sys.stdout.isatty():
        print(end="\a", flush=True)
    if not command:
        return
    record = job.describe(job.outcome)
    sentence = f"cluster {record.cluster}: {describe(cell_report(record, job.run))}"
    try:
        done = subprocess.run([*shlex.split(command), sentence], timeout=_COMMAND_S, capture_output=True)
        problem = done.stderr.decode("utf-8", "replace").strip() if done.returncode else ""
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        print(f"tfmagic: TFCluster.notify_command {command!r} failed: {problem}", file=sys.stderr)
