"""Check whether threads of this process prepare data, while its main thread waits inside TensorFlow.

A tf.function that takes its batch from an iterator and also has collectives can wait for either. Its frames
are the same in both cases, and so is the processor time: none. What differs is in other threads, as far as a
data set runs Python code or reads a file or a connection. What a data set waits for inside TensorFlow (a
tf.data service, for example) is not seen. Used by the side thread.
"""

import contextlib
import os
import platform
import sys
import threading
from types import FrameType

CALLED_BY_TENSORFLOW = "/tensorflow/python/ops/script_ops.py"
# futex, epoll_wait, epoll_pwait, epoll_pwait2, nanosleep and clock_nanosleep: TensorFlow's idle threads
_IDLE_CALLS = {
    "x86_64": frozenset({"202", "232", "281", "441", "35", "230"}),
    "aarch64": frozenset({"98", "22", "441", "101", "115"}),
}.get(platform.machine())


def runs_python() -> bool:
    """Check whether TensorFlow has called Python code in another thread: a py_function, or a generator.

    Call it only while `cell_position.looking`.
    """
    ours = {threading.get_ident(), threading.main_thread().ident}
    for thread, innermost in sys._current_frames().items():
        frame: FrameType | None = innermost
        while frame is not None and thread not in ours:
            if frame.f_code.co_filename.endswith(CALLED_BY_TENSORFLOW):
                return True
            frame = frame.f_back
    return False


def reads() -> bool:
    """Check whether a thread of TensorFlow waits in a system call that reads a file or a connection.

    False where that cannot be known. Takes some milliseconds: TensorFlow's servers have a hundred threads.
    """
    if _IDLE_CALLS is None:
        return False
    of_python = {str(thread.native_id) for thread in threading.enumerate()}
    with contextlib.suppress(OSError):
        for thread in set(os.listdir("/proc/self/task")) - of_python:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                with open(f"/proc/self/task/{thread}/syscall", encoding="ascii") as file:
                    call = file.read().split()[0]
                if call.isdigit() and call not in _IDLE_CALLS:  # else it runs, or is in no call
                    return True
    return False
