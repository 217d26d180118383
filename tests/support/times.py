"""Where the time of the tests goes: seconds and CPU seconds, by file and by what a test needs.

TEST_TIMES names a file that gets the table as JSON. The process of pytest is a kind of its own; the rest of a test's
CPU time is that of all processes below, those that have ended included. What a killed process had below it and what
has left for another parent counts only as long as it lives.

The imports of TensorFlow are counted apart, by the file whose test has started the process: `lean/sitecustomize.py`
notes them beside that file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from order import file_of

# What a test starts, by its fixtures or its folder: the first that fits
KINDS = {
    "browsers": {"browser", "pages", "lab", "two_pages", "open_notebook"},
    "Ray nodes": {"ray_nodes", "nodes", "on_ray", "one_node", "hosts"},
    "other environments": {"tests/environments", "tests/front_ends"},
    "lessons": {"lessons", "book", "tests/course", "tests/notebooks"},
    "kernels": {"kernel", "kernels", "shared_kernel", "pair", "kernel_of_jupyter"},
    "commands and scripts": {"commands", "serve", "tool", "script"},
    "tasks": {"notebook", "shell", "cluster", "cluster_of_module", "open_cluster", "shared", "tasks", "two"},
}
PYTEST = "pytest itself"
_TICKS = os.sysconf("SC_CLK_TCK")


def kind_of(item: pytest.Item) -> str:
    """Return what kind of processes a test starts."""
    names = {*getattr(item, "fixturenames", ()), "/".join(item.nodeid.split("/")[:2])}
    return next((kind for kind, known in KINDS.items() if names & known), "other processes")


def cpu_s() -> tuple[float, float]:
    """Return the CPU time of this process, and that of all below it, in seconds."""
    parents, used, own = {}, {}, 0
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                used[int(entry.name)] = sum(map(int, fields[11:15]))
                if int(entry.name) == os.getpid():
                    own = sum(map(int, fields[11:13]))
    below = {os.getpid()}
    for pid in sorted(parents):  # a child has a higher number than its parent, nearly always
        if parents[pid] in below:
            below.add(pid)
    return own / _TICKS, (sum(used.get(pid, 0) for pid in below) - own) / _TICKS


def imports_of(noted: Path) -> dict[str, list[float]]:
    """Return the imports of TensorFlow that a run has noted, by file: how many, and their CPU seconds."""
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for line in noted.read_text().splitlines() if noted.exists() else ():
        seconds, _, file = line.partition(" ")
        found[file][0] += 1
        found[file][1] += float(seconds)
    return dict(found)


class Times:
    """Collects the times of a process of pytest; the one that starts others writes those of all."""

    def __init__(self, target: str):
        self._target = target
        self._cpu: dict[str, float] = defaultdict(float)
        self._wall: dict[str, float] = defaultdict(float)
        self._now, self._before = "", (0.0, 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._turn_to(f"{file_of(item.nodeid)} {kind_of(item)}")
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._wall[file_of(report.nodeid)] += report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for name, seconds in getattr(node, "workeroutput", {}).get("cpu", {}).items():
            self._cpu[name] += seconds

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._turn_to("")
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cpu"] = dict(self._cpu)
        else:
            imports = imports_of(Path(f"{self._target}.imports"))
            found = {"cpu": self._cpu, "wall": self._wall, "imports": imports}
            Path(self._target).write_text(json.dumps(found), "utf-8")

    def _turn_to(self, name: str) -> None:
        if name != self._now:
            now = cpu_s()
            if self._now:
                self._cpu[f"{self._now.partition(' ')[0]} {PYTEST}"] += now[0] - self._before[0]
                self._cpu[self._now] += max(now[1] - self._before[1], 0.0)
            self._now, self._before = name, now
