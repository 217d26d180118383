"""Start a fresh Python interpreter that helps this process.

`multiprocessing` would fork this process with all its threads, or import its ``__main__`` again, which starts
an unguarded script a second time. An interpreter from here does neither. It has a session of its own, so that
Ctrl-C in a terminal does not reach it. It ends with this process in the way that suits its work:

- The launcher's reaper watches a pidfd of this process (`tfmagic.task.reaper`).
- A writer of a shared HDF5 file sees the end of its control channel, and finishes the file first.
- A server of objects reads standard input to its end (`tfmagic.system.shared_manager`).
- TensorBoard, and the holder of simulated hosts, are killed (`start_killed_with_us`).
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

_PATH = "TFMAGIC_HELPER_PATH"
_DIE_WITH_PARENT = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv.pop(1)):
    os._exit(0)
"""


def start_interpreter(
    code: str,
    *arguments: str,
    flags: Sequence[str] = (),
    path: Sequence[str] | None = None,
    stdin: int = subprocess.DEVNULL,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start an interpreter that runs this code, with arguments, options of Python, and this ``sys.path``.

    The other options are those of `subprocess.Popen`; standard input is empty by default.
    """
    if path is not None:  # not in the code, which others show as the command line of the process
        options["env"] = {**(options.get("env") or os.environ), _PATH: repr(list(path))}
        # no import but of what is there: the first folder can hold anything
        code = f"import os, sys; sys.path[:] = eval(os.environ.pop({_PATH!r}))\n{code}"
    command = [sys.executable, *flags, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=stdin, start_new_session=True, **options)


def start_killed_with_us(name: str, code: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start an interpreter, as `start_in_lasting_thread` does, that gets SIGKILL when this process ends.

    It does so also when it is stopped at that time.
    """
    return start_in_lasting_thread(name, _DIE_WITH_PARENT + code, str(os.getpid()), *arguments, **options)


def start_in_lasting_thread(name: str, code: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start an interpreter, as `start_interpreter` does, that asks for a signal when this process ends.

    Linux sends that signal when the *thread* ends that has started the interpreter. So a daemon thread of
    this name starts it and waits for it.
    """
    started: queue.SimpleQueue[subprocess.Popen[bytes] | Exception] = queue.SimpleQueue()

    def keep() -> None:
        try:
            process = start_interpreter(code, *arguments, **options)
        except Exception as error:
            started.put(error)
            return
        started.put(process)
        with contextlib.suppress(ChildProcessError):  # it was reaped, which is left to others
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    threading.Thread(target=keep, name=name, daemon=True).start()
    process = started.get()
    if isinstance(process, Exception):
        raise process
    return process


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL an interpreter and what it has started in its session; do nothing if it has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
