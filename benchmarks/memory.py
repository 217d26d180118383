"""Memory: the memory that one more idle task does not share (its unique set size).

The figures are means of 4 tasks that ran nothing, and of 4 that ran one TensorFlow op. The peer is a fresh
interpreter that has imported TensorFlow, without and with that op. Peer and tasks share TensorFlow's mapped
files with our launcher at that moment, so these pages are counted on neither side.
"""

from __future__ import annotations

import statistics

import psutil

from benchmarks import peers
from benchmarks.notebook import FIRST_OP, Notebook, muted, notebook
from benchmarks.report import Row, Sizes, Target

TASKS = 4
TARGET = Target("value", "<=", 35)  # a dozen more tasks on a small laptop
_MIB = 1 << 20


def measure(sizes: Sizes) -> list[Row]:
    with notebook(TASKS) as book:
        ours_mib = [_tasks_mib(book)]
        with muted():
            book.cell(FIRST_OP)
        ours_mib.append(_tasks_mib(book))
        theirs_mib = [_interpreter_mib("import tensorflow"), _interpreter_mib(FIRST_OP)]
    after = ("that ran nothing", "after one op")
    peer = ("import tensorflow", "import and one op")
    return [
        Row(f"unique memory of an idle task {after[n]}", ours_mib[n], "MiB", theirs_mib[n], peer[n], TARGET)
        for n in range(2)
    ]


def _tasks_mib(book: Notebook) -> float:
    """Return the mean of all tasks."""
    return statistics.mean(unique_mib(row["pid"]) for row in book.cluster.status())


def _interpreter_mib(code: str) -> float:
    with peers.waiting_interpreter(code) as pid:
        return unique_mib(pid)


def unique_mib(pid: int) -> float:
    """Return the memory that no other process shares."""
    return psutil.Process(pid).memory_full_info().uss / _MIB
