"""Checkpoints in a local folder: what is kept, what a damaged folder restores, what a restart finds."""

# ruff: noqa: F401, F811 - fixtures are imported by name
import os
import re

import numpy as np
import pytest
from log_folders import WORKER_1, _tensorflow, cut, restored, saves, small_files, three, variable

from tfmagic import logdir
from tfmagic.logdir import checks
from tfmagic.logdir.stores import checkpoint_files
from tfmagic.protocol.task_context import acting_as


def test_the_newest_is_restored_and_the_oldest_go(tmp_path):
    three(tmp_path, max_to_keep=2)
    assert restored(tmp_path) == (3, 3.0)
    assert saves(tmp_path).steps == [2, 3]
    import tensorflow as tf

    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-3") == saves(tmp_path).latest


def test_a_checkpoint_is_on_the_disk_before_the_last_one_that_is_there_is_deleted(tmp_path, synced):
    """The oldest of those that are kept: it is there soonest, as the system writes by itself."""
    with saves(tmp_path, max_to_keep=2) as kept:
        kept.save()
        kept.save()
        assert synced == []
        kept.save()
    files = checkpoint_files(os.listdir(tmp_path))
    assert {os.stat(tmp_path / name).st_ino for name in (*files[2], ".")} < {*synced}


def test_an_empty_folder_restores_nothing(tmp_path):
    assert restored(tmp_path) == (None, 0.0)
    with pytest.raises(logdir.CheckpointError, match="no complete checkpoint in"):
        saves(tmp_path).restore()


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["ckpt-3.index", "ckpt-3.data-00000-of-00001"])
@pytest.mark.parametrize(
    "damage", [cut, flip, os.unlink, lambda p: p.write_bytes(b""), lambda p: p.write_bytes(os.urandom(300))]
)
def test_a_damaged_checkpoint_is_skipped_and_named(tmp_path, capfd, name, damage):
    three(tmp_path)
    damage(tmp_path / name)
    assert restored(tmp_path) == (2, 2.0)
    assert re.search(
        r"tfmagic: checkpoint 3 in .* is passed over: it (is damaged|has no|lacks)", capfd.readouterr().err
    )


def test_training_goes_on_below_a_damaged_checkpoint_and_keeps_the_complete_ones(tmp_path, capfd):
    three(tmp_path, max_to_keep=1)
    v = variable(9.0)
    with saves(tmp_path, v) as kept:
        kept.save(4)
    cut(tmp_path / "ckpt-4.data-00000-of-00001")
    with saves(tmp_path, v, max_to_keep=1) as kept:
        assert kept.restore() == 3
        kept.save()
    assert restored(tmp_path) == (4, 3.0)
    assert saves(tmp_path).steps == [4]
    assert "checkpoint 4" in capfd.readouterr().err


def test_a_damaged_checkpoint_does_not_count_among_those_that_are_kept(tmp_path):
    three(tmp_path)
    cut(tmp_path / "ckpt-3.data-00000-of-00001")
    (tmp_path / "ckpt-1.index").unlink()
    with saves(tmp_path, max_to_keep=2) as kept:
        assert kept.restore() == 2
        kept.save(5)
        assert kept.steps == [2, 5]
    assert {name[:6] for name in os.listdir(tmp_path) if name[0] == "c"} == {"checkp", "ckpt-2", "ckpt-5"}


def test_a_damaged_checkpoint_that_was_repaired_is_kept(tmp_path):
    three(tmp_path)
    data = tmp_path / "ckpt-3.data-00000-of-00001"
    content = data.read_bytes()
    cut(data)
    with saves(tmp_path) as kept:
        assert kept.restore() == 2
        data.write_bytes(content)
        assert kept.restore() == 3
        kept.save()
        assert kept.steps == [1, 2, 3, 4]


