"""Measure lines that only tasks run, where coverage.py measures the process that sends them cells.

    pytest --cov, coverage run ── the current `coverage.Coverage`: its options ══ Measure ══→ Measurement
                               └←── add_lines, add_arcs ══════════════════════════ Ran ══════┘ of a cell

Tasks are forked from a launcher and are killed in tests, so coverage's own way (a file of each process,
written at its exit) has nothing of them. Here the lines travel with the report of each cell, and there is no
file. The code of a call whose task was killed is not measured.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from tfmagic.features.testing.reports import Measure, Ran, TaskReport

_OPTIONS = (
    "branch",
    "source",
    "source_pkgs",
    "source_dirs",
    "include",
    "omit",
    "relative_files",
    "cover_pylib",
)
"""Of coverage.py's section ``run``: what is measured. Other options say where data is kept, for example."""
_QUIET = (  # by design: each task runs a part of the code, and each cell begins and ends a measurement
    *("module-not-imported", "module-not-measured", "no-data-collected", "already-imported"),
    *("module-not-python", "trace-changed"),
)


# ---- in the process that sends cells -------------------------------------------------------------


def _current() -> Any:
    """Return the `coverage.Coverage` that measures this process, or None."""
    found = getattr(sys.modules.get("coverage"), "Coverage", None)
    return None if found is None else found.current()


def wanted() -> Measure | None:
    """Return what tasks are to measure, or None."""
    current = _current()
    if current is None:
        return None
    options: dict[str, Any] = {}
    for name in _OPTIONS:
        with contextlib.suppress(Exception):  # a version that does not have it
            options[name] = current.get_option(f"run:{name}")
    for name in ("source", "source_dirs"):  # packages, too
        if options.get(name):
            options[name] = [os.path.abspath(each) if os.path.isdir(each) else each for each in options[name]]
    return Measure(options)


def add(report: TaskReport) -> None:
    """Add what a task has run to the data of this process."""
    current = _current() if report.ran else None
    if current is None:
        return
    data = current.get_data()
    if report.has_arcs:
        data.add_arcs({each.file: each.arcs for each in report.ran})
    else:
        data.add_lines({each.file: each.lines for each in report.ran})


# ---- on a task ----------------------------------------------------------------------------------


class Measurement:
    """The measurement of a task, from the beginning of a cell to its end.

    Attributes:
        runs: Whether something is measured.
    """

    def __init__(self) -> None:
        self._measure: Measure | None = None
        self._coverage: Any = None
        self.runs = False

    def start(self, measure: Measure) -> None:
        """Measure the code that runs from now on. Do nothing on a host without coverage.py."""
        try:
            coverage: Any = importlib.import_module("coverage")
        except ImportError:
            return
        if (
            inherited := coverage.Coverage.current()
        ) is not None:  # of the launcher, by COVERAGE_PROCESS_START
            inherited.stop()
        if measure != self._measure:
            self._coverage = coverage.Coverage(data_file=None, config_file=False)
            for name, value in measure.options.items():
                self._coverage.set_option(f"run:{name}", value)
            self._coverage.set_option("run:disable_warnings", list(_QUIET))
            self._measure = measure
        self._coverage.start()
        self.runs = True

    def stop(self) -> TaskReport:
        """Stop, and return what was run."""
        if not self.runs:
            return TaskReport()
        self.runs = False
        self._coverage.stop()
        data = self._coverage.get_data()
        has_arcs = bool(data.has_arcs())
        ran = tuple(_ran(data, sorted(data.measured_files()), has_arcs))
        self._coverage.erase()
        return TaskReport(ran=ran, has_arcs=has_arcs)


def _ran(data: Any, files: Iterable[str], has_arcs: bool) -> Iterable[Ran]:
    for file in files:
        if has_arcs:
            yield Ran(file, arcs=tuple(data.arcs(file) or ()))
        else:
            yield Ran(file, lines=tuple(data.lines(file) or ()))
