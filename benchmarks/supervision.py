"""Supervision: the seconds until a death or a hang is noticed, and the share of a core that supervision uses.

The times are those of a real cluster. The share is the CPU time of this process with simulated tasks: a
scripted backend whose tasks reach another line of the cell and print a line each second, under the real
supervisor and the real panel, whose messages are encoded and dropped. Another process writes the logs.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import tfmagic
from benchmarks.report import Row, Sizes, Target
from tfmagic.backends.fake import FakeBackend
from tfmagic.clusters.tools.status import StatusWriter
from tfmagic.protocol.cluster_spec import ClusterShape, TaskId
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import CellRequested, CellReturned, LineReached
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor.cell_controls import CellControls
from tfmagic.supervisor.running_cell import RunningCell
from tfmagic.supervisor.state import Policy
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.views.panel import Look, PanelView
from tfmagic.views.protocol import ViewContext

_PATIENCE_S = 30.0
_WRITER = """
import os, sys, time
folder, count, end = sys.argv[1], int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
fds = [os.open(f"{folder}/worker-{i}.log", os.O_WRONLY | os.O_APPEND) for i in range(count)]
turn = 0
while time.monotonic() < end:
    began = time.monotonic()
    for i, fd in enumerate(fds):
        os.write(fd, b"epoch %d loss 0.1234 accuracy 0.9876 of task %d\\n" % (turn, i))
        if i % 50 == 49:
            time.sleep(max(began + i / count - time.monotonic(), 0))
    turn += 1
    time.sleep(max(began + 1 - time.monotonic(), 0))