STATES = {
    "gone": None,
    "of a deleted one": 'model_checkpoint_path: "ckpt-9"\nall_model_checkpoint_paths: "ckpt-9"\n',
    "of another machine": 'model_checkpoint_path: "/mnt/their/ckpt-3"\nall_model_checkpoint_paths: "/mnt/their/ckpt-3"\n',
    "garbage": "\x00\xff",
    "empty": "",
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_the_content_of_the_state_file_does_not_matter(tmp_path, state):
    three(tmp_path)
    (tmp_path / "checkpoint").unlink()
    if state is not None:
        (tmp_path / "checkpoint").write_text(state)
    assert restored(tmp_path) == (3, 3.0)


def test_tensorflow_alone_trusts_the_state_file(tmp_path):
    """It restores nothing, or raises, although three complete checkpoints are there."""
    import tensorflow as tf

    three(tmp_path)
    (tmp_path / "checkpoint").write_text(STATES["of another machine"])
    assert tf.train.latest_checkpoint(tmp_path) is None
    three(tmp_path / "b")
    cut(tmp_path / "b" / "ckpt-3.data-00000-of-00001")
    with pytest.raises(IndexError, match="Read less bytes"):
        tf.train.Checkpoint(model=variable()).restore(tf.train.latest_checkpoint(tmp_path / "b"))


def test_a_save_that_was_killed_leaves_nothing_for_long(tmp_path):
    three(tmp_path)
    (tmp_path / ".tfmagic-writer").write_text("{}")  # which the end of its process did not delete
    (tmp_path / "ckpt-4_temp").mkdir()
    (tmp_path / "ckpt-4_temp" / "part-00000-of-00001.data-00000-of-00001").write_bytes(b"half")
    (tmp_path / "ckpt-4.data-00000-of-00001").write_bytes(b"half")
    assert restored(tmp_path)[0] == 3
    with saves(tmp_path) as kept:
        kept.restore()
        kept.save(5)
    assert {name for name in os.listdir(tmp_path) if "ckpt-4" in name} == set()


def test_a_full_disk_costs_only_the_checkpoint_that_was_being_saved(tmp_path, small_files):
    three(tmp_path)
    kept = saves(tmp_path)
    small_files()
    with (
        kept,
        pytest.raises(logdir.LogdirError, match=r"checkpoint 4 could not be written.*still that of step 3"),
    ):
        kept.save(4)
    small_files(False)
    assert not [name for name in os.listdir(tmp_path) if "ckpt-4" in name]
    assert restored(tmp_path) == (3, 3.0)


def test_a_full_disk_does_not_cost_the_checkpoint_that_is_saved_again(tmp_path, small_files):
    three(tmp_path)
    kept = saves(tmp_path)
    small_files()
    with kept, pytest.raises(logdir.LogdirError, match="still that of step 3"):
        kept.save(3)
    small_files(False)
    assert restored(tmp_path) == (3, 3.0)


def test_a_run_that_begins_anew_in_an_old_folder_is_refused(tmp_path):
    three(tmp_path)
    kept = saves(tmp_path)
    with (
        kept,
        pytest.raises(
            logdir.CheckpointError, match="of step 3, which a restart would take instead of step 1"
        ),
    ):
        kept.save(1)
    assert restored(tmp_path) == (3, 3.0)


@pytest.mark.parametrize("bad", [-1, 1.5, True, "3"])
def test_a_wrong_number_to_keep_is_refused(tmp_path, bad):
    with pytest.raises(ValueError, match="max_to_keep"):
        saves(tmp_path, max_to_keep=bad)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    import tensorflow as tf

    three(tmp_path)
    for other in ({"other": variable()}, tf.Variable(1.0)):
        with pytest.raises((logdir.CheckpointError, ValueError), match="something else|shape"):
            logdir.checkpoints(other, tmp_path).restore()


def test_a_model_that_has_no_variables_yet_is_refused(tmp_path):
    import keras

    kept = saves(tmp_path, keras.Sequential([keras.layers.Dense(1)]))
    with kept, pytest.raises(logdir.CheckpointError, match="no variables yet"):
        kept.save()
    assert saves(tmp_path).steps == []


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_models_come_back_with_their_optimizer(tmp_path, package):
    import importlib

    import numpy as np

    keras = importlib.import_module(package)

    def make():
        layers = [keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([2]), *layers])
        model.compile("adam", "mse")
        return model

    first, second = make(), make()
    data = np.random.default_rng(0).random([8, 2])
    first.fit(data, data[:, :1], verbose=0)
    with saves(tmp_path, first) as kept:
        kept.save(1)
    first.fit(data, data[:, :1], verbose=0)
    assert logdir.checkpoints(second, tmp_path).restore() == 1
    second.fit(data, data[:, :1], verbose=0)  # the second step is the same: also the moments came back
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_checkpoint_of_another_shape_is_named(tmp_path):
    import tensorflow as tf

    with saves(tmp_path, {"v": tf.Variable([1.0, 2.0])}) as kept:
        kept.save(1)
    with pytest.raises(logdir.CheckpointError, match=r"ckpt-1 is a checkpoint of something else: .*shape"):
        logdir.checkpoints({"v": tf.Variable(1.0)}, tmp_path).restore()


def test_a_number_of_numpy_is_a_number_of_checkpoints(tmp_path):
    v = variable()
    with logdir.checkpoints(v, tmp_path, np.int64(1)) as kept:
        kept.save()
        kept.save()
        assert kept.steps == [2]


def test_a_task_that_does_not_keep_leaves_nothing(tmp_path):
    with acting_as(WORKER_1, lambda timeout: 0):
        kept = saves(tmp_path / "base")
        assert kept.save() == 1
        assert not (tmp_path / "base").exists() and kept.latest is None


def test_a_checkpoint_that_another_program_saves_at_this_moment_is_left_alone(tmp_path):
    """A plain tf.train.CheckpointManager has the same names, and no lock: first the data, then the index."""
    three(tmp_path)
    (tmp_path / "ckpt-7.data-00000-of-00001").write_bytes(b"its index comes next")
    (tmp_path / "ckpt-8_temp").mkdir()
    with saves(tmp_path) as kept:
        kept.save(4)
    assert (tmp_path / "ckpt-7.data-00000-of-00001").exists() and (tmp_path / "ckpt-8_temp").exists()


def test_only_checkpoints_that_the_state_lists_are_deleted(tmp_path):
    import tensorflow as tf

    checkpoint = tf.train.Checkpoint(v=variable())
    checkpoint.write(tmp_path / "ckpt-1")  # kept on purpose: no manager knows of it
    manager = tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=None)
    for step in (2, 3):
        manager.save(step)
    with saves(tmp_path, max_to_keep=2) as kept:
        for step in (4, 5, 6):
            kept.save(step)
    with saves(tmp_path, max_to_keep=2) as kept:
        kept.save(7)
    assert sorted(checkpoint_files(os.listdir(tmp_path))) == [1, 6, 7]
    assert restored(tmp_path)[0] == 7


def test_training_begins_anew_without_a_complete_checkpoint(tmp_path):
    with saves(tmp_path) as kept:
        kept.save(3)
    cut(tmp_path / "ckpt-3.data-00000-of-00001")
    with saves(tmp_path, variable(7.0)) as kept:
        assert kept.restore_or_initialize() is None
        assert kept.save(1) == 1 and kept.steps == [1]
    assert restored(tmp_path) == (1, 7.0)


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
