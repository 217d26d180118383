"""A part of a file, looked at; and the processes that do it side by side.

    parent ── one line of JSON: a task ──→ stdin │ python -P -c "... serve()" │ stdout ──→ one line of JSON

`multiprocessing` would fork a process with TensorFlow's threads in it, or import the user's ``__main__`` once
more; these are fresh interpreters that know of neither, and load numpy and crc32c only. They end when their
standard input does, which is: with us, however we end. Ctrl-C reaches us alone; we end them then.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from tfmagic.errors import TfmagicError
from tfmagic.protocol.module_origins import import_path
from tfmagic.system.helper_process import start_interpreter
from tfmagic.system.own_code import OUR_FOLDER
from tfmagic.tfrecord import blocks, scanning
from tfmagic.tfrecord.scanning import Loss, Scan

_PATIENCE_S = 30.0  # then it is said on whom we wait; a segment takes less than a second, a gzip file longer
_END_S = 5.0
_log = logging.getLogger("tfmagic.tfrecord")
_SERVE = (
    "import json, sys; here = set(sys.path)\n"
    "sys.path += [p for p in json.loads(sys.argv[1]) if p and p not in here]\n"
    "from tfmagic.tfrecord.scan_workers import serve\n"
    "serve()\n"
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a file: records that begin at or behind `start` and before `stop`.

    `aligned` says that a record begins at `start`. A compressed file has one segment.
    """

    path: str
    compression: str
    start: int = 0
    stop: int | None = None
    aligned: bool = True


@dataclass(slots=True)
class Looked:
    """What was found in a segment; `trouble` as of `Blocks`."""

    scan: Scan
    size: int
    trouble: tuple[str, int] | None


def look_at(segment: Segment) -> Looked:
    """Scan a segment in this process.

    Raises:
        OSError: The file cannot be read.
    """
    fd = blocks.open_file(Path(segment.path))
    try:
        size = os.fstat(fd).st_size
        stream = blocks.open_blocks(fd, segment.compression, segment.start)
        scan = scanning.scan(stream, segment.start, segment.stop, aligned=segment.aligned)
        return Looked(scan, size, stream.trouble)
    finally:
        os.close(fd)


@dataclass(slots=True)
class _Job:
    """The segments of one call of `look`: which are still to be done, and what was found in the others."""

    segments: Sequence[Segment]
    waiting: deque[int]
    found: dict[int, Looked | Exception] = field(default_factory=dict)

    def take(self) -> int | None:
        """The number of the next segment; None when there is none."""
        try:
            return self.waiting.popleft()
        except IndexError:
            return None

    def do(self) -> None:
        """Look at segments in this thread until there is none."""
        while (number := self.take()) is not None:
            try:
                self.found[number] = look_at(self.segments[number])
            except Exception as error:  # for who waits
                self.fail(number, error)

    def fail(self, number: int, error: Exception) -> None:
        """Nobody begins another one."""
        self.waiting.clear()
        self.found[number] = error


class ScanWorkers:
    """This process and `count` - 1 others, which look at segments side by side. A context manager.

    The others are still starting when this one begins; on a small job they have nothing left to do. A thread
    "tfmagic-segments" for each asks its process, and ends with it. With `hands` this process itself works in
    so many threads: they cost no start, but share Python, which short records of many lengths need most.
    """

    def __init__(self, count: int, hands: int = 1):
        self.processes = [_start() for _ in range(count - 1)]
        self.threads: list[_Asker] = []
        self.hands = hands

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        for thread in self.threads:  # they read of a process that has ended
            thread.join(_END_S)
        if any(thread.is_alive() for thread in self.threads):
            return  # a fork of this process has the other end too; to close a pipe that is read would wait
        for process in self.processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def look(self, segments: Sequence[Segment]) -> list[Looked]:
        """Look at all of them.

        Raises:
            OSError: One of the files cannot be read.
            TfmagicError: One of the processes has died.
        """
        job = _Job(segments, deque(range(len(segments))))
        threads = [_Asker(process, job) for process in self.processes if len(segments) > 1]
        self.threads += threads
        count = min(self.hands, len(segments)) - 1
        hands = [threading.Thread(target=job.do, name="tfmagic-segments", daemon=True) for _ in range(count)]
        for thread in (*threads, *hands):
            thread.start()
        try:
            job.do()
            for thread in threads:
                thread.join_if_busy()
        finally:
            job.waiting.clear()
            for thread in hands:  # with their last segment
                thread.join()
        found = dict(sorted(job.found.items()))
        for item in found.values():
            if isinstance(item, Exception):
                raise item
        return [item for item in found.values() if isinstance(item, Looked)]


