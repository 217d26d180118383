"""A function of TensorFlow's library returns 0 and is itself again, also while other threads call it."""

import ctypes
import importlib.util
import platform
import threading
from pathlib import Path

import pytest

from tfmagic.system.function_patching import ReturnsZero

NAME = "_ZN3tsl8profiler15TraceMeRecorder13NewActivityIdEv"  # counts up, from 1 << 32 on
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="patches x86-64 code only")


@pytest.fixture(scope="module")
def library():
    folder, *_ = importlib.util.find_spec("tensorflow").submodule_search_locations
    return ctypes.CDLL(str(Path(folder) / "libtensorflow_framework.so.2"))


def test_it_returns_0_until_the_end(library):
    function = getattr(library, NAME)
    function.restype = ctypes.c_int64
    before = function()
    patch = ReturnsZero(library, NAME)
    for _ in range(2):
        assert patch.begin()
        assert function() == function() == 0
        patch.end()
        patch.end()
        assert function() > before > 0


def test_threads_can_call_it_meanwhile(library):
    function = getattr(library, NAME)
    function.restype = ctypes.c_int64
    over, calls = threading.Event(), []

    def call():
        count = 0
        while not over.is_set():
            function()
            count += 1
        calls.append(count)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    patch = ReturnsZero(library, NAME)
    for _ in range(200):
        assert patch.begin()
        patch.end()
    over.set()
    for thread in threads:
        thread.join()
    assert len(calls) == 4 and all(calls)


def test_other_code_is_left_alone():
    assert not ReturnsZero(ctypes.CDLL(None), "getpid").begin()  # gcc's, without a frame
    with pytest.raises(AttributeError):
        ReturnsZero(ctypes.CDLL(None), "no_such_function")
