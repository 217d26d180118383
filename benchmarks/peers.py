"""Start and end the peers: ipyparallel's engines and plain Python processes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import psutil

DONE = "BENCHMARK-DONE"  # a process prints this line at the end of the measured part
_PATIENCE_S = 240.0  # far longer than any peer takes; then the peer is ended and the figure fails


@contextlib.contextmanager
def engines(count: int) -> Iterator[Any]:
    """Yield an ipyparallel client with `count` engines of its own; hub and engines end with the block."""
    import ipyparallel

    cluster = ipyparallel.Cluster(n=count, log_level=logging.ERROR)
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # a progress bar
            client = cluster.start_and_connect_sync(activate=False)
        processes = _processes_of(client)
        try:
            yield client
        finally:
            client.close()
    finally:
        cluster.stop_cluster_sync()
    for process in psutil.wait_procs(processes, timeout=30)[
        1
    ]:  # otherwise they would disturb the next figure
        process.kill()


def _processes_of(client: Any) -> list[psutil.Process]:
    """Return the engines and the nanny processes that they started."""
    engines = [psutil.Process(pid) for pid in client[:].apply_sync(os.getpid)]
    return [*engines, *(child for engine in engines for child in engine.children(recursive=True))]


def seconds_to_done(code: str) -> float:
    """Return the seconds from the start of a fresh interpreter that runs `code` to its DONE line."""
    started = time.perf_counter()
    with (
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process,
        _ended(process),
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == DONE:
                seconds = time.perf_counter() - started
                process.stdout.read()  # its clean-up can print, too
                process.wait(_PATIENCE_S)
                return seconds
    raise RuntimeError(f"exited with {process.returncode} before it was done:\n{code}")


def run_together(codes: Sequence[str], logs: Sequence[Path]) -> list[Any]:
    """Run plain scripts at the same time, each printing into its append-only log.

    A script writes a line to the descriptor BENCH_READY when it is ready, waits for the end of stdin, and
    writes a line of JSON to BENCH_READY at its end.

    Returns:
        The JSON value of each script.
    """
    with contextlib.ExitStack() as stack:
        started = [_start_waiting(stack, code, log) for code, log in zip(codes, logs, strict=True)]
        for _, answers in started:
            answers.readline()
        for process, _ in started:
            assert process.stdin is not None
            process.stdin.close()
        values = [json.loads(answers.readline()) for _, answers in started]
        for process, _ in started:
            process.wait(_PATIENCE_S)
        return values


def _start_waiting(
    stack: contextlib.ExitStack, code: str, log: Path
) -> tuple[subprocess.Popen[bytes], TextIO]:
    """Start a plain script. Return it and the file of its answers; both end with `stack`."""
    reader, writer = os.pipe()
    answers = stack.enter_context(os.fdopen(reader))
    with open(log, "a") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "BENCH_READY": str(writer)},
            pass_fds=[writer],
        )
    os.close(writer)
    stack.enter_context(_ended(process))
    return process, answers


@contextlib.contextmanager
def waiting_interpreter(code: str) -> Iterator[int]:
    """Yield the pid of a fresh interpreter that has run `code` and is idle now."""
    script = f"{code}\nprint({DONE!r}, flush=True)\ninput()\n"
    with (
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
        _ended(process),
    ):
        assert process.stdout is not None
        if DONE not in process.stdout.readline():
            raise RuntimeError(f"it ended too early:\n{code}")
        yield process.pid


@contextlib.contextmanager
def _ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill the process at the end of the block if it still runs."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
