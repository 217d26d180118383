"""What a restart restores from a log folder, and what it leaves there."""

import fcntl
import os

import pytest
from test_logdir import _tensorflow, cut, restored, saves, small_files, variable  # noqa: F401 - fixtures

from tfmagic import logdir
from tfmagic.logdir import checks, owners


def test_training_begins_anew_without_a_complete_checkpoint(tmp_path):
    with saves(tmp_path) as kept:
        kept.save(3)
    cut(tmp_path / "ckpt-3.data-00000-of-00001")
    with saves(tmp_path, variable(7.0)) as kept:
        assert kept.restore_or_initialize() is None
        assert kept.save(1) == 1 and kept.steps == [1]
    assert restored(tmp_path) == (1, 7.0)


def test_the_error_of_a_full_disk_comes_without_names_of_tensorflows_functions(tmp_path, small_files):  # noqa: F811
    kept = saves(tmp_path)
    small_files()
    with kept, pytest.raises(logdir.LogdirError, match=r"could not be written to [^ ]*: /[^ ]*/ckpt-1_temp/"):
        kept.save()


@pytest.mark.parametrize("is_alive", [False, True])
def test_the_owner_file_of_another_user_counts_while_he_lives(tmp_path, monkeypatch, is_alive):
    """In a folder that several users may write to, it is forbidden to open another user's file for writing."""
    path, os_open = tmp_path / owners.NAME, os.open
    path.write_text('{"task": "theirs", "pid": 7, "host": "here"}')

    def open_as_another(name, flags, *mode, **more):
        if (
            flags & os.O_RDWR
            and str(name) == str(path)
            and path.exists()
            and path.samefile(f"/proc/self/fd/{fd}")
        ):
            raise PermissionError(13, "Permission denied")
        return os_open(name, flags, *mode, **more)

    fd = os_open(path, os.O_RDONLY)
    if is_alive:
        fcntl.flock(fd, fcntl.LOCK_EX)
    monkeypatch.setattr(os, "open", open_as_another)
    try:
        if is_alive:
            with pytest.raises(logdir.LogdirError, match=r"is being written by theirs \(pid 7 on here\)"):
                owners.hold(str(tmp_path), owners)
        else:
            owners.hold(str(tmp_path), owners)
            assert f'"pid": {os.getpid()}' in path.read_text()
            owners.release(str(tmp_path), owners)
            assert not path.exists()
    finally:
        os.close(fd)


@pytest.mark.parametrize("package", ["tensorflow", "keras"])
def test_a_variable_of_a_strategy_is_a_step(tmp_path, package):
    """The iterations of an optimizer are one, under a MultiWorkerMirroredStrategy and others."""
    import keras
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        step = (
            tf.Variable(7) if package == "tensorflow" else keras.Variable(7, dtype="int64", trainable=False)
        )
    with saves(tmp_path) as kept:
        assert kept.save(step) == 7
        with pytest.raises(ValueError, match="a step is a whole number"):
            kept.save(float("inf"))


@pytest.mark.parametrize("moment", ["damage_of", "unbuilt_layers"])
@pytest.mark.parametrize("times", [1, 1000])
def test_a_checkpoint_that_its_writer_deletes_during_the_read_gives_way_to_the_next(
    tmp_path, monkeypatch, capfd, moment, times
):
    """An evaluator meets it beside a chief that keeps one checkpoint."""
    v, mine, looks = variable(1.0), variable(), []
    writer = saves(tmp_path, v, max_to_keep=1)
    writer.save(1)
    look = getattr(checks, moment)

    def delete_first(*args):
        if len(looks) < times:
            looks.append(1)
            v.assign_add([1.0] * 1000)
            with monkeypatch.context() as undone:
                undone.setattr(checks, moment, look)
                writer.save()
        return look(*args)

    monkeypatch.setattr(checks, moment, delete_first)
    with writer:
        reader = saves(tmp_path, mine)
        if times == 1:
            assert reader.restore_or_initialize() == 2 == float(mine[0])
        else:
            with pytest.raises(logdir.CheckpointError, match=r"deleted before they are read.*max_to_keep"):
                reader.restore_or_initialize()
    assert "passed over" not in capfd.readouterr().err
