"""`python -m benchmarks [NAME ...] [--quick] [--markdown]`: measure and print one table. See the package."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

from benchmarks.report import QUICK, Row, Sizes, render, render_rounds

NAMES = (
    "cells", "runner", "failures", "supervision", "cleanup", "starts", "output", "page", "arrays", "memory",
    "growth", "training", "network", "records", "hdf5", "beside",
)  # fmt: skip
ASKED_ONLY = ("hosts", "profiling")  # a Ray cluster; the cost of an option


def main() -> int:
    """Return 0 if every benchmark could be measured, whatever the figures are."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="compare tfmagic with its peers"
    )
    known = ", ".join(NAMES + ASKED_ONLY)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {known}; all but {', '.join(ASKED_ONLY)} by default"
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repeats")
    parser.add_argument("--markdown", action="store_true", help="print dated tables for the documentation")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.names) - {*NAMES, *ASKED_ONLY}):
        parser.error(f"there is no {', '.join(unknown)}; there are {known}")
    with tempfile.TemporaryDirectory(prefix="tfmagic-bench-", ignore_cleanup_errors=True) as folder:
        _settle_environment(folder)
        rows, failed = _measure_all(asked.names or NAMES, QUICK if asked.quick else Sizes())
    heading = f"{_machine()}{', quick' if asked.quick else ''}"
    if asked.markdown:
        print(f"Measured on {datetime.date.today():%d %B %Y}: {heading}.\n\n{render(rows, markdown=True)}")
    else:
        print(f"\n{heading}\n\n{render(rows)}\n\n{render_rounds(rows)}")
    if failed:
        print(f"\nnot measured: {', '.join(failed)}")
    return 1 if failed else 0


def _settle_environment(folder: str) -> None:
    """Use no folder of the user. Call this before IPython, ipyparallel and tfmagic are imported."""
    os.environ["TFMAGIC_STATE_DIR"] = os.path.join(folder, "state")
    os.environ["IPYTHONDIR"] = os.path.join(folder, "ipython")  # also ipyparallel's connection files
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ.pop("TF_CONFIG", None)
    os.environ.pop("PYTHONUNBUFFERED", None)  # with it, print in a plain script makes two writes a line
    for name in ("TFMAGIC_STATE_DIR", "IPYTHONDIR"):
        os.mkdir(os.environ[name])


def _measure_all(names: tuple[str, ...] | list[str], sizes: Sizes) -> tuple[list[Row], list[str]]:
    """Return the rows, and the names of the benchmarks that failed."""
    rows: list[Row] = []
    failed = []
    for name in names:
        print(f"measuring {name} ...", end=" ", file=sys.stderr, flush=True)
        started = time.perf_counter()
        try:
            rows += _measure_of(name)(sizes)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return rows, failed


def _measure_of(name: str) -> Callable[[Sizes], list[Row]]:
    import importlib

    return importlib.import_module(f"benchmarks.{name}").measure


def _machine() -> str:
    from importlib.metadata import distributions

    versions = {found.name.lower(): found.version for found in distributions()}
    shown = ("tfmagic", "tensorflow", "ipyparallel", "ray")
    packages = ", ".join(f"{name} {versions[name]}" for name in shown if name in versions)
    cores = f"{len(os.sched_getaffinity(0))} cores (load {os.getloadavg()[0]:.1f})"
    return f"{platform.system()}, {cores}, Python {platform.python_version()}, {packages}"


if __name__ == "__main__":
    sys.exit(main())