"""


def measure(sizes: Sizes) -> list[Row]:
    shares = [_share(count, sizes) for count in (4, 64, 1000)]
    return [*_detection(sizes), *shares, _sampling(sizes), _rest(sizes)]


# ---- times --------------------------------------------------------------------------------------


def _detection(sizes: Sizes) -> list[Row]:
    deaths, pauses, hangs = [], [], []
    with tfmagic.Cluster(workers=3, stall_s=2.0) as cluster:
        supervisor = cluster._running_cluster().supervisor
        for _ in range(sizes.deaths):
            pid = supervisor.state.tasks[cluster.tasks[1]].pid
            began = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            supervisor.wait_for(lambda s: not s.tasks[cluster.tasks[1]].pid, _PATIENCE_S)
            deaths.append(1000 * (time.perf_counter() - began))
            cluster.revive()
        for _ in range(sizes.deaths):
            future = cluster.submit(time.sleep, 60)
            _until(
                lambda: cluster.status()[1]["line"] is not None or cluster.status()[1]["doing"] == "running"
            )
            began = time.perf_counter()
            cluster.faults.pause("worker-1")
            _until(lambda: cluster.status()[1]["doing"] == "stalled")
            pauses.append(1000 * (time.perf_counter() - began))
            cluster.faults.resume("worker-1")
            _until(lambda: cluster.status()[0]["doing"] == "stalled")
            hangs.append(time.perf_counter() - began - 2.0)
            cluster.interrupt()
            future.exception()
    return [
        _row("death between cells (SIGKILL) to the state", deaths, "ms", 50),
        _row("SIGSTOP in a cell to 'stalled'", pauses, "ms", 1500),
        _row("hang to its sentence, beyond stall_s (2 s)", hangs, "s", 3),
    ]


def _until(condition: Callable[[], Any]) -> None:
    deadline = time.perf_counter() + _PATIENCE_S
    while not condition():
        if time.perf_counter() > deadline:
            raise TimeoutError("the measured change did not happen")
        time.sleep(0.002)


# ---- shares -------------------------------------------------------------------------------------


class LineReachingBackend(FakeBackend):
    """A backend whose tasks have no processes; while a cell runs, each task reaches a line every second."""

    def __init__(self, count: int):
        super().__init__(self._note_cell)
        self._tasks = [TaskId("worker", i) for i in range(count)]
        self._cells: dict[TaskId, int] = {}
        self._next = 0.0
        self._place = self._turn = 0

    def end_cells(self) -> None:
        self.report(*(CellReturned(task, 1, cell, 1.0, 0) for task, cell in self._cells.items()))
        self._cells = {}

    def _note_cell(self, task: TaskId, command: Any) -> list[Any]:
        if isinstance(command, RunCell):
            self._cells[task] = command.cell
        return []

    def wait(self, timeout_s: float | None) -> None:
        due_s = max(self._next - time.monotonic(), 0.0) if self._cells else 1.0
        super().wait(min(due_s, 1.0 if timeout_s is None else timeout_s))

    def take_events(self) -> Sequence[Any]:
        lines = self._reach_lines() if self._cells and time.monotonic() >= self._next else []
        return [*super().take_events(), *lines]

    def _reach_lines(self) -> list[Any]:
        """Return line events of a twentieth of the tasks, so that not all come at the same moment."""
        self._next = time.monotonic() + 0.05
        share = max(len(self._tasks) // 20, 1)
        chosen = self._tasks[self._place : self._place + share] if self._place < len(self._tasks) else []
        self._place = (self._place + share) % max(len(self._tasks), 20)
        self._turn += 1
        return [LineReached(task, 1, self._cells[task], "<cell>", self._turn % 50 + 1) for task in chosen]


class _Encoded:
    """A live display that encodes its messages, as a widget does, and drops them."""

    def __init__(self) -> None:
        self.bytes = 0

    def open(self, model: Any) -> Mapping[str, Any]:
        return {"text/plain": json.dumps(model.setup)}

    def send(self, message: Mapping[str, Any]) -> None:
        self.bytes += len(json.dumps(message))

    def requests(self) -> list[Mapping[str, Any]]:
        return [] if self.bytes else [{"kind": "hello"}]

    def end(self, replay: Callable[[], Mapping[str, Any]]) -> None:
        pass


def _share(count: int, sizes: Sizes) -> Row:
    folder = Path(os.environ["TFMAGIC_STATE_DIR"]) / f"simulated-{count}"
    folder.mkdir()
    run, backend = RunFolder(folder), LineReachingBackend(count)
    tasks = tuple(TaskId("worker", i) for i in range(count))
    for task in tasks:
        run.log_path(task).touch()
    boot = lambda task, attempt: TaskBoot(  # noqa: E731 - only its task and attempt are read
        task, attempt, "", (), "", {}, "", (), "", tasks[0], 0, False
    )
    writer = StatusWriter("simulated", ClusterShape(count), run, lambda: backend.allocate(tasks))
    supervisor = Supervisor(backend, tasks, Policy, lambda: boot, run, 1 << 40, writer.write_if_due)
    supervisor.start()
    supervisor.wait_for(lambda s: all(seen.host for seen in s.tasks.values()), _PATIENCE_S)
    command = RunCell(cell=1, source="pass", filename="<cell>", tasks=tasks)
    cell = RunningCell(CellRequested(1, dict.fromkeys(tasks, command)), dict.fromkeys(tasks, 0))
    supervisor.run_cell(cell)
    context = ViewContext(
        "simulated",
        f"{count} workers",
        run,
        cell,
        supervisor,
        CellControls(supervisor, 1),
        lambda outcome: {},
        "pass",
        "<cell>",
    )
    view = PanelView(context, lambda data, metadata=None, **how: None, _Encoded, Look())
    seconds = sizes.watch_s
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(folder), str(count), str(seconds + 1)])
    _show(view, 1.0)
    began, used = time.perf_counter(), time.process_time()
    _show(view, seconds)
    share = 100 * (time.process_time() - used) / (time.perf_counter() - began)
    backend.end_cells()
    cell.done.wait(_PATIENCE_S)
    view.finish(cell.outcome)
    supervisor.close()
    writer.wait()
    target = Target("value", "<=", 20) if count == 1000 else None
    return Row(f"supervisor and panel, {count} simulated tasks", share, "% core", None, "", target)


def _show(view: PanelView, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        view.update()
        time.sleep(view.interval_s)


def _sampling(sizes: Sizes) -> Row:
    """Measure the sampling of CPU, memory, threads and files of 16 real tasks, twice a second."""
    from tfmagic.system.usage import Sampler

    with tfmagic.Cluster(workers=16) as cluster:
        pids = {row["task"]: row["pid"] for row in cluster.status()}
        sampler: Sampler[str] = Sampler()
        for _ in range(20):
            sampler.sample(pids)  # the first samples measure all of them
        began, used = time.perf_counter(), time.thread_time()
        while time.perf_counter() - began < sizes.watch_s:
            sampler.sample(pids)
            time.sleep(0.5)
        share = 100 * (time.thread_time() - used) / (time.perf_counter() - began)
    return Row("looking at 16 tasks with psutil", share, "% core", None, "", Target("value", "<=", 1))


def _rest(sizes: Sizes) -> Row:
    """Measure a cluster between two cells: this process, the reaper, the launcher and 4 tasks."""
    with tfmagic.Cluster(workers=4) as cluster:
        cluster.run(_first_op, view="quiet")
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        time.sleep(2.0)  # until what follows a cell has ended
        began, used = time.perf_counter(), sum(map(_used_s, processes))
        time.sleep(2 * sizes.watch_s)
        share = 100 * (sum(map(_used_s, processes)) - used) / (time.perf_counter() - began)
    return Row(
        "cluster of 4 tasks at rest, all processes", share, "% core", None, "", Target("value", "<=", 0.3)
    )


def _first_op() -> float:
    import tensorflow as tf

    return float(tf.constant(1.0) + 1)


def _used_s(process: psutil.Process) -> float:
    """Return the CPU time of all threads, more exactly than in ticks."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def _row(what: str, values: list[float], unit: str, limit: float) -> Row:
    return Row(what, statistics.median(values), unit, None, "", Target("value", "<=", limit), (values, []))