class _Asker(threading.Thread):
    def __init__(self, process: subprocess.Popen[bytes], job: _Job):
        super().__init__(name="tfmagic-segments", daemon=True)
        self.process, self.job = process, job
        self.lock, self.done = threading.Lock(), threading.Event()
        self.number: int | None = None

    def run(self) -> None:
        try:
            _wait_for_start(self.process)
            while (number := self._take()) is not None:
                try:
                    self.job.found[number] = _look_there(self.process, self.job.segments[number])
                except Exception as error:  # for who waits
                    self.job.fail(number, error)
                    break
        finally:
            self.done.set()

    def _take(self) -> int | None:
        with self.lock:
            self.number = self.job.take()
        return self.number

    def join_if_busy(self) -> None:
        """Wait for its last segment; not for a process that is still starting."""
        with self.lock:
            number = self.number
        while number is not None and not self.done.wait(_PATIENCE_S):
            path = self.job.segments[number].path
            _log.warning("verify still waits for process %d, which looks at %s", self.process.pid, path)


def _start() -> subprocess.Popen[bytes]:
    package = os.path.dirname(os.path.dirname(OUR_FOLDER))
    path = json.dumps([package, *import_path()])
    return start_interpreter(_SERVE, path, flags=["-P"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _wait_for_start(process: subprocess.Popen[bytes]) -> None:
    """Until it answers, or has died; what a sitecustomize may print before is passed."""
    assert process.stdout is not None
    _tell(process, "")
    while process.stdout.readline() not in (b"ready\n", b""):
        pass


def _tell(process: subprocess.Popen[bytes], line: str) -> None:
    """One line, in one piece and with no buffer: what was not written must not be written at the close."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has died: who reads the answer sees it
        os.write(process.stdin.fileno(), line.encode() + b"\n")


def _look_there(process: subprocess.Popen[bytes], segment: Segment) -> Looked:
    assert process.stdout is not None
    _tell(process, json.dumps(asdict(segment)))
    answer = process.stdout.readline()
    if not answer.endswith(b"\n"):  # nothing, or a part: it was killed while it wrote
        raise TfmagicError(
            f"process {process.pid}, which verified {segment.path}, {_ending(process.wait())}. With "
            "workers=1 it is done in this process"
        )
    content = json.loads(answer)
    if "error" in content:
        raise OSError(*content["error"])
    scan = content["scan"]
    scan["losses"] = [Loss(**loss) for loss in scan["losses"]]
    trouble = content["trouble"]
    return Looked(Scan(**scan), content["size"], tuple(trouble) if trouble else None)


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL): for want of memory, or by somebody"
    return f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"


def serve() -> None:
    """Look at segments until standard input ends. The program of such a process."""
    import crc32c  # noqa: F401 - before it says that it is ready: else who has nothing left waits for that
    import numpy  # noqa: F401

    for line in sys.stdin:
        if not line.strip():
            print("ready", flush=True)
            continue
        segment = Segment(**json.loads(line))
        try:
            content = asdict(look_at(segment))
        except OSError as error:
            content = {"error": [error.errno, error.strerror, segment.path]}
        print(json.dumps(content), flush=True)
