"""Log folders without a cluster: what is written, what is refused, and what a damaged folder restores."""

import errno
import fcntl
import gc
import json
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit, setrlimit

import numpy as np
import pytest
from conftest import wait_until

from tfmagic import logdir
from tfmagic.logdir.errors import LogdirError
from tfmagic.logdir.stores import checkpoint_files, missing_files
from tfmagic.protocol.task_context import TaskContext, acting_as
from tfmagic.system import files

SPEC = {"worker": ["localhost:1", "localhost:2"]}
WORKER_0 = TaskContext("worker", 0, SPEC, True)
WORKER_1 = TaskContext("worker", 1, SPEC, False)


@pytest.fixture(autouse=True, scope="module")
def _tensorflow():
    """Import TensorFlow, which sets environment variables, before the guard against leaks reads them."""
    import tensorflow as tf

    _ = tf.keras.Model


def variable(value=0.0):
    import tensorflow as tf

    return tf.Variable([value] * 1000)


def saves(base, item=None, **options):
    return logdir.checkpoints(variable() if item is None else item, base, **options)


def three(base, **options):
    """Save checkpoints 1, 2, 3 that hold their number, and close the folder."""
    v = variable()
    with saves(base, v, **options) as kept:
        for step in (1, 2, 3):
            v.assign([float(step)] * 1000)
            kept.save(step)


def restored(base):
    """Return the step and the value from which a new process of the run starts."""
    v = variable()
    return logdir.checkpoints(v, base).restore_or_initialize(), float(v[0])


# ---- places -------------------------------------------------------------------------------------


def test_importing_it_loads_nothing_heavy():
    code = "import sys, tfmagic; tfmagic.logdir.checkpoints; print({'tensorflow', 'fsspec', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_outside_a_cluster_it_is_the_base_itself(tmp_path):
    with logdir.task_logdir(tmp_path / "new" / "run") as path:
        assert path == str(tmp_path / "new" / "run") and os.path.isdir(path)
    assert os.path.isdir(path)
    assert logdir.tensorboard_dir(tmp_path) == str(tmp_path)


def test_the_chief_gets_the_base_and_the_others_a_temporary_folder(tmp_path):
    with (
        logdir.task_logdir(tmp_path, task=WORKER_0) as kept,
        logdir.task_logdir(tmp_path, task=WORKER_1) as mine,
    ):
        assert kept == str(tmp_path) != mine
        assert mine == logdir.task_logdir(tmp_path, task=WORKER_1) and "workertemp_1" in mine
        assert os.path.isdir(mine)
    assert not os.path.exists(mine) and os.path.isdir(tmp_path)


@pytest.mark.parametrize(("type_", "is_base"), [("evaluator", True), ("ps", False)])
def test_the_evaluator_looks_at_the_base_and_a_ps_does_not(tmp_path, type_, is_base):
    with logdir.task_logdir(tmp_path, task=TaskContext(type_, 0, SPEC, False)) as path:
        assert (path == str(tmp_path)) is is_base


def test_each_task_has_a_tensorboard_folder(tmp_path):
    assert logdir.tensorboard_dir(tmp_path, task=WORKER_1) == str(tmp_path / "worker-1")


