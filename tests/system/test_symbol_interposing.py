"""The calls of loaded libraries go to another function, and to their own one again."""

import subprocess
import sys

# TensorFlow's library calls the function itself, through a slot as for functions of other libraries
PROGRAM = """
import ctypes, importlib.util, os
from tfmagic.system.symbol_interposing import address_of, interpose, write_word

(folder,) = importlib.util.find_spec("tensorflow").submodule_search_locations
libraries = ctypes.CDLL(os.path.join(folder, "libtensorflow_cc.so.2"))
function = libraries._ZN3tsl8profiler15TraceMeRecorder13NewActivityIdEv
function.restype = ctypes.c_int64
zero = ctypes.CDLL(None).pthread_getconcurrency
folders = (os.path.realpath(folder),)

def words():
    return {ctypes.c_uint64.from_address(slot).value for slot in slots}

slots = interpose(folders, function, zero)
assert len(slots) == 2 and words() == {address_of(zero)}
assert not interpose(folders, function, zero)
assert not interpose(("/nowhere/",), zero, function)
for slot in slots:
    write_word(slot, address_of(function))
assert words() == {address_of(function)} and zero() == 0 and function()
"""


def test_a_library_calls_another_function_for_a_while():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
