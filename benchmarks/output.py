"""Output: 4 tasks that print 70-byte lines as fast as they can.

The peers are 4 plain Python scripts with line-buffered stdout that print the same, at the same time, into
append-only files: the fastest way that loses no line in a crash. The rate is that of the slowest task by its
own clock, for the text view (this process prints into /dev/null meanwhile) and for quiet. Further figures:
the rate until all lines have been shown, compared with ipyparallel, and the growth of this process by ten
million lines.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks import peers
from benchmarks.notebook import Notebook, muted, notebook
from benchmarks.report import Row, Sizes, Target

TASKS = 4
LINE = "x" * 69  # and a newline
PEER_LINES_SHARE = 20  # ipyparallel prints this fraction of the lines: all would take minutes
RATE_TARGET = Target("ratio", ">=", 0.95)
GROWTH_TARGET = Target("value", "<=", 50)  # of 700 MB of text
_MIB = 1 << 20

PLAIN = """
import json, os, sys, time
sys.stdout.reconfigure(line_buffering=True)
os.write(int(os.environ["BENCH_READY"]), b"ready\\n")
sys.stdin.read()
started = time.perf_counter()
{body}
seconds = time.perf_counter() - started
os.write(int(os.environ["BENCH_READY"]), json.dumps(seconds).encode() + b"\\n")
"""
ENGINE = """
import time
started = time.perf_counter()
{body}
seconds = time.perf_counter() - started
"""


def measure(sizes: Sizes) -> list[Row]:
    lines = sizes.print_lines
    rates: dict[str, list[float]] = {"text": [], "quiet": [], "plain": [], "shown": []}
    with notebook(TASKS) as book, muted():
        _ours(book, 1000, "text")
        growth_mib = _peak_growth_mib(book, sizes.flood_lines)
        for _ in range(sizes.print_rounds):
            for view in ("text", "quiet"):
                rates["plain"].append(plain_rate(lines))
                own, wall = _ours(book, lines, view)
                rates[view].append(own)
                if view == "text":
                    rates["shown"].append(wall)
    text, quiet, plain, shown = (statistics.median(rates[name]) for name in rates)
    engines_own, engines_shown = _engines(lines // PEER_LINES_SHARE, sizes.print_rounds)
    unit, scripts = "lines/s", "4 plain scripts"
    total = f"{TASKS * sizes.flood_lines / 1e6:g} M"
    return [
        Row("printing, text view", text, unit, plain, scripts, RATE_TARGET, (rates["text"], rates["plain"])),
        Row("printing, quiet", quiet, unit, plain, scripts, RATE_TARGET, (rates["quiet"], rates["plain"])),
        Row("printing, text view", text, unit, engines_own, "ipyparallel"),
        Row("printing, until all is shown", shown, unit, engines_shown, "%%px"),
        Row(f"memory of the notebook, peak growth by {total} lines", growth_mib, "MiB", target=GROWTH_TARGET),
    ]


def _body(lines: int) -> str:
    return f"for _ in range({lines}):\n    print({LINE!r})\n"


def _ours(book: Notebook, lines: int, view: str) -> tuple[float, float]:
    """Return the rates of all tasks together: by the slowest task's clock, and until the cell returned."""
    started = time.perf_counter()
    book.cell(_body(lines), f"--view {view} --out printed")
    wall_s = time.perf_counter() - started
    own_s = max(book.shell.user_ns["printed"].seconds.values())
    return TASKS * lines / own_s, TASKS * lines / wall_s


def plain_rate(lines: int) -> float:
    """Return the rate of plain scripts, in files on the file system of our logs."""
    with tempfile.TemporaryDirectory(dir=os.environ["TFMAGIC_STATE_DIR"]) as folder:
        logs = [Path(folder) / f"plain-{n}.log" for n in range(TASKS)]
        seconds = peers.run_together([PLAIN.format(body=_body(lines))] * TASKS, logs)
    return TASKS * lines / max(seconds)


def _engines(lines: int, rounds: int) -> tuple[float, float]:
    """Return ipyparallel's rates: by the slowest engine's clock, and until `%%px` has shown all lines."""
    from benchmarks.notebook import ipython_shell

    own, shown = [], []
    with peers.engines(TASKS) as client, muted():
        client.activate()
        for _ in range(rounds):
            started = time.perf_counter()
            ipython_shell().run_cell_magic("px", "", ENGINE.format(body=_body(lines)))
            shown.append(TASKS * lines / (time.perf_counter() - started))
            own.append(TASKS * lines / max(client[:].pull("seconds", block=True)))
    return statistics.median(own), statistics.median(shown)


def _peak_growth_mib(book: Notebook, lines: int) -> float:
    """Return the peak growth of this process's resident memory during a flood in the text view."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before_bytes = psutil.Process().memory_info().rss
    _ours(book, lines, "text")
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return (int(fields["VmHWM"].split()[0]) * 1024 - before_bytes) / _MIB
