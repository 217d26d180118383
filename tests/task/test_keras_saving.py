"""Keras models that two tasks save to one path, and back up into one folder."""

import os
from pathlib import Path

import pytest
from conftest import wait_until

import tfmagic
from tfmagic.logdir import LogdirError


def save_all(folder, rounds):
    """Save from every task to the same paths at the same moment; return the errors, by kind."""
    import keras

    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(64)])
    errors = []
    for i in range(rounds):
        for name in (f"m{i}.keras", f"m{i}.h5", f"m{i}.weights.h5"):
            tfmagic.barrier()
            try:
                (model.save_weights if "weights" in name else model.save)(f"{folder}/{name}")
            except OSError as error:
                errors.append(f"{type(error).__name__} {name.partition('.')[2]}")
    return errors


def broken(folder):
    """Return the names of the models that cannot be read. For a task: the tests import no Keras."""
    import keras

    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(64)])
    found = []
    for path in sorted(Path(folder).iterdir()):
        try:
            model.load_weights(path) if ".weights." in path.name else keras.models.load_model(path)
        except Exception as error:
            found.append(f"{path.name}: {type(error).__name__}")
    return found


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.soak)])
def test_files_that_all_tasks_save_are_whole(tmp_path, rounds):
    target = tmp_path / "elsewhere"
    target.mkdir()
    folder = tmp_path / "models"
    folder.symlink_to(target)
    (target / "m0.keras").touch(mode=0o640)
    with tfmagic.Cluster(workers=2) as cluster:
        assert set(map(tuple, cluster.run(save_all, str(folder), rounds, view="quiet").values())) == {()}
        assert cluster.run(broken, str(folder), on="worker-0", view="quiet") == {"worker-0": []}
    assert len(os.listdir(target)) == 3 * rounds, "and nothing beside them"
    assert (target / "m0.keras").stat().st_mode & 0o777 == 0o640


def test_tasks_that_save_one_file_at_the_same_moment_get_one_notice(tmp_path):
    def save(folder):
        import keras

        me, path = tfmagic.current_task().index, Path()

        class Meeting(keras.layers.Dense):
            def save_own_variables(self, store):
                tfmagic.barrier()
                wait_until(lambda: me == 0 or path.exists(), 60)
                super().save_own_variables(store)

        model = keras.Sequential([keras.layers.Input((4,)), Meeting(2)])
        for path in (Path(folder, "first.keras"), Path(folder, "second.weights.h5")):
            (model.save_weights if ".weights." in path.name else model.save)(path)

    with tfmagic.Cluster(workers=2) as cluster:
        cluster.run(save, str(tmp_path))
        said = cluster.logs()
    assert "several tasks save" not in str(said["worker-0"])
    assert str(said["worker-1"]).count("several tasks save first.keras at the same moment") == 1
    assert "second" not in str(said["worker-1"])


@pytest.mark.parametrize("fix", [True, False])
def test_no_keras_fix_leaves_saving_as_it_is(fix):
    def repaired():
        from keras.callbacks import BackupAndRestore
        from keras.src.legacy.saving import legacy_h5_format
        from keras.src.saving import saving_lib
        from keras.src.utils import file_utils

        names = ("on_train_begin", "_save_model", "on_train_end")
        functions = [getattr(BackupAndRestore, name) for name in names]
        functions += [saving_lib.save_model, saving_lib.save_weights_only, file_utils.makedirs]
        return {hasattr(f, "__wrapped__") for f in (*functions, legacy_h5_format.save_model_to_hdf5)}

    with tfmagic.Cluster(workers=1, keras_fix=fix) as cluster:
        assert cluster.run(repaired) == {"worker-0": {fix}}


