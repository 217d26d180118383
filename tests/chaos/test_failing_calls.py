"""System calls of kernel, launcher and task fail one by one; nothing hangs, and every loss has a name.

strace lets the n-th call of a kind fail in a process that runs. `make chaos` tries more calls of each kind.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import psutil
import pytest
from conftest import alive, wait_until

FIRST = 5 if int(os.environ.get("CHAOS_STEPS", "0")) > 20 else 1
LINES = 20
ANSWER_S = (
    200.0  # for a command: a new launcher imports TensorFlow, perhaps while strace stops it at each call
)
# If a task is killed while strace detaches from it, strace can wait for ever: the end of the main thread is not reported
# until that of each other thread was read, which strace 6.1 does not do then.
DETACH_S = 10.0
DETACHED = os.strerror(errno.ENOSYS)  # what a call returns when strace ends after the call has begun

# what runs, in which process, the call, and its error
CALLS = [
    *(("run", "kernel", "sendto,sendmsg", error) for error in ("EINTR", "ENOMEM", "EIO")),
    *(("run", "kernel", "recvmsg", error) for error in ("EINTR", "ENOMEM", "EIO")),
    *(("run", "kernel", "epoll_wait", error) for error in ("EINTR", "ENOMEM")),
    ("run", "kernel", "openat", "EMFILE"),
    ("run", "kernel", "newfstatat", "EIO"),
    *(("run", "worker-0", "write", error) for error in ("EINTR", "ENOSPC", "EIO")),
    *(("run", "worker-0", "sendto", error) for error in ("EINTR", "ENOMEM", "EIO")),
    *(("run", "worker-0", "recvmsg", error) for error in ("EINTR", "ENOMEM", "EIO")),
    ("run", "worker-0", "lseek", "EIO"),
    *(("restart", "launcher", "clone", error) for error in ("ENOMEM", "EAGAIN")),
    ("restart", "launcher", "pidfd_open", "EMFILE"),
    ("restart", "launcher", "sendmsg", "EIO"),
    ("restart", "launcher", "sendto", "ENOMEM"),
    ("restart", "launcher", "dup2", "EMFILE"),
    ("restart", "launcher", "mmap", "ENOMEM"),
    ("restart", "launcher", "recvmsg", "EIO"),
    ("restart", "launcher", "poll", "ENOMEM"),
]
TRIED_AGAIN = {
    ("worker-0", calls, "ENOMEM") for calls in ("recvmsg", "sendto")
}  # a moment later there is room
# Of a new thread, for its first frame. From 3.13 on, Python waits for ever for a thread that cannot make it, and the
# start of the tasks ends by its time limit.
SECOND = [("restart", "launcher", "mmap", "ENOMEM")] if sys.version_info < (3, 13) else []
CASES = [(number, *call) for number in range(1, FIRST + 1) for call in CALLS]
CASES += [(2, *call) for call in SECOND if FIRST == 1]

PROGRAM = f"""
import json, os, sys, tfmagic

def fn(number):
    for line in range({LINES}):
        print("line", number, line)
    return number

def serve(what, number):
    if what == "run":
        return list(cluster.run(fn, number).values())
    if what == "restart":
        cluster.restart()
    supervisor = cluster._running_cluster().supervisor
    return {{**supervisor.own_pids(), **{{task.name: seen.pid for task, seen in supervisor.state.tasks.items()}}}}

cluster = tfmagic.Cluster(workers=2).start()
answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
print(json.dumps([0, serve("pids", 0)]), file=answers)
for line in sys.stdin:
    what, number = json.loads(line)
    try:
        found = serve(what, number)
    except BaseException as error:
        found = {{"error": "\\n".join([str(error), *getattr(error, "__notes__", ())])}}
    print(json.dumps([number, found]), file=answers)
