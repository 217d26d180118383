"""Growth: what a cluster costs with 1 to 64 real tasks, and with up to 1,000 simulated ones.

Real tasks are those of a notebook whose launcher is warm; "start" is `%tfcluster start` until all are ready.
Lines are shown as text. The memory is what a task does not share; for simulated tasks it is what the
notebook's process has for each. Simulated tasks have no processes: a scripted backend answers at once, so the
figures are those of the supervisor and of the view alone, without the channel.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.memory import unique_mib
from benchmarks.notebook import Notebook, muted, notebook
from benchmarks.report import Row, Sizes, Target
from tfmagic.backends.fake import FakeBackend
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Command, ReleaseBarrier, RunCell, TaskBoot
from tfmagic.protocol.events import BarrierReached, CellRequested, CellReturned, Event
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor.running_cell import RunningCell
from tfmagic.supervisor.state import Policy
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.views.text import TextView

REAL, SIMULATED = (1, 4, 16, 64), (64, 256, 1000)
LINES = 1000  # from each task, of 70 bytes
LINE = "x" * 69
START, CELL, BARRIER, OUTPUT, MEMORY = (
    "start",
    "empty cell",
    "barrier",
    f"{LINES:,} lines from each",
    "memory",
)
UNITS = {START: "ms", CELL: "ms", BARRIER: "ms", OUTPUT: "ms", MEMORY: "MiB"}
TARGETS = {(CELL, 64): Target("value", "<=", 8), (BARRIER, 64): Target("value", "<=", 15)}
CELLS = {
    CELL: "pass",
    BARRIER: "import tfmagic\ntfmagic.barrier()",
    OUTPUT: f"for _ in range({LINES}):\n    print({LINE!r})",
}
_CALLS = {CELL: 20, BARRIER: 20, OUTPUT: 1}  # a round
_PATIENCE_S = 60.0

Times = dict[str, list[float]]


def measure(sizes: Sizes) -> list[Row]:
    rows = []
    with notebook(1) as book, muted():
        for count in REAL:
            rows += _rows(_real(book, count, sizes.growth_rounds), count)
    for count in SIMULATED:
        rows += _rows(simulate(count, sizes.growth_rounds), count, is_simulated=True)
    return rows


def _rows(times: Times, count: int, is_simulated: bool = False) -> Iterator[Row]:
    for what, values in times.items():
        target = None if is_simulated else TARGETS.get((what, count))
        value = statistics.median(values)
        yield Row(what, value, UNITS[what], target=target, tasks=count, is_simulated=is_simulated)


def _timed_ms(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started)


# ---- real tasks ---------------------------------------------------------------------------------


def _real(book: Notebook, count: int, rounds: int) -> Times:
    """Return the milliseconds of each step, and the memory, of a cluster of its own."""
    name = f"of-{count}"
    found: Times = {what: [] for what in UNITS}
    for number in range(rounds):
        if number:
            book.line(f"stop --cluster {name}")
        found[START].append(_timed_ms(lambda: book.line(f"start --cluster {name} --workers {count}")))
    clusters = book.shell.magics_manager.registry["TFClusterMagics"].notebook.clusters
    found[MEMORY].append(sum(unique_mib(row["pid"]) for row in clusters[name].status()))
    for what, body in CELLS.items():
        run = lambda body=body: book.cell(body, f"--cluster {name} --view text")  # noqa: E731
        run()  # the first is for imports
        found[what] += [_timed_ms(run) for _ in range(rounds * _CALLS[what])]
    book.line(f"stop --cluster {name}")
    return found


# ---- simulated tasks ----------------------------------------------------------------------------


class _Tasks:
    """The script of simulated tasks: they return at once, meet at a barrier, or write lines to their logs."""

    def __init__(self, run: RunFolder, tasks: tuple[TaskId, ...]):
        self.logs = {task: os.fspath(run.log_path(task)) for task in tasks}
        self.ends = dict.fromkeys(tasks, 0)
        self._tasks, self._cell = tasks, 0
        self._text = f"{LINE}\n".encode() * LINES

    def answer(self, task: TaskId, command: Command) -> Iterable[Event]:
        if isinstance(command, ReleaseBarrier):
            return [self._returned(task)]
        if not isinstance(command, RunCell):
            return []
        self._cell = command.cell
        if command.source == CELLS[BARRIER]:
            return [BarrierReached(task, 1, "barrier", self._tasks, cell=command.cell)]
        if command.source == CELLS[OUTPUT]:
            with open(self.logs[task], "ab") as log:
                self.ends[task] += log.write(self._text)
        return [self._returned(task)]

    def _returned(self, task: TaskId) -> CellReturned:
        return CellReturned(task, 1, self._cell, 0.0, self.ends[task])


def simulate(count: int, rounds: int) -> Times:
    """Return the milliseconds of each step, and the memory, with simulated tasks."""
    found: Times = {what: [] for what in UNITS}
    for _ in range(rounds):
        gc.collect()
        before_mib = unique_mib(os.getpid())
        started = time.perf_counter()
        with _simulated(count) as run_cell:
            found[START].append(1000 * (time.perf_counter() - started))
            for what, source in CELLS.items():
                found[what] += [_timed_ms(lambda: run_cell(source)) for _ in range(_CALLS[what])]  # noqa: B023
            gc.collect()
            found[MEMORY].append(max(unique_mib(os.getpid()) - before_mib, 0.0))
    return found


@contextmanager
def _simulated(count: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that runs a cell on simulated tasks, all of which are ready."""
    folder = Path(os.environ["TFMAGIC_STATE_DIR"], f"growth-{count}-{time.monotonic_ns()}")
    folder.mkdir()
    run, tasks = RunFolder(folder), tuple(TaskId("worker", i) for i in range(count))
    boot = lambda task, attempt: TaskBoot(  # noqa: E731 - only its task and attempt are read
        task, attempt, "", (), "", {}, "", (), "", tasks[0], 0, False
    )
    simulated = _Tasks(run, tasks)
    for log in simulated.logs.values():
        Path(log).touch()
    supervisor = Supervisor(FakeBackend(simulated.answer), tasks, Policy, lambda: boot, run, 1 << 40)
    supervisor.start()
    supervisor.wait_for(lambda state: all(seen.host for seen in state.tasks.values()), _PATIENCE_S)
    numbers = iter(range(1, 1 << 30))

    def run_cell(source: str) -> None:
        number = next(numbers)
        command = RunCell(cell=number, source=source, filename="<cell>", tasks=tasks)
        cell = RunningCell(CellRequested(number, dict.fromkeys(tasks, command)), simulated.ends)
        view = TextView(run, cell.starts.items(), cell.displays, _drop)
        supervisor.run_cell(cell)
        if not cell.done.wait(_PATIENCE_S):
            raise TimeoutError(f"the cell did not end on {count} simulated tasks")
        view.finish(cell.outcome)

    try:
        yield run_cell
    finally:
        supervisor.close()


def _drop(text: Any) -> None:
    pass