def test_a_save_that_fails_or_was_killed_leaves_nothing(tmp_path):
    def fail(folder):
        import keras

        class Broken(keras.layers.Dense):
            def save_own_variables(self, store):
                raise ValueError("no")

        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
        model.save(f"{folder}/m.keras")
        before = Path(folder, "m.keras").read_bytes()
        bad = keras.Sequential([keras.layers.Input((4,)), Broken(2)])
        try:
            bad.save(f"{folder}/m.keras")
        except ValueError:
            return Path(folder, "m.keras").read_bytes() == before
        return False

    def die(folder):
        import keras

        class Deadly(keras.layers.Dense):
            def save_own_variables(self, store):
                os._exit(9)

        keras.Sequential([keras.layers.Input((4,)), Deadly(2)]).save(f"{folder}/m.keras")

    with tfmagic.Cluster(workers=1) as cluster:
        assert cluster.run(fail, str(tmp_path)) == {"worker-0": True}
        assert os.listdir(tmp_path) == ["m.keras"]
        with pytest.raises(tfmagic.TaskDied):
            cluster.run(die, str(tmp_path))
        assert len(os.listdir(tmp_path)) == 2
        cluster.revive()
        assert cluster.run(fail, str(tmp_path)) == {"worker-0": True}
    assert os.listdir(tmp_path) == ["m.keras"]


def train(folder, epochs, fails_at, **options):
    """Fit with a backup; return the epochs that ran, and a weight."""
    import keras
    import numpy as np
    import tensorflow as tf

    ran = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            ran.append(epoch)
            if epoch == fails_at:
                raise RuntimeError("preempted")

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
    rows = np.arange(32.0, dtype="float32").reshape(8, 4)
    data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(4)
    backup = keras.callbacks.BackupAndRestore(folder, **options)
    error = ""
    try:
        model.fit(data, epochs=epochs, callbacks=[backup, Watch()], verbose=0)
    except RuntimeError as raised:
        error = str(raised)
    return ran, error, model.optimizer.iterations.numpy()


def test_a_backup_of_a_strategy_is_the_chiefs_and_all_restore_it(tmp_path):
    folder = tmp_path / "backup"
    with tfmagic.Cluster(workers=2) as cluster:
        first = cluster.run(train, str(folder), 5, 3)
        assert {tuple(ran) for ran, _, _ in first.values()} == {(0, 1, 2, 3)}
        assert {error for _, error, _ in first.values()} == {"preempted"}
        kept = {name for name in os.listdir(folder) if not name.startswith(".")}
        assert kept == {"latest.weights.h5", "training_metadata.json"}
        again = cluster.run(train, str(folder), 5, None)
        assert {tuple(ran) for ran, _, _ in again.values()} == {(3, 4)}
        steps = {int(count) for _, _, count in again.values()}
        assert len(steps) == 1 and steps.pop() * 3 == 5 * int(first["worker-0"][2]), "restored everywhere"
        assert not folder.exists(), "deleted at the end of the training"
        said = str(cluster.logs())
        assert said.count("the chief writes") == 2
        kept_for_good = cluster.run(train, str(folder), 2, None, delete_checkpoint=False)
        assert {tuple(ran) for ran, _, _ in kept_for_good.values()} == {(0, 1)}
        assert sorted(os.listdir(folder)) == ["latest.weights.h5", "training_metadata.json"]


def test_models_of_their_own_need_folders_of_their_own(tmp_path):
    folder, began, tried = tmp_path / "backup", tmp_path / "began", tmp_path / "tried"

    def fn():
        import keras
        import numpy as np

        class Meet(keras.callbacks.Callback):
            def on_train_begin(self, logs=None):
                began.touch()
                wait_until(tried.exists, 60)

        me = tfmagic.current_task()
        if me.index == 1:
            wait_until(began.exists, 60)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        backup = keras.callbacks.BackupAndRestore(str(folder))
        try:
            model.fit(np.ones((8, 4)), np.ones((8, 1)), epochs=2, callbacks=[backup, Meet()], verbose=0)
        finally:
            tried.touch()

    with tfmagic.Cluster(workers=2) as cluster:
        with pytest.raises(LogdirError, match=r"written by worker-0 .* a folder of its own") as caught:
            cluster.run(fn, keep_going=True)
        assert f'BackupAndRestore(f"{folder}/{{tfmagic.current_task().name}}")' in "".join(
            caught.value.__notes__
        )
        assert set(caught.value.failures) == {"worker-1"} and not folder.exists()
        cluster.run(fn, on="worker-1")  # worker-0 writes it no longer
        assert not folder.exists()