"""


class Program:
    """A process with a cluster of two workers, which answers commands; its output is kept."""

    def __init__(self) -> None:
        ours, theirs = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs],
            text=True,
        )
        os.close(theirs)
        self.output: list[str] = []
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        for file, take in ((self.process.stdout, self.output.append), (os.fdopen(ours), self._answers.put)):
            threading.Thread(target=_read_all, args=(file, take)).start()
        self.numbers = iter(range(1, 1 << 30))
        self.pids: dict[str, int] = self.answer(0)

    def answer(self, number: int) -> Any:
        """Return the answer to this command; fail if there is none in time."""
        while True:  # an answer that came too late is not that of the next command
            answered, found = json.loads(self._answers.get(timeout=ANSWER_S))
            if answered == number:
                return found

    def ask(self, what: str) -> tuple[int, Any]:
        """Give a command. Return its number and its answer."""
        number = next(self.numbers)
        self.process.stdin.write(json.dumps([what, number]) + "\n")
        self.process.stdin.flush()
        return number, self.answer(number)

    def check_run(self, reason: str = "could not be written") -> str:
        """Run a cell: return its error, or "" if its values are whole, and its lines, or `reason` was printed."""
        before = len(self.output)
        number, found = self.ask("run")
        if isinstance(found, dict):
            return str(found["error"])
        assert found == [number, number]

        def is_shown() -> bool:
            shown = "".join(self.output[before:])
            return shown.count(f"line {number} ") >= 2 * LINES or reason in shown

        wait_until(is_shown)
        return ""

    def check_restart(self) -> str:
        """Restart all tasks: return the error or ""."""
        found = self.ask("restart")[1]
        if "error" in found:
            return str(found["error"])
        self.pids = found
        return ""


def _read_all(file: IO[str], take: Callable[[str], object]) -> None:
    with file:
        for line in file:
            take(line)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    made = Program()
    yield made
    below = [process.pid for process in psutil.Process(made.process.pid).children(recursive=True)]
    made.process.kill()
    made.process.wait()
    made.process.stdin.close()
    wait_until(lambda: not alive(below))


@contextmanager
def failing(pid: int, calls: str, error: str, number: int) -> Iterator[list[str]]:
    """Let the n-th of these calls of each thread, and of each child from now on, fail. Yield what failed."""
    failed: list[str] = []
    what = ["-e", f"trace={calls}", "-e", f"inject={calls}:error={error}:when={number}"]
    with subprocess.Popen(
        ["strace", "-f", *what, "-p", str(pid)], stderr=subprocess.PIPE, text=True
    ) as strace:
        first = strace.stderr.readline()
        assert "attached" in first, f"strace cannot attach to a process: {first}"
        try:
            yield failed
        finally:
            strace.send_signal(signal.SIGTERM)
            killing = threading.Timer(DETACH_S, strace.kill)  # the system detaches then
            killing.start()
            failed += [line for line in strace.stderr if "INJECTED" in line]
            killing.cancel()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "what", "place", "calls", "error"), CASES)
def test_a_call_that_fails_costs_no_more_than_it_must_and_is_named(
    program, what, place, calls, error, number
):
    before = len(program.output)
    reason = os.strerror(getattr(errno, error))
    named = "could not be written" if calls == "write" else reason
    with failing(program.pids[place], calls, error, number) as failed:
        said = program.check_run(named) if what == "run" else program.check_restart()
    assert failed or number > 1, "the call is not made any more: change the table"
    if said:
        assert error != "EINTR" and (reason in said or "start new thread" in said), (said, failed)
        assert (place, calls, error) not in TRIED_AGAIN, (said, failed)
    elif calls == "write" and error != "EINTR":
        wait_until(lambda: named in "".join(program.output[before:]))
    if said or what == "restart":
        program.check_restart()
        assert not program.check_restart()
    # the call that failed was made after the command, or by a thread that the command found in an earlier call
    if not said and (late := program.check_run()):
        assert error != "EINTR" and (reason in late or DETACHED in late), (late, failed)
        program.check_restart()
        assert not program.check_restart()
    assert not program.check_run()
