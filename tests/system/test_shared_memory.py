"""Memory files serve again as soon as no process has them any more, and not before."""

import gc
import itertools
import linecache
import mmap
import os
import subprocess
import sys

import pytest
from conftest import wait_until

from tfmagic.system import shared_memory

SIZE = 5 << 20


@pytest.fixture(autouse=True)
def nothing_kept():
    shared_memory._forget()
    yield
    shared_memory._forget()


def share(byte=b"a", size=SIZE):
    return shared_memory.share([memoryview(byte * size)])


def content(fd):
    return os.pread(fd, os.fstat(fd).st_size, 0)


def number(fd):
    return os.fstat(fd).st_ino


def test_a_file_serves_again_when_it_was_closed():
    first = share(b"a")
    inode = number(first)
    os.close(first)
    for byte, size in ((b"b", SIZE), (b"c", SIZE - 4096), (b"d", SIZE - 4096)):
        again = share(byte, size)
        assert number(again) == inode and content(again) == byte * size
        os.close(again)


@pytest.mark.parametrize("flag", [mmap.MAP_PRIVATE, mmap.MAP_SHARED])
def test_a_mapping_keeps_its_content_after_the_descriptor_is_closed(flag):
    first = share(b"a")
    inode, mapped = number(first), mmap.mmap(first, SIZE, flag)
    os.close(first)
    second = share(b"b")
    assert number(second) != inode and mapped[:] == b"a" * SIZE
    mapped.close()
    third = share(b"c")
    assert number(third) == inode and content(second) == b"b" * SIZE
    os.close(second)
    os.close(third)


def test_a_file_that_another_process_maps_is_not_written_again():
    code = (
        "import mmap, os, sys; mapped = mmap.mmap(int(sys.argv[1]), 0, mmap.MAP_PRIVATE); "
        "os.close(int(sys.argv[1])); print(flush=True); input(); print(mapped[:] == b'a' * len(mapped))"
    )
    first = share(b"a")
    inode = number(first)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(first)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[first],
        text=True,
    ) as process:
        os.close(first)
        process.stdout.readline()
        second = share(b"b")
        assert number(second) != inode
        answer, _ = process.communicate("\n")
    assert answer == "True\n"
    third = share(b"c")
    assert number(third) == inode
    os.close(second)
    os.close(third)


def test_a_process_that_opens_the_file_by_its_path_locks_it():
    first = share(b"a")
    other = os.open(f"/proc/self/fd/{first}", os.O_RDONLY)
    shared_memory.lock(other)
    os.close(first)
    second = share(b"b")
    assert content(other) == b"a" * SIZE
    os.close(other)
    os.close(second)


def test_a_larger_value_and_a_small_one_get_files_of_their_own():
    first = share(b"a")
    os.close(first)
    small, large = share(b"b", 1000), share(b"c", SIZE + 1)
    assert content(small) == b"b" * 1000 and content(large) == b"c" * (SIZE + 1)
    assert len(shared_memory._kept) == 1
    os.close(small)
    os.close(large)


def test_a_value_that_would_fill_the_memory_is_not_kept(monkeypatch):
    monkeypatch.setattr(shared_memory, "_KEPT_TO_BYTES", SIZE - 1)
    fd = share(b"a")
    assert content(fd) == b"a" * SIZE and not shared_memory._kept
    os.close(fd)


def test_parts_stand_at_multiples_of_the_alignment():
    fd = shared_memory.share([memoryview(b"abc"), memoryview(b""), memoryview(b"de")], align=8)
    assert content(fd) == b"abc" + bytes(5) + b"de" + bytes(6)
    os.close(fd)


def test_nothing_is_left_after_some_seconds(monkeypatch):
    monkeypatch.setattr(shared_memory, "_KEPT_S", 0.05)
    descriptors = len(os.listdir("/proc/self/fd"))
    os.close(share())
    wait_until(lambda: not shared_memory._kept and shared_memory._closer is None)
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on
def test_a_fork_has_no_kept_file():
    os.close(share())
    child = os.fork()
    if child == 0:
        os._exit(len(shared_memory._kept))
    assert os.waitpid(child, 0)[1] == 0 and len(shared_memory._kept) == 1


def test_a_sandbox_that_hides_the_open_files_gets_a_new_file_for_each_value():
    code = (
        "import os\nfrom tfmagic.system import shared_memory as m\n"
        "files = [m.share([memoryview(bytes([n]) * (5 << 20))]) for n in (1, 2, 3)]\n"
        "print([os.pread(fd, 1, (5 << 20) - 1)[0] for fd in files], len(m._kept))"
    )
    hidden = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    run = subprocess.run([*hidden, sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[1, 2, 3] 0\n", run.stderr


def interrupted_at(number, call):
    """Call, with a KeyboardInterrupt at the `number`-th line of the module or of a thread's start."""
    seen = itertools.count(1)

    def trace(frame, event, _):
        if frame.f_code.co_filename != shared_memory.__file__ and frame.f_code.co_name != "start":
            return None
        # no signal arrives at a `try:`, nor between the last line of a `with` and the release of its lock
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not line.startswith(("with ", "try:")) and next(seen) == number:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(before)


def test_an_interrupt_at_any_line_leaves_no_descriptor_and_files_are_still_closed(monkeypatch):
    monkeypatch.setattr(shared_memory, "_KEPT_S", 0.01)
    descriptors = set(os.listdir("/proc/self/fd"))
    for number in itertools.count(1):
        fd = interrupted_at(number, share)
        if fd is not None:
            os.close(fd)
        os.close(share())  # as a next value does, whose file is closed soon
        gc.collect()
        wait_until(lambda: set(os.listdir("/proc/self/fd")) <= descriptors)
        if fd is not None and number > 20:
            break
