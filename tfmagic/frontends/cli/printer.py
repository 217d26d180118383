"""The output of ``tfmagic run``: a thread follows the logs of the tasks, and writes them to standard output.

The printer has a thread of its own because the reader of standard output can stop reading. The timeout and
the rules of the run must work all the same.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Sequence

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import RunFolder
from tfmagic.views.text import TextView


def say(text: str) -> None:
    """Print a line on standard error, beside the script's own output."""
    sys.stderr.write(f"tfmagic: {text}\n")
    sys.stderr.flush()


class Printer:
    """The thread that writes the tasks' output to standard output."""

    def __init__(self, run: RunFolder, tasks: Sequence[TaskId]):
        is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        starts = [(task, 0) for task in tasks]
        self._view = TextView(run, starts, deque(), self._write, terminal=is_terminal)
        self.broken = False  #: the reader of standard output has closed it
        self._is_lost = False
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._serve, name="tfmagic-printer", daemon=True)
        self.thread.start()

    def finish(self) -> None:
        """Let `thread` end when it has shown everything; the tasks write no more."""
        self._over.set()

    def _serve(self) -> None:
        while not self._over.wait(self._view.interval_s):
            self._view.update()
        self._view.finish(None)

    def _write(self, text: str) -> None:
        if self.broken or self._is_lost:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            self.broken = True
        except OSError as error:  # a full disk, for example, if the output is redirected: the run goes on
            self._is_lost = True
            say(f"the output cannot be written any more ({error}); the logs of the tasks have it")
