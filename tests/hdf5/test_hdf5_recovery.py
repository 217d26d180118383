"""The parts of killed tasks come back; parts that are gone are found."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
from hdf5_processes import other

from tfmagic.hdf5 import (
    PartError,
    TaskFile,
    consolidate,
    recover,
)


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "results.h5")


def names(base):
    return sorted(os.listdir(os.path.dirname(base)))


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
