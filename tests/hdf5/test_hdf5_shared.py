"""SharedWriter without a cluster: a real writer process, real files, a real SIGKILL."""

import os
import pathlib
import pickle
import resource
import signal
import subprocess
import sys
import threading

import h5py
import numpy as np
import psutil
import pytest
from conftest import alive, program, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfmagic.hdf5 import MismatchError, SharedWriter, SharedWriterError
from tfmagic.hdf5.shared_writer import sessions


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "out.h5")


def writer_pid():
    """The one writer process that this process has started."""
    (session,) = sessions._sessions.values()
    return wait_until(lambda: session.pid)


def contents(path):
    with h5py.File(path) as file:
        return {name: file[name][...] for name in file}


def test_rows_of_every_kind_arrive_as_they_were(path):
    rows = {
        "floats": np.random.default_rng(0).random((3, 4), np.float32),
        "half": np.ones(5, np.float16),
        "complex": np.array([1 + 2j]),
        "flags": np.array([True, False]),
        "big-endian": np.arange(4, dtype=">i4"),
        "record": np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")]),
        "bytes": np.array([b"ab", b"c"]),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "strided": np.arange(20)[::2],
        "none yet": np.empty((0, 7), np.uint8),
    }
    with SharedWriter(path) as writer:
        for name, array in rows.items():
            writer.append(name, array)
    found = contents(path)
    assert set(found) == set(rows)
    for name, array in rows.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name


def test_scalars_strings_and_groups(path):
    with SharedWriter(path) as writer:
        for step in range(3):
            writer.append("train/loss", 0.5 * step)
            writer.append("train/word", f"wörd {step}")
        writer.append("train/word", ["a", ""])
    with h5py.File(path) as file:
        assert file["train/loss"][:].tolist() == [0.0, 0.5, 1.0]
        assert file["train/word"].asstr()[:].tolist() == ["wörd 0", "wörd 1", "wörd 2", "a", ""]


def test_bytes_objects_of_a_string_tensor_are_text(path):
    """Such an array is ``np.asarray(tf.constant(["a", "b"]))``."""
    words = np.array(["wörd".encode(), b""], object)
    with SharedWriter(path) as writer:
        writer.append("word", words)
        writer.append("word", "str")
        with pytest.raises(ValueError, match="holds text as UTF-8, not b'.xff'"):
            writer.append("word", np.array([b"\xff"], object))
    assert words[0] == "wörd".encode()
    with h5py.File(path) as file:
        assert file["word"].asstr()[:].tolist() == ["wörd", "", "str"]


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.integers(0, 3_000_000), min_size=1, max_size=12))
def test_rows_of_any_size_keep_their_order_on_every_way(tmp_path, sizes):
    """Through the socket, through the ring, which wraps around, and beside it."""
    path = str(tmp_path / "any.h5")
    first = np.cumsum([0, *sizes])
    with SharedWriter(path) as writer:
        for start, size in zip(first, sizes, strict=False):
            writer.append("x", np.arange(start, start + size))
    assert np.array_equal(contents(path)["x"], np.arange(first[-1]))


def test_rows_that_fit_only_at_the_rings_begin_do_not_wait_for_ever(path):
    with SharedWriter(path) as writer:
        for size in (1_200_000, 1_300_000, 1_990_000, 10, 1_990_000):
            writer.append("x", np.full(size, size))
            writer.flush()
    assert len(contents(path)["x"]) == 1_200_000 + 1_300_000 + 2 * 1_990_000 + 10


def test_an_append_that_is_larger_than_the_ring_is_one_piece(path):
    big = np.arange(5_000_000)
    with SharedWriter(path) as writer:
        writer.append("x", big[:10])
        writer.append("x", big)
        writer.append("x", big[:10])
    assert np.array_equal(contents(path)["x"], [*range(10), *big, *range(10)])