@pytest.mark.parametrize("make", [logdir.task_logdir, logdir.tensorboard_dir, saves])
@pytest.mark.parametrize("below", ["", "/deeper"])
def test_a_base_that_is_a_file_is_refused(tmp_path, make, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(logdir.LogdirError, match=r"file.* is a file"):
        make(f"{tmp_path}/file{below}")


@pytest.mark.parametrize("make", [logdir.task_logdir, logdir.tensorboard_dir, saves])
def test_a_base_that_cannot_be_written_is_refused_before_anything_starts(make):
    with pytest.raises(logdir.LogdirError, match=r"/sys/kernel/run cannot be written: .*Nothing was started"):
        make("/sys/kernel/run")


@pytest.mark.parametrize("bad", ["", b"bytes", 3, None])
def test_a_base_that_is_no_path_is_a_type_error(bad):
    with pytest.raises(TypeError):
        logdir.task_logdir(bad)


def test_a_folder_has_one_writer_at_a_time_also_after_kill_9(tmp_path):
    code = (
        "import sys, time; from tfmagic.logdir import owners; owners.hold(sys.argv[1], owners); print('held', flush=True); "
        "time.sleep(100)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(logdir.LogdirError, match=rf"being written by .*pid {other.pid}") as caught:
            saves(tmp_path).save(1)
        assert str(tmp_path) in str(caught.value)
        other.send_signal(signal.SIGKILL)
    wait_until(lambda: other.poll() is not None)
    with saves(tmp_path) as kept:
        assert kept.save(1) == 1


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_the_owner_file_is_no_way_to_empty_another_file(tmp_path, link):
    """Who can write to a log folder that several users share could put a link there."""
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    (tmp_path / "run").mkdir()
    link(victim, tmp_path / "run" / ".tfmagic-writer")
    if link is os.symlink:
        with pytest.raises(logdir.LogdirError, match=r"symbolic links. Delete that file, or name another"):
            saves(tmp_path / "run").save(1)
    else:
        saves(tmp_path / "run").save(1)
    assert victim.read_text() == "as it was"


def test_a_file_system_without_locks_is_said_once(tmp_path, monkeypatch, capfd):
    def refuse(fd, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(files, "_said_on", set())
    for name in ("a", "b"):
        with saves(tmp_path / name) as kept:
            kept.save(1)
    said = capfd.readouterr().err
    assert said.count("has no locks (No locks available)") == 1 and str(tmp_path / "a") in said


@pytest.mark.parametrize("kind", [logdir.LogdirError, logdir.CheckpointError, logdir.DriverError])
def test_the_errors_travel(kind):
    assert str(pickle.loads(pickle.dumps(kind("words")))) == "words"


# ---- checkpoints --------------------------------------------------------------------------------


def test_the_newest_is_restored_and_the_oldest_go(tmp_path):
    three(tmp_path, max_to_keep=2)
    assert restored(tmp_path) == (3, 3.0)
    assert saves(tmp_path).steps == [2, 3]
    import tensorflow as tf

    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-3") == saves(tmp_path).latest


def test_an_empty_folder_restores_nothing(tmp_path):
    assert restored(tmp_path) == (None, 0.0)
    with pytest.raises(logdir.CheckpointError, match="no complete checkpoint in"):
        saves(tmp_path).restore()


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


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


@pytest.fixture
def small_files():
    """Limit files to 2000 bytes, as a full disk does."""
    before = getrlimit(RLIMIT_FSIZE)

    def limit(on=True):
        setrlimit(RLIMIT_FSIZE, (2000 if on else RLIM_INFINITY, before[1]))

    yield limit
    setrlimit(RLIMIT_FSIZE, before)


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


@pytest.mark.parametrize("bad", [3, "x", None, b"", {"a": 1}, {}, {1: 2}, object(), len])
def test_an_object_that_cannot_be_saved_is_a_type_error(tmp_path, bad):
    with pytest.raises(TypeError, match=r"checkpoints\(\) takes"):
        logdir.checkpoints(bad, tmp_path)


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


def test_a_model_with_a_call_of_its_own_is_restored_when_it_is_built_and_refused_before(tmp_path):
    import keras
    import numpy as np

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras.layers.Dense(1, name="inner")
            self.drop = keras.layers.Dropout(0.1)  # has no variables, built or not

        def call(self, x):
            return self.drop(self.inner(x))

    def make():
        model = Own()
        model.compile("adam", "mse")
        return model

    data = np.ones([8, 2])
    first, second = make(), make()
    first.fit(data, data[:, :1], verbose=0)
    with saves(tmp_path, first) as kept:
        kept.save(1)
    told = "has variables for inner, which have none yet.*Build the model"
    with pytest.raises(logdir.CheckpointError, match=told):
        logdir.checkpoints(second, tmp_path).restore_or_initialize()
    second(data)
    assert logdir.checkpoints(second, tmp_path).restore() == 1
    np.testing.assert_array_equal(first.get_weights()[0], second.get_weights()[0])


def test_a_sequential_model_may_be_built_after_it_was_restored(tmp_path):
    import keras
    import numpy as np

    first, second = (keras.Sequential([keras.layers.Dense(1)]) for _ in range(2))
    first(np.ones([8, 2]))
    with saves(tmp_path, first) as kept:
        kept.save(1)
    assert logdir.checkpoints(second, tmp_path).restore() == 1
    second(np.ones([8, 2]))
    np.testing.assert_array_equal(first.get_weights()[0], second.get_weights()[0])


def test_a_checkpoint_of_another_shape_is_named(tmp_path):
    import tensorflow as tf

    with saves(tmp_path, {"v": tf.Variable([1.0, 2.0])}) as kept:
        kept.save(1)
    with pytest.raises(logdir.CheckpointError, match=r"ckpt-1 is a checkpoint of something else: .*shape"):
        logdir.checkpoints({"v": tf.Variable(1.0)}, tmp_path).restore()


def test_a_step_is_a_whole_number_also_of_a_variable(tmp_path):
    import tensorflow as tf

    with saves(tmp_path, variable()) as kept:
        assert kept.save(tf.Variable(3, dtype=tf.int64)) == 3 and kept.save(tf.constant(4)) == 4
        for bad in (9.5, "x", -1):
            with pytest.raises(ValueError, match="a step is a whole number of 0 or more, not"):
                kept.save(bad)
        assert kept.steps == [3, 4]


@pytest.mark.parametrize("make", [logdir.task_logdir, logdir.tensorboard_dir])
def test_a_url_that_lost_a_slash_makes_no_folder(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LogdirError, match=r"give the URL as a str \(s3://bucket/run\)"):
        make(Path("s3://bucket/run"))
    with pytest.raises(LogdirError, match="without one of its slashes"):
        logdir.checkpoints(variable(), "s3:/bucket", task=WORKER_1)
    assert os.listdir(tmp_path) == []
    assert make("./s3:/bucket").startswith(str(tmp_path / "s3:"))


def test_a_file_url_is_a_local_folder_also_as_a_path(tmp_path):
    for base in (f"file://{tmp_path}/run", Path(f"file://{tmp_path}/run")):
        assert logdir.task_logdir(base) == logdir.tensorboard_dir(base) == str(tmp_path / "run")


def test_a_number_of_numpy_is_a_number_of_checkpoints(tmp_path):
    v = variable()
    with logdir.checkpoints(v, tmp_path, np.int64(1)) as kept:
        kept.save()
        kept.save()
        assert kept.steps == [2]


def test_a_tilde_is_the_home_and_no_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert logdir.task_logdir("~/run") == str(tmp_path / "home" / "run")
    assert logdir.checkpoints(variable(), "~/run", task=WORKER_1).save() == 1
    assert os.listdir(tmp_path) == ["home"]


def test_a_task_that_does_not_keep_leaves_nothing(tmp_path):
    with acting_as(WORKER_1, lambda timeout: 0):
        kept = saves(tmp_path / "base")
        assert kept.save() == 1
        assert not (tmp_path / "base").exists() and kept.latest is None


def test_names_of_files_show_what_is_missing():
    files = checkpoint_files(
        ["ckpt-1.index", "ckpt-1.data-00001-of-00002", "ckpt-2.data-00000-of-00001", "other"]
    )
    assert {step: bool(missing_files(names)) for step, names in files.items()} == {1: True, 2: True}
    assert missing_files(["ckpt-3.index"]) and not missing_files(
        ["ckpt-3.data-00000-of-00001", "ckpt-3.index"]
    )


def test_the_owner_file_goes_with_its_owner(tmp_path):
    with saves(tmp_path) as kept:
        kept.save()
        assert json.loads((tmp_path / ".tfmagic-writer").read_text())["pid"] == os.getpid()
    assert not (tmp_path / ".tfmagic-writer").exists()


def test_a_cell_that_ran_twice_lets_go_of_the_folder_with_one_close(tmp_path):
    """The object of the first run is garbage, and can no longer be closed."""
    take = "import sys; from tfmagic.logdir import owners; owners.hold(sys.argv[1], owners)"
    command = [sys.executable, "-c", take, str(tmp_path)]

    def checkpoints():
        made = saves(tmp_path)
        made.save()
        return made

    for make in (checkpoints, lambda: logdir.task_logdir(tmp_path, task=WORKER_0)):
        kept = make()
        kept = make()
        gc.collect()
        assert subprocess.run(command, capture_output=True).returncode == 1
        kept.close()
        subprocess.run(command, check=True)


# ---- files of other programs --------------------------------------------------------------------


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
