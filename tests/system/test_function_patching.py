"""A function of TensorFlow's library returns 0 from then on, also for threads that call it meanwhile."""

import ctypes
import platform
import subprocess
import sys

import pytest

from tfmagic.system.function_patching import return_zero

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="patches x86-64 code only")

# each process can be changed once; the function counts up, from 1 << 32 on
PROGRAM = """
import ctypes, importlib.util, threading
from pathlib import Path
from tfmagic.system.function_patching import return_zero

NAME = "_ZN3tsl8profiler15TraceMeRecorder13NewActivityIdEv"
folder, *_ = importlib.util.find_spec("tensorflow").submodule_search_locations
library = ctypes.CDLL(str(Path(folder) / "libtensorflow_framework.so.2"))
function = getattr(library, NAME)
function.restype = ctypes.c_int64
calling, last = threading.Barrier(5), []

def call():
    assert function() > 0
    calling.wait()
    for _ in range(10_000_000):
        if not function():
            break
    last.append([function() for _ in range(1000)])

threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
calling.wait()
assert return_zero(library, NAME) and return_zero(library, NAME)
for thread in threads:
    thread.join()
assert last == [[0] * 1000] * 4, last
"""


def test_it_returns_0_to_all_threads_from_then_on():
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_other_code_is_left_alone():
    assert not return_zero(ctypes.CDLL(None), "getpid")  # gcc's, without a frame
    with pytest.raises(AttributeError):
        return_zero(ctypes.CDLL(None), "no_such_function")
