"""The locks of HDF5, and the guard of `h5py.File`, with real processes."""

import h5py
import pytest
from hdf5_processes import other

from tfmagic.hdf5 import FileInUseError, guard

HOLD = "f = h5py.File(sys.argv[1], sys.argv[2], **eval(sys.argv[3])); say('open'); wait()"
NO_LOCKS = "{'locking': False}"


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = [1, 2, 3]
    return tmp_path / "x.h5"


# ---- HDF5 without the guard ---------------------------------------------------------------------------


def test_two_readers_are_fine_and_a_writer_beside_them_is_not(path):
    with other(HOLD, path, "r", "{}") as reader:
        reader.hear()
        with h5py.File(path) as file:
            assert len(file["x"]) == 3
        with pytest.raises(BlockingIOError, match="unable to lock file"):
            h5py.File(path, "r+")


def test_mode_w_empties_a_file_that_another_process_writes_although_it_fails(path):
    with other(HOLD, path, "r+", "{}") as writer:
        writer.hear()
        with pytest.raises(BlockingIOError):
            h5py.File(path, "w")
        assert path.stat().st_size == 0
    with pytest.raises(OSError, match="signature not found"):
        h5py.File(path)


def test_without_locks_two_writers_lose_data_sets_without_an_error(tmp_path):
    program = (
        "f = h5py.File(sys.argv[1], 'a', locking=False); say('open')\n"
        "for i in range(20): wait(); f[f'{sys.argv[2]}{i}'] = [i]; f.flush(); say(i)\n"
        "f.close()"
    )
    h5py.File(tmp_path / "y.h5", "w").close()
    with other(program, tmp_path / "y.h5", "a") as one, other(program, tmp_path / "y.h5", "b") as two:
        one.hear(), two.hear()
        for _ in range(20):
            for writer in (one, two):
                writer.go()
                writer.hear()
        assert (one.process.wait(10), two.process.wait(10)) == (0, 0)
    try:
        with h5py.File(tmp_path / "y.h5") as file:
            assert len(list(file)) < 40
    except (OSError, RuntimeError):
        pass  # or all of them


# ---- the guard ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["{}", NO_LOCKS], ids=["locks", "no locks"])
@pytest.mark.parametrize("mode", ["w", "a", "r+"])
def test_a_second_writer_gets_an_error_and_the_file_stays_whole(path, mode, options):
    with other("guard()\n" + HOLD, path, "r+", options) as writer, guard():
        writer.hear()
        with pytest.raises(FileInUseError) as caught:
            h5py.File(path, mode, **eval(options))
        said = str(caught.value)
        assert f"x.h5 is open for writing by a process 'python' (pid {writer.process.pid})" in said
        assert (
            "TaskFile('x.h5')" in said
            and "SharedWriter('x.h5')" in said
            and "nothing in it was changed" in said
        )
        writer.kill()
        with h5py.File(path, "r+") as file:  # the claim went with its holder
            assert len(file["x"]) == 3


def test_the_guard_also_sees_a_writer_and_a_reader_that_have_none(path):
    for mode, words in (("r+", "open for writing by"), ("r", "is being read by")):
        with other(HOLD, path, mode, "{}") as holder, guard():
            holder.hear()
            with pytest.raises(FileInUseError, match=words):
                h5py.File(path, "w")
    with h5py.File(path) as file:
        assert len(file["x"]) == 3


def test_a_reader_beside_a_writer_is_told_to_wait_or_to_use_swmr(path):
    with other(HOLD, path, "r+", "{}") as writer, guard():
        writer.hear()
        with pytest.raises(BlockingIOError, match="swmr_mode = True"):
            h5py.File(path)


def test_a_reader_of_swmr_reads_beside_its_writer_and_a_second_writer_does_not_come(tmp_path):
    program = (
        "guard(); f = h5py.File(sys.argv[1], 'w', libver='latest')\n"
        "f.create_dataset('x', data=[1.0], maxshape=(None,)); f.swmr_mode = True; say('open'); wait()"
    )
    with other(program, tmp_path / "s.h5") as writer, guard():
        writer.hear()
        with h5py.File(tmp_path / "s.h5", swmr=True) as file:
            assert file["x"][0] == 1
        with pytest.raises(FileInUseError):
            h5py.File(tmp_path / "s.h5", "r+")


def test_what_was_fine_stays_fine(path, tmp_path):
    with guard():
        with h5py.File(path) as one, h5py.File(path) as two:
            assert len(one["x"]) == len(two["x"])
        with h5py.File(path, "r+") as file, h5py.File(path, "r+") as again:
            assert len(file["x"]) == len(again["x"])
            with pytest.raises(OSError, match="already open") as caught:
                h5py.File(path, "w")
            assert not isinstance(caught.value, FileInUseError)
        with pytest.raises(FileNotFoundError):
            h5py.File(tmp_path / "none.h5")
        with pytest.raises(FileExistsError):
            h5py.File(path, "x")
        with h5py.File("memory", "w", driver="core", backing_store=False) as file:
            file["x"] = [1]
        for mode in ("w", "a", "r+", "r"):
            with h5py.File(str(path).encode(), mode) as file:
                assert file.id.valid


def test_of_two_that_open_a_new_file_at_once_one_gets_it(tmp_path):
    program = (
        "guard(); wait()\n"
        "try: f = h5py.File(sys.argv[1], 'w'); say('open')\n"
        "except FileInUseError: say('in use')\n"
        "wait()"
    )
    with other(program, tmp_path / "n.h5") as one, other(program, tmp_path / "n.h5") as two:
        one.go(), two.go()
        assert sorted([one.hear(), two.hear()]) == ["in use", "open"]


def test_the_guard_goes_when_its_block_ends(path):
    with guard():
        pass
    with other(HOLD, path, "r", "{}") as reader:
        reader.hear()
        with pytest.raises(BlockingIOError) as caught:
            h5py.File(path, "r+")
        assert not isinstance(caught.value, FileInUseError)
