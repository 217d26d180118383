import os

import pytest

from tfmagic.system import files


def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "status.json"
    files.replace_text(path, "old")
    with pytest.raises(ZeroDivisionError), files.replacing(path, str(tmp_path / "beside")) as beside:
        with open(beside, "w") as file:
            file.write("half")
        _ = 1 / 0
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["status.json"]


def test_a_replaced_file_has_the_mode_that_was_asked_for(tmp_path):
    files.replace_text(tmp_path / "private", "text", 0o600)
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def test_what_is_appended_stands_at_the_end_whatever_characters_it_has(tmp_path):
    files.append(tmp_path / "log", "one\n")
    files.append(tmp_path / "log", "tw\udc80o\n")
    assert (tmp_path / "log").read_text() == "one\ntw\\udc80o\n"


def test_a_lock_keeps_others_out_and_readers_share_theirs(tmp_path):
    (tmp_path / "file").touch()
    one, other = (os.open(tmp_path / "file", os.O_RDWR) for _ in range(2))
    try:
        assert files.try_lock(one, shared=True) and files.try_lock(other, shared=True)
        assert not files.try_lock(one)
        os.close(other)
        assert files.try_lock(one)
    finally:
        os.close(one)


def test_a_file_that_was_replaced_is_no_longer_that_of_the_descriptor(tmp_path):
    path = tmp_path / "file"
    path.touch()
    fd = os.open(path, os.O_RDWR)
    try:
        assert files.is_still_at(fd, path)
        files.replace_text(path, "new")
        assert not files.is_still_at(fd, path)
        path.unlink()
        assert not files.is_still_at(fd, path)
    finally:
        os.close(fd)
