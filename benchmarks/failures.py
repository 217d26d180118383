"""Failures: the time until the notebook has the exception, and the user the prompt.

- An exception on four tasks. The peer is ipyparallel's `%%px`; the time of an empty cell is subtracted from
  both.
- The death of one of three workers that all-reduce: the time until the notebook raises, compared with the
  time until the last survivor gets an error where plain processes run the same script.
- Ctrl-C, in Python and in a collective.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.notebook import Notebook, muted, notebook
from benchmarks.report import Row, Sizes, Target
from benchmarks.training import free_addresses

TASKS = 4
RAISING = "def fail(x):\n    raise ValueError(x)\nfail(1)\n"
SCRIPT = Path(__file__).with_name("collective_script.py")
WAITS = {
    "Python": "import time\nprint('WAITING', flush=True)\nwhile True: time.sleep(0.01)\n",
    "a collective": (
        "import time, tfmagic\nprint('WAITING', flush=True)\n"
        "while tfmagic.current_task().index == 0: time.sleep(0.01)\nstep()\n"
    ),
}
STRATEGY = SCRIPT.read_text().partition("deadline =")[0]
_PATIENCE_S = 60.0


def measure(sizes: Sizes) -> list[Row]:
    return [_raising(sizes), _dying(sizes), *_interrupts(sizes)]


def _raising(sizes: Sizes) -> Row:
    with notebook(TASKS) as book, peers.engines(TASKS) as client:
        client.activate()
        px: Callable[[str], Any] = lambda body: book.shell.run_cell_magic("px", "", body)  # noqa: E731
        ours, theirs = [], []
        for _ in range(sizes.cell_rounds):
            ours.append(_extra_ms(book.cell))
            theirs.append(_extra_ms(px))
    target = Target("value", "<=", 50)
    what = "exception on 4 tasks to the raise, beyond an empty cell"
    return Row(what, statistics.median(ours), "ms", statistics.median(theirs), "%%px", target, (ours, theirs))


def _extra_ms(run: Callable[[str], Any]) -> float:
    """Return by how many milliseconds a raising cell takes longer than an empty one, by medians of ten."""
    return statistics.median(_time_ms(run, RAISING) for _ in range(10)) - statistics.median(
        _time_ms(run, "pass\n") for _ in range(10)
    )


def _time_ms(run: Callable[[str], Any], body: str) -> float:
    started = time.perf_counter()
    with (
        contextlib.suppress(Exception),
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stderr(nowhere),
    ):
        run(body)
    return 1000 * (time.perf_counter() - started)


def _dying(sizes: Sizes) -> Row:
    ours, theirs = [], []
    with notebook(3) as book:
        for _ in range(sizes.deaths):
            ours.append(_death_in_cell(book))
            theirs.append(_death_in_scripts())
    target = Target("value", "<=", 0.3)
    what = "SIGKILL in a collective to the raise (scripts: to the last survivor's error)"
    medians = statistics.median(ours), statistics.median(theirs)
    return Row(what, medians[0], "s", medians[1], "3 plain scripts", target, (ours, theirs))


def _death_in_cell(book: Notebook) -> float:
    import tfmagic

    with muted():
        book.cluster.restart()
        try:
            book.cell(SCRIPT.read_text())
        except tfmagic.TaskDied:
            raised = time.monotonic()
    lines = book.cluster.logs("worker-2", tail=50)["worker-2"]
    line = next(line for line in reversed(lines) if line.startswith('{"killed"'))
    return raised - float(json.loads(line)["killed"])


def _death_in_scripts() -> float:
    addresses = free_addresses(3)
    processes = []
    for index in range(3):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environ = {**os.environ, "TF_CONFIG": json.dumps(config)}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(SCRIPT)],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
    try:
        outputs = [process.communicate(timeout=_PATIENCE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    found = [json.loads(text.splitlines()[-1]) for text in outputs]
    killed = next(x["killed"] for x in found if "killed" in x)
    return float(max(x["noticed"] for x in found if "noticed" in x) - killed)


def _interrupts(sizes: Sizes) -> list[Row]:
    rows = []
    with notebook(2) as book:
        for where, limit in (("Python", 0.5), ("a collective", 1.5)):
            seconds = [_interrupt(book, WAITS[where], where != "Python") for _ in range(sizes.deaths)]
            what = f"Ctrl-C to the prompt, tasks in {where}"
            rows.append(Row(what, statistics.median(seconds), "s", target=Target("value", "<=", limit)))
    return rows


def _interrupt(book: Notebook, body: str, needs_strategy: bool) -> float:
    pressed: list[float] = []

    def press() -> None:
        logs = [book.cluster.run_folder.log_path(task) for task in book.cluster.tasks]
        while not all(path.read_text().count("WAITING") > before[path] for path in logs):
            time.sleep(0.01)
        time.sleep(0.2)  # until the tasks wait
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    with muted():
        if needs_strategy:
            book.cell(STRATEGY)
        before = {
            path: path.read_text().count("WAITING")
            for path in (book.cluster.run_folder.log_path(task) for task in book.cluster.tasks)
        }
        presser = threading.Thread(target=press)
        presser.start()
        try:
            book.cell(body)
        except KeyboardInterrupt:
            seconds = time.monotonic() - pressed[0]
        presser.join()
    return seconds
