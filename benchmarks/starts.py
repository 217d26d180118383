"""Starts: from a fresh process, or a kernel's restart, to the first TensorFlow op on 4 tasks; their restarts.

A start is timed from a fresh Python process that loads the extension to the end of its first cell. The peers
are one `import tensorflow` in a fresh interpreter, the lower limit of any program that uses TensorFlow, and
ipyparallel: the start of 4 engines, then the same op on each. ipyparallel has no restart of engines: a
restart is compared with its start, which its users do instead.

The restart of a kernel is timed in a real Jupyter server: from the moment when the new kernel is ready to run
cells, to the end of the second one. The first loads the extension. The kernel's own start is Jupyter's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from jupyter_client.blocking import BlockingKernelClient

from benchmarks import peers
from benchmarks.jupyter_server import run_cell, served_kernel
from benchmarks.notebook import FIRST_OP, Notebook, muted, notebook
from benchmarks.report import Row, Sizes, Target

TASKS = 4
START_TARGET = Target("ratio", "<=", 1.2)  # one import, and a fifth of it for everything else
RESTART_TARGET = Target("value", "<=", 0.25)
KERNEL_TARGET = Target("ratio", "<=", 0.25)
ALL_REDUCE_TARGET = Target("value", "<=", 0.5)

OURS = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "tfmagic")
shell.run_cell_magic("tfcluster", "--workers {TASKS}", {FIRST_OP!r})
print("\\n{peers.DONE}", flush=True)
"""
IMPORT = f"import tensorflow; print({peers.DONE!r}, flush=True)"
ENGINES = f"""
import ipyparallel
cluster = ipyparallel.Cluster(n={TASKS}, log_level=40)
client = cluster.start_and_connect_sync(activate=False)
client[:].execute({FIRST_OP!r}, block=True)
print("\\n{peers.DONE}", flush=True)
cluster.stop_cluster_sync()
"""
ALL_REDUCE = f"""
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0)))
assert float(total) == {TASKS}, total
"""


def measure(sizes: Sizes) -> list[Row]:
    counts = {OURS: sizes.starts, IMPORT: sizes.starts, ENGINES: sizes.engine_starts}
    peers.seconds_to_done(IMPORT)  # load the files into the page cache, for all sides
    times_s: dict[str, list[float]] = {code: [] for code in counts}
    for turn in range(max(counts.values())):
        for code, count in counts.items():
            if turn < count:
                times_s[code].append(peers.seconds_to_done(code))
    kernel_s, beside_s = _kernel_restarts_s(sizes.starts)
    start_s, import_s, engines_s = (statistics.median(times) for times in times_s.values())
    restart_s, all_reduce_s = _restarts_s(sizes.restarts)
    what, engines = "start of 4 tasks to first op", "ipyparallel start"
    return [
        Row(what, start_s, "s", import_s, "import tensorflow", START_TARGET),
        Row(what, start_s, "s", engines_s, engines),
        Row(
            "kernel restart to first op of 4 tasks (max 0.6 s)",
            kernel_s,
            "s",
            beside_s,
            "import tensorflow",
            KERNEL_TARGET,
        ),
        Row("restart of 4 tasks to first op", restart_s, "s", engines_s, engines, RESTART_TARGET),
        Row(
            "restart of 4 tasks to first all-reduce",
            all_reduce_s,
            "s",
            engines_s,
            f"{engines}, no all-reduce",
            ALL_REDUCE_TARGET,
        ),
    ]


def _kernel_restarts_s(count: int) -> tuple[float, float]:
    """Return the median seconds of a kernel after its restart, and of imports of TensorFlow in between."""
    kernel_s, import_s = [], []

    def start_cluster(client: BlockingKernelClient) -> None:
        run_cell(client, "%load_ext tfmagic")
        run_cell(client, f"%%tfcluster --workers {TASKS}\n{FIRST_OP}")

    with served_kernel() as kernel:
        with kernel.client() as client:
            start_cluster(client)
        for _ in range(count):
            kernel.restart()
            with kernel.client() as client:
                kernel_s.append(_timed_s(lambda: start_cluster(client)))
            import_s.append(peers.seconds_to_done(IMPORT))
    return statistics.median(kernel_s), statistics.median(import_s)


def _restarts_s(count: int) -> tuple[float, float]:
    """Return the median seconds until the first op, and until the first all-reduce of a new strategy."""
    with notebook(TASKS) as book, muted():
        book.cell(FIRST_OP)
        first_op_s, all_reduce_s = [], []
        for _ in range(count):
            first_op_s.append(_timed_s(lambda: _restart(book, FIRST_OP)))
            all_reduce_s.append(_timed_s(lambda: _restart(book, ALL_REDUCE)))
    return statistics.median(first_op_s), statistics.median(all_reduce_s)


def _restart(book: Notebook, cell: str) -> None:
    book.cluster.restart()
    book.cell(cell)


def _timed_s(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