def test_threads_of_a_task_append_each_in_its_order(path):
    with SharedWriter(path) as writer:

        def work(number):
            for i in range(50):
                writer.append("x", np.full(1000, 100 * number + i))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = contents(path)["x"].reshape(-1, 1000)
    assert (rows == rows[:, :1]).all() and len(rows) == 150
    for number in range(3):
        own = [row for row in rows[:, 0] if row // 100 == number]
        assert own == [100 * number + i for i in range(50)]


# ---- names and modes ----------------------------------------------------------------------------


def test_the_file_has_its_name_only_when_it_is_complete(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
        writer.flush()
        assert os.listdir(os.path.dirname(path)) == ["out.h5.unfinished"]
    assert os.listdir(os.path.dirname(path)) == ["out.h5"]


def test_the_former_file_stays_until_the_new_one_is_complete(path):
    with SharedWriter(path) as writer:
        writer.append("old", 1)
    with SharedWriter(path) as writer:
        writer.append("new", 2)
        writer.flush()
        assert set(contents(path)) == {"old"}
    assert set(contents(path)) == {"new"}


def test_mode_a_adds_and_mode_x_refuses(path):
    for value in (1, 2):
        with SharedWriter(path, "a") as writer:
            writer.append("x", value)
    assert contents(path)["x"].tolist() == [1, 2]
    with pytest.raises(SharedWriterError, match="is there already"):
        SharedWriter(path, "x")
    assert contents(path)["x"].tolist() == [1, 2]


APPEND = """
import os, sys, h5py, tfmagic
if sys.argv[2] == "guarded":
    tfmagic.hdf5.guard()
with h5py.File(sys.argv[1], "r") as file:
    assert len(file["x"]) == 1
try:
    with h5py.File(sys.argv[1], "r+") as file:
        file["mine"] = 1
except OSError as error:
    print(type(error).__name__, error)
else:
    print("written")
"""


@pytest.mark.parametrize("how", ["guarded", "plain"])
def test_while_mode_a_copies_a_file_others_can_read_but_not_write_it(path, how):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
    with SharedWriter(path, "a") as writer:
        writer.append("x", 2)
        command = [sys.executable, "-c", APPEND, path, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("FileInUseError" if how == "guarded" else "BlockingIOError"), (
            done.stdout
        )
    assert contents(path)["x"].tolist() == [1, 2]
    with h5py.File(path, "r+") as file:
        file["mine"] = 1  # it is free again


@pytest.mark.parametrize("how", ["written with locks switched off", "replaced"])
def test_what_another_program_writes_while_mode_a_is_open_stays_and_so_do_the_rows(path, how):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
    writer = SharedWriter(path, "a")
    writer.append("x", 2)
    if how == "replaced":
        with h5py.File(path + ".new", "w") as file:
            file["mine"] = 1
        os.replace(path + ".new", path)
    else:
        environ = {**os.environ, "HDF5_USE_FILE_LOCKING": "FALSE"}
        command = [sys.executable, "-c", APPEND, path, "plain"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        assert done.stdout == "written\n"
    with pytest.raises(
        SharedWriterError, match=r"has changed it since.*its rows are in .*out\.h5\.unfinished"
    ):
        writer.close()
    assert "mine" in contents(path) and contents(path + ".unfinished")["x"].tolist() == [1, 2]


def test_a_file_that_is_deleted_while_mode_a_is_open_is_there_again_with_all_rows(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
    with SharedWriter(path, "a") as writer:
        writer.append("x", 2)
        os.unlink(path)
    assert contents(path)["x"].tolist() == [1, 2]


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_private_file_stays_private_and_keeps_its_owner(path, mode):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (1,), maxshape=(None,))
    os.chmod(path, 0o640)
    owner = (65534, 65534) if os.getuid() == 0 else (os.getuid(), os.getgid())
    os.chown(path, *owner)
    with SharedWriter(path, mode) as writer:
        writer.append("x", np.float32(1))
        assert os.stat(path + ".unfinished").st_mode & 0o777 == 0o640
    found = os.stat(path)
    assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o640, *owner)


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_file_that_is_open_for_writing_with_h5py_is_not_replaced(path, mode):
    with h5py.File(path, "w") as file:
        file["x"] = 1
        file.flush()
        with pytest.raises(SharedWriterError, match=f"is open for writing by .*pid {os.getpid()}"):
            SharedWriter(path, mode)
        file["y"] = 2
    assert contents(path).keys() == {"x", "y"}
    with h5py.File(path), SharedWriter(path, mode) as writer:  # a reader does not matter
        writer.append("z", 3)


def test_after_a_refusal_the_path_is_free_at_once(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
    for n in range(5):
        with pytest.raises(SharedWriterError, match="is there already"):
            SharedWriter(path, "x")
        with SharedWriter(path, "a") as writer:
            writer.append("x", n)
    assert contents(path)["x"].tolist() == [1, 0, 1, 2, 3, 4]


def test_a_link_is_followed_to_the_file_that_it_stands_for(tmp_path):
    (tmp_path / "disk").mkdir()
    link = tmp_path / "out.h5"
    link.symlink_to("disk/real.h5")
    with SharedWriter(link) as writer:
        writer.append("x", 1)
    assert link.is_symlink() and contents(tmp_path / "disk" / "real.h5")["x"].tolist() == [1]


def test_a_file_that_appears_meanwhile_is_not_replaced_in_mode_x(path):
    writer = SharedWriter(path, "x")
    writer.append("x", 1)
    with open(path, "w") as file:
        file.write("somebody else's")
    with pytest.raises(SharedWriterError, match=r"File exists.*its rows are in .*out\.h5\.unfinished"):
        writer.close()
    with open(path) as file:
        assert file.read() == "somebody else's"
    assert contents(path + ".unfinished")["x"].tolist() == [1]


def test_a_writer_that_is_made_anew_closes_the_former(path):
    former = SharedWriter(path)
    former.append("x", 1)
    with SharedWriter(path, "a") as writer:
        writer.append("x", 2)
    assert former.closed and contents(path)["x"].tolist() == [1, 2]
    with pytest.raises(SharedWriterError, match="has been closed here"):
        former.append("x", 3)


def test_an_unreferenced_writer_is_closed(path):
    writer = SharedWriter(path)
    writer.append("x", 1)
    del writer
    wait_until(lambda: os.path.exists(path))
    assert contents(path)["x"].tolist() == [1]


def test_chunks_and_compression_are_as_asked(path):
    with SharedWriter(path, compression="gzip", chunk_rows=10) as writer:
        writer.append("x", np.zeros((25, 3)))
    with h5py.File(path) as file:
        assert (file["x"].chunks, file["x"].compression) == ((10, 3), "gzip")


# ---- refusals and error---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows, words",
    [
        (np.zeros((2, 4), np.float32), r"has rows of shape \(3,\), and these are of shape \(4,\)"),
        (np.zeros((2, 3), np.float64), "holds float32, and these rows are float64"),
        (["a"], "holds float32, and these rows are text"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_else_is_lost(path, rows, words):
    with SharedWriter(path) as writer:
        writer.append("x", np.ones((2, 3), np.float32))
        for _ in range(2):  # the second time, too
            with pytest.raises(MismatchError, match=words):
                writer.append("x", rows)
        writer.append("x", np.ones((1, 3), np.float32))
    assert contents(path)["x"].shape == (3, 3)


def test_two_ways_to_write_a_name_lead_to_one_dataset(path):
    with SharedWriter(path) as writer:
        for number, name in enumerate(["g/x", "/g/x", "g//x/", "./g/x"]):
            writer.append(name, np.full(2, number))
    with h5py.File(path, "a") as file:
        assert file["g/x"][:].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        file["soft"], file["hard"] = h5py.SoftLink("/g/x"), file["g/x"]
    with SharedWriter(path, "a") as writer:
        for number, name in enumerate(["soft", "g/x", "hard", "soft"], 4):
            writer.append(name, number)
    with h5py.File(path) as file:
        assert file["hard"][:].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7]


def test_text_that_hdf5_cannot_hold_is_refused_and_harms_no_other_rows(path):
    with SharedWriter(path) as writer:
        writer.append("x", "a")
        for text in ("b\0c", "\ud800"):
            with pytest.raises(ValueError, match="NUL character, not"):
                writer.append("x", ["d", text])
        with pytest.raises(ValueError, match="has a name"):
            writer.append("x\0y", "e")
        writer.append("x", "f")
    assert contents(path)["x"].tolist() == [b"a", b"f"]


def test_what_hdf5_cannot_hold_is_a_type_error(path):
    import ml_dtypes

    with SharedWriter(path) as writer:
        for value in ({1, 2}, np.datetime64("2026-01-01"), np.ones(2, ml_dtypes.bfloat16)):
            with pytest.raises(TypeError, match="convert it first"):
                writer.append("x", value)
        with pytest.raises(ValueError, match="has a name"):
            writer.append("/", 1)
        writer.append("group/x", 1)
        with pytest.raises(MismatchError, match="hold nothing"):
            writer.append("empty rows", np.zeros((2, 0)))
        with pytest.raises(MismatchError, match="is a group"):
            writer.append("group", 1)
        with pytest.raises(MismatchError, match="cannot be a dataset"):
            writer.append("group/x/y", 1)


def test_a_dataset_that_cannot_grow_is_named(path):
    with h5py.File(path, "w") as file:
        file["fixed"] = np.zeros(3)
    with SharedWriter(path, "a") as writer, pytest.raises(MismatchError, match="cannot grow"):
        writer.append("fixed", 1.0)


def test_unknown_settings_are_refused(path):
    for given_, words in (
        ({"mode": "r"}, "to read, use h5py.File"),
        ({"compression": "zip"}, "'gzip' or 'lzf'"),
        ({"chunk_rows": 0}, "1 or more"),
    ):
        with pytest.raises(ValueError, match=words):
            SharedWriter(path, **given_)


def test_a_place_that_cannot_be_written_is_an_error_at_once(tmp_path):
    with pytest.raises(SharedWriterError, match=f"there is no folder {tmp_path}/nowhere: make it first"):
        SharedWriter(tmp_path / "nowhere" / "out.h5")
    with pytest.raises(SharedWriterError, match="is a folder: name a file in it"):
        SharedWriter(f"{tmp_path}/")
    with pytest.raises(SharedWriterError, match="is a folder"):
        SharedWriter(tmp_path)
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(SharedWriterError, match="no HDF5 file"):
        SharedWriter(tmp_path / "text.h5", "a")
    with pytest.raises(SharedWriterError, match=r"Read-only|denied|not permitted|No such file"):
        SharedWriter("/proc/out.h5")
    assert (tmp_path / "text.h5").read_text() == "hello"
    assert os.listdir(tmp_path) == ["text.h5"]


def test_a_full_disk_leaves_nothing_half_written(path):
    writer = SharedWriter(path)
    resource.prlimit(writer_pid(), resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with pytest.raises(SharedWriterError, match="could not be written"):
        for _ in range(100):
            writer.append("x", np.zeros(100_000))
    with pytest.raises(SharedWriterError):
        writer.close()
    wait_until(lambda: os.listdir(os.path.dirname(path)) == [])


def test_what_was_flushed_before_the_disk_was_full_is_kept_under_another_name(path):
    with (
        pytest.raises(SharedWriterError, match=r"before that is in .*out\.h5\.abandoned"),
        SharedWriter(path) as writer,
    ):
        writer.append("x", np.arange(1000))
        writer.flush()
        resource.prlimit(writer_pid(), resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        while True:
            writer.append("x", np.arange(100_000))
    wait_until(lambda: os.listdir(os.path.dirname(path)) == ["out.h5.abandoned"])
    assert np.array_equal(contents(path + ".abandoned")["x"][:1000], np.arange(1000))


def test_a_second_thread_does_not_replace_what_the_first_one_writes(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
        refused = []

        def again():
            try:
                SharedWriter(path)
            except SharedWriterError as error:
                refused.append(str(error))

        other = threading.Thread(target=again)
        other.start()
        other.join()
        assert "open in the thread MainThread" in refused[0] and "share that SharedWriter" in refused[0]
        writer.append("x", 2)
    assert contents(path)["x"].tolist() == [1, 2]


def test_what_a_thread_that_has_ended_left_open_gives_way(path):
    left = []
    opener = threading.Thread(target=lambda: left.append(SharedWriter(path)))
    opener.start()
    opener.join()
    left[0].append("x", 1)
    with SharedWriter(path) as writer:
        writer.append("x", 2)
    assert left[0].closed and contents(path)["x"].tolist() == [2]


# ---- deaths, waits and conflicts ----------------------------------------------------------------


def test_a_killed_writer_is_named_and_what_it_had_flushed_can_be_read(path):
    writer = SharedWriter(path)
    writer.append("x", np.arange(10))
    writer.flush()
    os.kill(writer_pid(), signal.SIGKILL)
    with pytest.raises(
        SharedWriterError, match=r"has ended; what it had written is in .*out\.h5\.unfinished"
    ):
        while True:
            writer.append("x", 1)
    with pytest.raises(SharedWriterError):
        writer.close()
    assert contents(path + ".unfinished")["x"][:10].tolist() == list(range(10))
    with SharedWriter(path) as writer:
        writer.append("y", 1)
    assert sorted(os.listdir(os.path.dirname(path))) == ["out.h5", "out.h5.abandoned"]


def test_the_rows_of_each_killed_writer_are_kept_under_a_name_of_their_own(path, capfd):
    for number in range(3):
        writer = SharedWriter(path)
        said = capfd.readouterr().err
        kept = f"{path}.abandoned" + (f".{number}" if number > 1 else "")
        assert (f"tfmagic: {path}: the rows of a writer that was killed are in {kept}\n" in said) == (
            number > 0
        )
        writer.append("x", number)
        writer.flush()
        os.kill(writer_pid(), signal.SIGKILL)
        with pytest.raises(SharedWriterError):
            writer.close()
    names = [".abandoned", ".abandoned.2", ".unfinished"]
    assert [contents(path + name)["x"].tolist() for name in names] == [[0], [1], [2]]


def test_a_slow_disk_keeps_the_task_back_with_bounded_memory(path):
    writer = SharedWriter(path)
    writer.append("x", np.zeros(1))
    pid = writer_pid()
    os.kill(pid, signal.SIGSTOP)
    appended = []

    def work():
        for number in range(40):
            writer.append("x", np.full(1 << 17, number, float))  # 1 MiB
            appended.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: len(appended) >= 14)
    thread.join(0.3)
    assert thread.is_alive() and len(appended) <= 16  # a ring full
    os.kill(pid, signal.SIGCONT)
    thread.join(60)
    writer.close()
    assert len(contents(path)["x"]) == 1 + 40 * (1 << 17)


def test_the_writers_memory_stays_small_with_many_datasets(path):
    rows = np.zeros((256, 1024), np.float32)
    with SharedWriter(path) as writer:
        for _ in range(6):
            for number in range(50):
                writer.append(f"layer{number}", rows)
        writer.flush()
        held = psutil.Process(writer_pid()).memory_info().rss
    assert held < 230 << 20, held >> 20  # of 300 MiB


SCRIPT = """
import os, sys
import numpy as np
from tfmagic.hdf5 import SharedWriter
from tfmagic.hdf5.shared_writer import sessions

writer = SharedWriter(sys.argv[1])
for step in range(int(sys.argv[2])):
    writer.append("x", np.full(5000, step))
(session,) = sessions._sessions.values()
print(session.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["exit", "SIGKILL"])
def test_the_file_is_closed_and_the_writer_ends_when_its_process_does(path, how):
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, path, "300"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid = int(script.stdout.readline())
    if how == "SIGKILL":
        script.kill()
    script.communicate()
    wait_until(lambda: not alive({pid}))
    rows = contents(path)["x"].reshape(-1, 5000)
    assert rows[:, 0].tolist() == list(range(300))


def test_two_scripts_cannot_write_one_file(path):
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, path, "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    script.stdout.readline()
    with pytest.raises(SharedWriterError, match="being written by another notebook or script"):
        SharedWriter(path)
    script.communicate()
    assert len(contents(path)["x"]) == 15000


def test_a_fork_of_the_process_that_opened_it_is_refused(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                writer.append("x", 2)
            except SharedWriterError as error:
                code = 0 if "is a fork of it" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        writer.append("x", 3)
    assert contents(path)["x"].tolist() == [1, 3]


@pytest.mark.parametrize("end", ["its with", "its interpreter"])
def test_a_fork_that_ends_does_not_close_the_file_of_its_parent(path, end):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
        if (pid := os.fork()) == 0:
            signal.alarm(60)
            if end == "its with":
                writer.__exit__(None, None, None)
            else:
                sessions.end_all()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        writer.append("x", 2)
        writer.flush()
    assert contents(path)["x"].tolist() == [1, 2]


FORKING = """
import os, sys, time
from tfmagic.hdf5 import SharedWriter
from tfmagic.hdf5.shared_writer import sessions

writer = SharedWriter(sys.argv[1])
writer.append("x", 1)
child = os.fork()
if child == 0:
    time.sleep(1000)
(session,) = sessions._sessions.values()
print(session.pid, child, flush=True)
sys.stdin.read()
"""


def test_a_fork_that_goes_on_does_not_keep_the_file_open_when_its_parent_is_killed(path):
    with program(sys.executable, "-c", FORKING, path, stdin=subprocess.PIPE) as script:
        pid, child = map(int, script.stdout.readline().split())
        script.kill()
        try:
            wait_until(lambda: os.path.exists(path))
        finally:
            os.kill(child, signal.SIGKILL)
    wait_until(lambda: not alive({pid}))
    assert contents(path)["x"].tolist() == [1]


def test_neither_writer_nor_thread_nor_descriptor_stays(path):
    before = len(psutil.Process().open_files()), psutil.Process().num_fds()
    for _ in range(2):
        with SharedWriter(path) as writer:
            writer.append("x", np.zeros(1 << 16))
            pid = writer_pid()
        assert not alive({pid}) and not sessions._sessions
    del writer
    assert (len(psutil.Process().open_files()), psutil.Process().num_fds()) == before


def test_without_h5py_the_error_says_what_to_install(path):
    folder = os.path.dirname(path)
    with open(os.path.join(folder, "h5py.py"), "w") as file:
        file.write("raise ImportError('No module named h5py')\n")
    sys.path.insert(0, folder)
    try:
        with pytest.raises(SharedWriterError, match=r'pip install "tfmagic\[hdf5\]"'):
            SharedWriter(path)
    finally:
        sys.path.remove(folder)


def test_a_path_object_in_sys_path_does_not_keep_the_writer_from_starting(path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, pathlib.Path(path).parent])
    with SharedWriter(path) as writer:
        writer.append("x", 1)
    assert contents(path)["x"].tolist() == [1]


def test_errors_can_be_pickled():
    for error in (MismatchError("a"), SharedWriterError("b")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


# ---- interrupts ---------------------------------------------------------------------------------


def test_an_interrupt_while_it_is_opened_leaves_the_path_free_and_the_file_as_it_was(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)

    def press():  # as soon as the writer's process is there, which has to load h5py
        wait_until(lambda: any(session.pid for session in [*sessions._sessions.values()]))
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    with pytest.raises(KeyboardInterrupt):
        presser.start()
        SharedWriter(path)
    presser.join()
    wait_until(lambda: not sessions._sessions)
    assert contents(path)["x"].tolist() == [1] and os.listdir(os.path.dirname(path)) == ["out.h5"]
    with SharedWriter(path, "a") as writer:
        writer.append("x", 2)
    assert contents(path)["x"].tolist() == [1, 2]


INTERRUPTED = """
import random, signal, sys
import numpy as np
from tfmagic.hdf5 import SharedWriter

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
chance = random.Random(0)
sizes = [1, 500, 5000, 300_000, 900_000, 3_000_000]
with SharedWriter(sys.argv[1]) as writer:
    acknowledged = interrupts = 0
    for step in range(300):
        rows = np.full(chance.choice(sizes) if step % 5 == 0 else chance.choice(sizes[:3]), step)
        try:
            if step % 3 == 0:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 5e-4))
            writer.append("x", rows)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
            continue
        print(step, len(rows))
        acknowledged += 1
assert interrupts > 6 and acknowledged > 150, (interrupts, acknowledged)
"""


def test_appends_after_interrupted_ones_neither_wait_for_ever_nor_lose_rows(path):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, path], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    counts = np.bincount(contents(path)["x"], minlength=1000)
    for line in done.stdout.splitlines():
        step, size = map(int, line.split())
        assert counts[step] == size
    assert (np.diff(contents(path)["x"]) >= 0).all()


def test_a_writer_that_is_silent_for_long_is_named(path, capfd, monkeypatch):
    monkeypatch.setattr("tfmagic.hdf5.shared_writer.connection._SILENCE_S", 0.2)
    with SharedWriter(path) as writer:
        pid = writer_pid()
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()
        writer.append("x", 1)
    assert f"waiting for the process that writes {path} (pid {pid})" in capfd.readouterr().err


def test_two_scripts_cannot_write_one_file_with_locks_switched_off_either(path):
    environment = os.environ | {"HDF5_USE_FILE_LOCKING": "FALSE"}
    one = [sys.executable, "-c", SCRIPT, path, "3"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    first = subprocess.Popen(one, env=environment, text=True, **pipes)
    first.stdout.readline()
    second = subprocess.run(one, env=environment, capture_output=True, text=True, timeout=60)
    assert "being written by another notebook or script" in second.stderr
    first.communicate()
    assert len(contents(path)["x"]) == 15000
