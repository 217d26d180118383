"""Tell the user that a cell with ``--notify`` is done, detached or not: by a bell, or a command of the user.

A panel tells it by itself, as a notification of the browser, of a job that announces its end.
"""

import shlex
import subprocess
import sys
import threading
from typing import ClassVar

from tfmagic.clusters.cells.features import CellFeature, Context
from tfmagic.clusters.cells.job import Job
from tfmagic.runs.schemas import cell_report, describe
from tfmagic.system import notices

_COMMAND_S = 60.0


class Notify(CellFeature):
    """The option ``--notify`` and the setting ``TFCluster.notify_command``."""

    name = "notify"
    options: ClassVar = {
        "--notify": {
            "action": "store_true",
            "help": "tell me when it is done: the browser, a bell, or TFCluster.notify_command",
        }
    }

    def begin(self, job: Job, context: Context) -> None:
        """Let a page tell it, if the cell has the option."""
        job.announces_end = bool(job.options.chosen.get("notify"))

    def begun(self, job: Job, context: Context) -> None:
        """Tell it once when the job has ended."""
        if job.announces_end:
            when_done(job, context.setting("notify_command"))


FEATURE = Notify()


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
        notices.tell(f"tfmagic: TFCluster.notify_command {command!r} failed: {problem}")
