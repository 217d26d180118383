"""The latency of a cell: `pass` on 4 warm tasks, through the magic of a real IPython shell.

The peer is `%%px pass` of ipyparallel with 4 engines, through the same shell. Both run all the time and
are measured in alternate rounds, under the same load.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks import peers
from benchmarks.notebook import Notebook, notebook
from benchmarks.report import Row, Sizes, Target

TASKS = 4
CELLS_PER_ROUND = 100
WARM_UP_CALLS = 30  # the first calls import and trace, once a session
EMPTY = "pass\n"
TARGET = Target("value", "<=", 0.7)  # milliseconds; far less than a user notices


def measure(sizes: Sizes) -> list[Row]:
    with notebook(TASKS) as book, peers.engines(TASKS) as client:
        client.activate()  # registers %%px
        ours, theirs = _alternate(book, sizes.cell_rounds)
    peer = statistics.median(theirs)
    count = len(ours)
    return [
        Row(f"empty cell, 4 tasks, p50 of {count}", statistics.median(ours), "ms", peer, "%%px", TARGET),
        Row(f"empty cell, 4 tasks, p95 of {count}", _p95(ours), "ms", _p95(theirs), "%%px"),
    ]


def _alternate(book: Notebook, rounds: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each call, for tfmagic and for ipyparallel."""

    def px() -> None:
        book.shell.run_cell_magic("px", "", EMPTY)

    def ours() -> None:
        book.cell(EMPTY)

    times_ms: tuple[list[float], list[float]] = ([], [])
    for call in (ours, px):
        _time_calls_ms(call, WARM_UP_CALLS)
    for _ in range(rounds):
        times_ms[0].extend(_time_calls_ms(ours, CELLS_PER_ROUND))
        times_ms[1].extend(_time_calls_ms(px, CELLS_PER_ROUND))
    return times_ms


def _time_calls_ms(call: Callable[[], None], count: int) -> list[float]:
    times_ms = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        times_ms.append(1000 * (time.perf_counter() - started))
    return times_ms


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]
