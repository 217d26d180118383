"""TaskFile: names, modes, and the files that a kill and a full disk leave."""

import concurrent.futures
import os
import pickle
import subprocess
import sys
import threading

import h5py
import ml_dtypes
import numpy as np
import pytest
from hdf5_processes import other

from tfmagic.errors import ClusterSpecError, TfmagicError
from tfmagic.hdf5 import (
    FileInUseError,
    MismatchError,
    PartError,
    SharedWriter,
    TaskFile,
    consolidate,
    find_parts,
    missing_parts,
    recover,
)


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "results.h5")


def names(base):
    return sorted(os.listdir(os.path.dirname(base)))


def test_the_package_costs_nothing_before_it_is_used():
    code = (
        "import sys, tfmagic; tfmagic.hdf5.guard(); "
        "print({m.partition('.')[0] for m in sys.modules} & {'h5py', 'numpy', 'tensorflow'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_part_is_an_h5py_file_under_the_name_of_its_task(base):
    with TaskFile(base, task="worker-1") as file:
        file["a/b"] = np.arange(3)
        file.attrs["rate"] = 0.1
        file.create_dataset("c", data=[1.5], compression="gzip")
        assert isinstance(file, h5py.File) and names(base) == ["results.worker-1.h5.unfinished"]
    assert names(base) == ["results.worker-1.h5"] and file.path == base.replace(".h5", ".worker-1.h5")
    with h5py.File(file.path) as read:
        assert read["a/b"][:].tolist() == [0, 1, 2] and read.attrs["tfmagic_task"] == "worker-1"
    with TaskFile(base, "r", task="worker-1") as read:
        assert read["c"][0] == 1.5


def test_outside_of_a_cluster_it_is_the_part_of_worker_0_or_of_tf_config(base, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert open_and_close(base) == "worker-0"
    config = (
        '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}}'
    )
    monkeypatch.setenv("TF_CONFIG", config)
    assert open_and_close(base) == "worker-1"
    monkeypatch.setenv("TF_CONFIG", "{nonsense")
    with pytest.raises(ClusterSpecError, match="TF_CONFIG does not say"):
        TaskFile(base)


def open_and_close(base):
    with TaskFile(base) as file:
        return file.task.name


def test_parts_stand_by_task_and_number_and_not_as_text(base):
    for task in ("worker-10", "worker-9", "ps-0", "chief-0", "evaluator-0"):
        TaskFile(base, task=task).close()
    for other_file in ("results.notes.h5", "results.worker-01.h5", "resultsXworker-1.h5"):
        open(os.path.join(os.path.dirname(base), other_file), "w").close()
    tasks = [part.task.name for part in find_parts(base)]
    assert tasks == ["chief-0", "worker-9", "worker-10", "ps-0", "evaluator-0"]


def test_an_append_makes_a_dataset_that_grows(base):
    with TaskFile(base) as file:
        assert file.append("g/x", np.ones((2, 3), "float32")) == 2
        assert file.append("g/x", np.zeros((1, 3), "float32")) == 3
        assert [file.append("step", step) for step in (5, 6)] == [1, 2]  # a scalar is one row
        assert file.append("words", ["one", "zwölf"]) == 2
        assert file.append("flags", np.array([True, False])) == 2
        assert file.append("pixels", np.zeros((0, 0, 3), "uint8")) == 0
        assert file["g/x"].maxshape == (None, 3)
        assert [word.decode() for word in file["words"][:]] == ["one", "zwölf"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.ones((1, 4), "float32"), "rows of shape (3,), and these are of shape (4,)"),
        (np.ones((1, 3), "float64"), "holds float32, and these rows are float64"),
        ([[1, 2], [3]], "inhomogeneous"),
        (np.array([[1], {}], object), "Python objects"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_added(base, rows, words):
    with TaskFile(base) as file:
        file.append("x", np.ones((2, 3), "float32"))
        with pytest.raises(ValueError) as caught:
            file.append("x", rows)
        assert words in str(caught.value) and len(file["x"]) == 2
        file["fixed"] = [1.0]
        file.create_group("group")
        with pytest.raises(MismatchError, match="cannot grow"):
            file.append("fixed", [1.0])
        with pytest.raises(MismatchError, match="is a group"):
            file.append("group", [1.0])


# ---- modes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "datetime64[s]"])
def test_a_dtype_that_hdf5_does_not_have_is_named_and_makes_no_dataset(base, dtype):
    rows = np.zeros(3, getattr(ml_dtypes, dtype, dtype))
    with TaskFile(base) as file:
        with pytest.raises(MismatchError, match=r"HDF5 has nothing for the dtype .*: convert it first"):
            file.append("x", rows)
        assert "x" not in file
        file.append("raw", np.zeros(3, "V5"))  # bytes, as h5py has them
        times = np.zeros(3, "datetime64[s]")
        file.append("time", times.astype(h5py.opaque_dtype(times.dtype)))


def test_an_older_part_is_there_until_the_new_one_is_whole(base):
    with TaskFile(base) as file:
        file["x"] = [1]
    again = TaskFile(base)
    again["x"] = [2]
    with TaskFile(base, "r") as old:
        assert old["x"][0] == 1
    again.close()
    again.close()
    with TaskFile(base, "r") as new:
        assert new["x"][0] == 2


def test_a_part_goes_on_where_it_ended(base):
    for number in range(3):
        with TaskFile(base, "a") as file:
            assert file.append("x", [number]) == number + 1
            assert names(base) == ["results.worker-0.h5.unfinished"]  # it changes: no reader must take it
    with TaskFile(base, "r+") as file:
        assert file["x"][:].tolist() == [0, 1, 2]


def test_modes_that_do_not_fit_what_is_there(base):
    with pytest.raises(PartError, match=r"results.worker-0.h5, the part of worker-0, cannot be opened"):
        TaskFile(base, "r+")
    with pytest.raises(PartError, match="cannot be opened"):
        TaskFile(base, "r")
    with pytest.raises(ValueError, match="mode is one of"):
        TaskFile(base, "rw")
    with pytest.raises(ValueError, match="without driver"):
        TaskFile(base, driver="core")
    with pytest.raises(ClusterSpecError, match="'warden-1' is not a task"):
        TaskFile(base, task="warden-1")
    TaskFile(base, "x").close()
    with pytest.raises(PartError, match="is there already; mode='w'"):
        TaskFile(base, "x")
    assert names(base) == ["results.worker-0.h5"]


def test_a_part_that_is_no_hdf5_file_keeps_its_name(base):
    with open(base.replace(".h5", ".worker-0.h5"), "w") as file:
        file.write("not HDF5")
    with pytest.raises(PartError, match="file signature not found"):
        TaskFile(base, "a")
    assert names(base) == ["results.worker-0.h5"]


@pytest.mark.parametrize("mode", ["w", "x", "a", "r+"])
def test_a_part_is_open_once_also_in_one_process(base, mode):
    with TaskFile(base) as file:
        file["x"] = [1]
        with pytest.raises(FileInUseError, match="already open for writing by this process"):
            TaskFile(base, mode)
        with TaskFile(base, task="worker-1"), TaskFile(base.replace("results", "others")):
            pass
    with TaskFile(base, "r") as file:
        assert file["x"][0] == 1


def test_a_part_is_open_in_one_process_of_two_and_free_when_that_is_killed(base):
    program = "f = TaskFile(sys.argv[1]); f['x'] = [1]; f.flush(); say('open'); wait()"
    with other(program, base) as holder:
        assert holder.hear() == "open"
        with pytest.raises(FileInUseError, match=rf"pid {holder.process.pid}\)"):
            TaskFile(base)
        with pytest.raises(FileInUseError, match=rf"still being written by .*pid {holder.process.pid}\)"):
            consolidate(base)
        assert recover(base) == []
        holder.kill()
        with TaskFile(base, "a") as file:
            assert file["x"][0] == 1


# ---- what is left ------------------------------------------------------------------------------------

WRITER = """
file = TaskFile(sys.argv[1], task="worker-1", libver=sys.argv[2] or None)
for number in range(10**9):
    file.append("x", np.full((8, 64), number, "float32"))
    if number < 50 or sys.argv[3] == "also groups":
        file.create_group(f"g{number}")["z"] = np.arange(50)
    if number == 50:
        file.flush()
        say("flushed")
    elif number == 1500:
        say("more")
"""


@pytest.mark.parametrize(("libver", "kind"), [("", "also groups"), ("latest", "rows")])
def test_what_was_flushed_survives_a_kill_in_whatever_came_later(base, libver, kind):
    with other(WRITER, base, libver, kind) as writer:
        assert (writer.hear(), writer.hear()) == ("flushed", "more")
        writer.kill()
    TaskFile(base, task="worker-0").close()
    assert names(base)[1:] == ["results.worker-1.h5.unfinished"]
    with pytest.raises(
        PartError, match=r"results.worker-1.h5.unfinished was left unfinished: worker-1 was killed"
    ):
        consolidate(base)
    report = consolidate(base, recover=True)
    assert report.recovered == ("worker-1",) and "recovered: worker-1" in str(report)
    with h5py.File(base) as file:
        assert len(file["x"]) >= 51 * 8
        assert (file["x"][: 51 * 8 : 8, 0] == np.arange(51)).all()
        assert len(file) >= 51 and file["g49/z"][-1] == 49


NAIVE = """
file = h5py.File(sys.argv[1], "w") if sys.argv[2] == "h5py" else TaskFile(sys.argv[1])
for number in range(4000):
    group = file.create_group(f"g{number}")
    group["z"] = np.arange(50)
    group.attrs["a"] = "x" * 500
    if number == 49:
        file.flush()
say("more")
wait()
"""


def test_rows_go_to_the_dataset_that_has_the_name_now(base):
    with TaskFile(base) as file:
        for name in ("deleted", "moved"):
            file.append(name, [1.0])
        del file["deleted"]
        file.move("moved", "kept")
        for name in ("deleted", "moved"):
            assert file.append(name, [2.0, 3.0]) == 2
    with TaskFile(base, "r") as file:
        assert {name: file[name][:].tolist() for name in file} == {
            "deleted": [2, 3],
            "kept": [1],
            "moved": [2, 3],
        }


@pytest.mark.parametrize("kind", [pytest.param("h5py", marks=pytest.mark.soak), "ours"])
def test_plain_h5py_is_unreadable_when_it_is_killed_after_a_flush(base, kind):
    """HDF5 writes some of its tree whenever its cache is full; `keep_flushed` is the cure."""
    with other(NAIVE, base, kind) as writer:
        assert writer.hear() == "more"
        writer.kill()
    broken = False
    try:
        with h5py.File(base if kind == "h5py" else base.replace(".h5", ".worker-0.h5.unfinished")) as file:
            for number in range(50):
                assert file[f"g{number}/z"][49] == 49 and file[f"g{number}"].attrs["a"]
    except (KeyError, OSError, RuntimeError):
        broken = True
    assert broken == (kind == "h5py")


def test_a_part_of_large_rows_is_recovered_in_the_memory_of_a_block(base):
    with pytest.raises(KeyError), TaskFile(base) as file:
        file.create_dataset("x", (200, 1 << 18), "f4", chunks=(1, 1 << 18))[100] = 1  # rows of 1 MiB
        file["empty"], file["scalar"] = h5py.Empty("f4"), 1
        raise KeyError
    code = (
        "import sys, resource\nfrom tfmagic.hdf5 import recover\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(recover(sys.argv[1]), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, base], capture_output=True, text=True, check=True)
    taken, grown = done.stdout.rsplit(maxsplit=1)
    assert taken == "['worker-0']" and int(grown) < 60, "MiB"


def test_a_name_of_bytes_is_that_name(base):
    name = os.fsencode(base)
    with TaskFile(name) as file:
        file["x"] = [1]
    assert names(base) == ["results.worker-0.h5"]
    assert consolidate(name).path == base and missing_parts(name) == {}
    with SharedWriter(os.fsencode(base + ".too")) as writer:
        writer.append("x", 1)
    assert writer.path == os.path.realpath(base + ".too") and os.path.exists(writer.path)


def test_a_part_that_was_never_flushed_is_named_and_stays(base):
    with other("f = TaskFile(sys.argv[1]); f['x'] = [1]; say('open'); wait()", base) as writer:
        writer.hear()
        writer.kill()
    with pytest.raises(
        PartError, match=r"which worker-0 left unfinished, cannot be recovered: .*first flush"
    ):
        recover(base)
    assert names(base) == ["results.worker-0.h5.unfinished"]
    TaskFile(base).close()
    assert names(base) == ["results.worker-0.h5"]


def test_an_exception_leaves_the_part_unfinished_and_says_so(base):
    with pytest.raises(ZeroDivisionError) as caught, TaskFile(base) as file:
        file.append("x", [1, 2])
        _ = 1 / 0
    assert "the part of worker-0, is unfinished" in caught.value.__notes__[0]
    assert names(base) == ["results.worker-0.h5.unfinished"]
    assert recover(base) == ["worker-0"]
    with TaskFile(base, "r") as read:
        assert read["x"][:].tolist() == [1, 2]


def test_a_later_attempt_that_was_killed_does_not_replace_a_finished_part(base):
    with TaskFile(base) as file:
        file["x"] = [1]
    with pytest.raises(ZeroDivisionError), TaskFile(base) as file:
        _ = 1 / 0
    assert recover(base) == []
    with pytest.raises(PartError, match="An older part of worker-0 is there, too"):
        consolidate(base, recover=True)
    with pytest.raises(PartError, match="is there twice"):
        TaskFile(base, "a")
    with TaskFile(base, "r") as read:
        assert read["x"][0] == 1


LIMITED = """
import resource
file = TaskFile(sys.argv[1])
file.append("x", np.ones((8, 1000)))
if sys.argv[2] == "flush": file.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
def fill():
    while True: file.append("x", np.ones((8, 1000)))
try:
    with file: fill() if sys.argv[2] != "close" else resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
except OSError as error:
    say(f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}")
say("still here")
"""


@pytest.mark.parametrize("when", ["write", "flush", "close"])
def test_a_full_disk_is_an_error_with_a_name_and_no_crash(base, when):
    """HDF5 by itself ends in a segmentation fault here: see tfmagic.hdf5.closing."""
    with other(LIMITED, base, when) as writer:
        said = ""
        while (line := writer.hear()) and line != "still here":
            said += line
        assert line == "still here" and writer.end() == 0
    assert "File too large" in said and "results.worker-0.h5, the part of worker-0," in said
    assert names(base) == ["results.worker-0.h5.unfinished"]
    if when == "flush":
        recover(base)
        with TaskFile(base, "r") as file:
            assert (file["x"][:8] == 1).all()


def test_a_full_disk_is_no_error_or_a_crash_in_plain_h5py(tmp_path):
    """HDF5 writes a dataset's memory when its object ends, and h5py ignores errors there."""
    program = """
import resource
file = h5py.File(sys.argv[1], "w")
file.create_dataset("x", (0, 1000), "f8", maxshape=(None, 1000), chunks=(8, 1000))
file.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
sys.unraisablehook = lambda _: None  # h5py prints it
for number in range(50):
    file["x"].resize(8 * number + 8, axis=0)
    file["x"][8 * number :] = np.ones((8, 1000))
say("no error")
try: file.close()
except Exception: pass
"""
    with other(program, tmp_path / "x.h5") as writer:
        assert writer.hear() == "no error"
        assert writer.end() == -11  # SIGSEGV


def test_a_folder_that_cannot_be_written(tmp_path):
    told = (
        r"results.worker-0.h5, the part of worker-0, cannot be opened: there is no folder .*: make it first"
    )
    with pytest.raises(PartError, match=told):
        TaskFile(tmp_path / "nowhere" / "results.h5")
    with pytest.raises(PartError, match=r"cannot be opened"):
        TaskFile("/proc/results.h5")  # not even root can
    with pytest.raises(PartError, match="cannot be read"):
        consolidate(tmp_path / "nowhere" / "results.h5")


def test_the_mark_of_a_writer_is_taken_off_as_h5clear_does(tmp_path):
    path = tmp_path / "x.worker-0.h5.unfinished"
    program = "f = h5py.File(sys.argv[1], 'w', libver='latest'); f['x'] = [1]; f.flush(); say(1); wait()"
    with other(program, path) as writer:
        writer.hear()
        writer.kill()
    with pytest.raises(OSError, match="h5clear"):
        h5py.File(path)
    assert recover(tmp_path / "x.h5") == ["worker-0"]
    with h5py.File(tmp_path / "x.worker-0.h5") as file:
        assert file["x"][0] == 1


@pytest.mark.parametrize("content", [b"\x89HDF\r\n\x1a\n\x03\x08\x08\x01" + bytes(40), b"\x89HDF", b""])
def test_a_part_whose_first_bytes_are_damaged_is_named_and_stays(tmp_path, content):
    left = tmp_path / "x.worker-0.h5.unfinished"
    left.write_bytes(content)
    with pytest.raises(PartError, match="which worker-0 left unfinished, cannot be recovered"):
        recover(tmp_path / "x.h5")
    assert left.read_bytes() == content


@pytest.mark.parametrize("kind", [FileInUseError, PartError, MismatchError])
def test_errors_are_ours_and_travel(kind):
    error = pickle.loads(pickle.dumps(kind("results.h5 is in use")))
    assert type(error) is kind and str(error) == "results.h5 is in use" and isinstance(error, TfmagicError)
    assert isinstance(FileInUseError("x"), BlockingIOError) and FileInUseError("x").errno == 11


def test_two_that_open_one_part_at_once_are_one_and_an_error(base):
    program = (
        "wait()\ntry: f = TaskFile(sys.argv[1]); say('open')\nexcept FileInUseError: say('in use')\nwait()"
    )
    with other(program, base) as one, other(program, base) as two:
        one.go(), two.go()
        assert sorted([one.hear(), two.hear()]) == ["in use", "open"]
    assert names(base) == ["results.worker-0.h5.unfinished"]


@pytest.mark.parametrize("name", ["", "folder", "folder/"])
def test_a_base_that_is_a_folder_is_refused_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(PartError, match="is a folder: name a file in it"):
        TaskFile(name)
    assert os.listdir(tmp_path) == ["folder"] and not os.listdir(tmp_path / "folder")


def in_threads(*calls):
    """Run these at once, with switches between threads as often as can be; raise what one raises."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
            for done in [threads.submit(call) for call in calls]:
                done.result()
    finally:
        sys.setswitchinterval(interval)


def test_threads_that_append_to_one_part_lose_no_row(base):
    with TaskFile(base, task="worker-0") as file:
        in_threads(*(lambda k=k: [file.append("x", [1000 * k + n]) for n in range(300)] for k in range(3)))
        assert len(file["x"]) == 900
    with TaskFile(base, "r", task="worker-0") as read:
        assert sorted(read["x"][:]) == sorted(1000 * k + n for k in range(3) for n in range(300))


def test_what_a_thread_writes_while_another_one_flushes_is_in_the_file(base):
    rows, is_over = np.arange(1, 1501), threading.Event()

    def write():
        try:
            data = file.create_dataset("x", (len(rows), 2000), "f8", chunks=(1, 2000))
            for n in rows:
                data[n - 1] = n
        finally:
            is_over.set()

    def flush():
        while not is_over.is_set():
            file.flush()

    with TaskFile(base, task="worker-0") as file:
        in_threads(write, flush, flush, flush)
    with TaskFile(base, "r", task="worker-0") as read:
        assert (read["x"][:] == rows[:, None]).all()


def test_a_part_that_two_threads_close_at_once_is_closed_once(base):
    for _ in range(20):
        file = TaskFile(base, task="worker-0")
        file.append("x", [1])
        in_threads(file.close, file.close, file.close)
        assert names(base) == ["results.worker-0.h5"]
