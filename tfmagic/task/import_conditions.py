"""Import TensorFlow in a process that can be forked afterwards, and after libraries that must come first.

Only one thread can be forked safely, so libraries that start a thread at their import are kept from it in the
launcher (measured with pandas, which imports what is installed of pyarrow and numexpr). The tasks start these
threads themselves, or need none.
"""

import contextlib
import ctypes
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tfmagic.system import thread_origins
from tfmagic.task.tensorflow import patches

_ENDING_S = 0.1  # for a thread that Python has joined already
set_by_imports: dict[str, str] = {}
"""The environment variables that the imports have set, which the task of a fork has, too."""
_stopped_threads = 0  # of numexpr


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep libraries that are imported from starting threads. Remember the variables that they set."""
    arrow = os.environ.get("JE_ARROW_MALLOC_CONF")
    ours = {
        "OPENBLAS_NUM_THREADS": "1",
        # Arrow's allocator; of two equal options the later one, the user's, holds
        "JE_ARROW_MALLOC_CONF": ",".join(filter(None, ("background_thread:false", arrow))),
    }
    at_first, before = dict(os.environ), {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        with thread_origins.noting_starters():
            yield
        _stop_numexpr()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        set_by_imports.update(os.environ.items() - at_first.items())


def _stop_numexpr() -> None:
    global _stopped_threads
    if "numexpr" in sys.modules:
        with contextlib.suppress(AttributeError):  # of another version, or a module of the user's
            _stopped_threads = sys.modules["numexpr"].set_num_threads(1)


def start_threads() -> None:
    """Start the threads again that `one_thread` has stopped. Called in a fork of the launcher."""
    if _stopped_threads > 1:
        sys.modules["numexpr"].set_num_threads(_stopped_threads)


def load_triton() -> None:
    """Load the library of triton, if it is installed, which must be done before TensorFlow is loaded.

    Both contain LLVM. Triton's takes TensorFlow's symbols if TensorFlow was there first, and the process ends
    with SIGABRT or SIGSEGV as soon as PyTorch imports triton, at the first optimizer (TensorFlow 2.21,
    triton 3.9). The other way round both work. It costs 0.1 s, and tasks share the pages.
    """
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("triton")
        for folder in (spec and spec.submodule_search_locations) or ():
            for library in Path(folder, "_C").glob("libtriton*.so"):
                with contextlib.suppress(OSError):  # it lacks a library of the system: triton's import tells
                    ctypes.CDLL(str(library))


def obstacle_to_fork() -> str:
    """Return why a fork of this process is unsafe, or "": a child's first tf.function would hang."""
    if missing := patches.TABLE.missing(patches.FORKS):
        return f"TensorFlow, whose state is unknown here ({missing})"
    context = sys.modules["tensorflow.python.eager.context"]
    if context._context is not None and context._context._context_handle is not None:
        return "TensorFlow was initialized by a package that its import imports"
    deadline = time.monotonic() + _ENDING_S
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
        time.sleep(0.002)
    if len(os.listdir("/proc/self/task")) == 1:
        return ""
    return ", ".join(sorted(set(thread_origins.describe_others()))) or "a thread"
