"""What docs/keras-callbacks.md says of each callback, on two real workers.

Each `fit` costs about 2 s of CPU, and each epoch 1 s: Keras and TensorFlow make the iterators of all tasks again. So
callbacks that do not act on each other share a `fit`, and no test runs more epochs than it needs.
"""

import csv
import os

import pytest

import tfmagic

COMMON = ("loss", "mae", "val_loss", "val_mae")
MIN_DELTA = 0.5  # the fourth epoch or so gains less


@pytest.fixture(scope="module")
def cluster():
    with tfmagic.Cluster(workers=2) as started:
        yield started


def fitted(names, folder, epochs=6, under_strategy=True, only_chief=False, scale=1.0, stops=None):
    """Fit on this task with callbacks by name. Return what each task has seen."""
    import keras
    import numpy as np
    import tensorflow as tf

    task, (callbacks, seen) = tfmagic.current_task(), ([], [])
    os.chdir(folder)
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if under_strategy else tf.distribute.get_strategy()
    keras.utils.set_random_seed(3 if under_strategy else 3 + task.index)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    rows = np.random.default_rng(0)
    x = rows.normal(size=(96, 4)).astype("float32") * scale
    y = (x.sum(axis=1, keepdims=True) + rows.normal(size=(96, 1)) / 9).astype("float32")

    class Watch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen.append([epoch])

        def on_epoch_end(self, epoch, logs=None):
            seen[-1] += [logs, float(self.model.optimizer.learning_rate)]
            if stops == (task.name, epoch):
                self.model.stop_training = True
            if stops == (None, epoch):
                raise RuntimeError("preempted")

    made = {
        "EarlyStopping": lambda: keras.callbacks.EarlyStopping(
            monitor="val_loss", patience=1, min_delta=MIN_DELTA, restore_best_weights=True
        ),
        "ReduceLROnPlateau": lambda: keras.callbacks.ReduceLROnPlateau(
            monitor="val_loss", patience=1, min_delta=10.0, factor=0.5
        ),
        "LearningRateScheduler": lambda: keras.callbacks.LearningRateScheduler(lambda n: 0.1 / (n + 1)),
        "TerminateOnNaN": keras.callbacks.TerminateOnNaN,
        "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint(
            "best.keras", monitor="val_loss", save_best_only=True
        ),
        "BackupAndRestore": lambda: keras.callbacks.BackupAndRestore("backup"),
        "TensorBoard": lambda: keras.callbacks.TensorBoard("tb"),
        "TensorBoard of each": lambda: keras.callbacks.TensorBoard(tfmagic.logdir.tensorboard_dir("tb")),
        "CSVLogger": lambda: keras.callbacks.CSVLogger("epochs.csv"),
        "CSVLogger, append": lambda: keras.callbacks.CSVLogger("epochs.csv", append=True),
        "CSVLogger of each": lambda: keras.callbacks.CSVLogger(f"epochs-{task.name}.csv"),
    }
    if task.is_chief or not only_chief:
        callbacks = [made[name]() for name in names]
    error = ""
    try:
        history = model.fit(
            x,
            y,
            validation_split=0.25,
            batch_size=24,
            epochs=epochs,
            verbose=0,
            callbacks=[*callbacks, Watch()],
        ).history
    except RuntimeError as raised:
        error, history = str(raised), {}
    weights = [float(value) for part in model.get_weights() for value in part.ravel()]
    return {"seen": seen, "history": history, "weights": weights, "error": error}


def fit(cluster, folder, *names, **options):
    """Fit on both tasks; return what is equal on them. Raise if anything differs."""
    found = cluster.run(fitted, names, str(folder), view="quiet", **options)
    assert found["worker-0"] == found["worker-1"]
    return found["worker-0"]


def test_the_numbers_of_an_epoch_are_common(cluster, tmp_path):
    found = fit(cluster, tmp_path, epochs=2)
    assert [sorted(logs) for _, logs, _ in found["seen"]] == [sorted(COMMON)] * 2
    assert [logs["val_loss"] for _, logs, _ in found["seen"]] == found["history"]["val_loss"]
    alone = cluster.run(fitted, (), str(tmp_path), 2, under_strategy=False, view="quiet")
    assert alone["worker-0"]["history"] != alone["worker-1"]["history"]  # the test can see a difference


def test_all_stop_after_the_same_epoch_and_restore_the_same_weights(cluster, tmp_path):
    found = fit(cluster, tmp_path, "EarlyStopping", epochs=30)
    ran, losses = len(found["seen"]), found["history"]["val_loss"]
    assert 2 < ran < 30
    best = fit(cluster, tmp_path, epochs=ran - 1)  # the last epoch was the first without a gain
    assert losses[-1] > losses[-2] - MIN_DELTA and found["weights"] == pytest.approx(
        best["weights"], rel=1e-5
    )


def test_learning_rates_are_common(cluster, tmp_path):
    found = fit(cluster, tmp_path, "ReduceLROnPlateau", epochs=2)
    assert found["seen"][-1][2] < 0.05
    found = fit(cluster, tmp_path, "LearningRateScheduler", epochs=3)
    assert [rate for *_, rate in found["seen"]] == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_a_loss_that_is_no_number_ends_all(cluster, tmp_path):
    found = cluster.run(fitted, ("TerminateOnNaN",), str(tmp_path), 9, scale=1e25, view="quiet")
    assert {len(each["seen"]) for each in found.values()} == {1}


def loaded(path):
    import keras

    return [float(value) for part in keras.models.load_model(path).get_weights() for value in part.ravel()]


def test_the_best_model_is_one_whole_file(cluster, tmp_path):
    found = fit(cluster, tmp_path, "ModelCheckpoint", epochs=3)
    assert [path.name for path in tmp_path.iterdir()] == ["best.keras"]
    losses = found["history"]["val_loss"]
    assert losses == sorted(losses, reverse=True), "the last epoch is the best"
    read = cluster.run(loaded, str(tmp_path / "best.keras"), view="quiet")
    assert read["worker-0"] == read["worker-1"] == pytest.approx(found["weights"])


def test_all_go_on_from_the_backup_of_the_chief(cluster, tmp_path):
    first = fit(cluster, tmp_path, "BackupAndRestore", epochs=4, stops=(None, 1))
    assert first["error"] == "preempted" and (tmp_path / "backup").is_dir()
    again = fit(cluster, tmp_path, "BackupAndRestore", epochs=4)
    assert [epoch for epoch, *_ in first["seen"]] == [0, 1]
    assert [epoch for epoch, *_ in again["seen"]] == [2, 3]  # it failed after the backup of epoch 1
    assert not (tmp_path / "backup").exists()
    whole = fit(cluster, tmp_path, epochs=4)
    assert again["weights"] == pytest.approx(whole["weights"], rel=1e-4)


def event_files(folder):
    return sorted(str(path.parent.relative_to(folder)) for path in folder.rglob("events.out.tfevents.*"))


def epochs_in(path):
    with open(path, newline="") as file:
        return [row["epoch"] for row in csv.DictReader(file)]


def test_one_folder_or_table_of_all_tasks_has_what_each_of_them_writes(cluster, tmp_path):
    fit(cluster, tmp_path, "TensorBoard", "CSVLogger, append", epochs=2)
    assert event_files(tmp_path) == ["tb/train"] * 2 + ["tb/validation"] * 2
    assert len((tmp_path / "epochs.csv").read_text().splitlines()) > 3, "more rows than epochs, and the names"


def test_a_folder_or_table_of_each_task_has_each_epoch_once(cluster, tmp_path):
    fit(cluster, tmp_path, "TensorBoard of each", "CSVLogger of each", epochs=2)
    parts = [f"tb/worker-{n}/{part}" for n in (0, 1) for part in ("train", "validation")]
    assert event_files(tmp_path) == parts
    assert [epochs_in(tmp_path / f"epochs-worker-{n}.csv") for n in (0, 1)] == [["0", "1"]] * 2


def test_a_callback_of_the_chief_alone_lets_nobody_wait(cluster, tmp_path):
    fit(cluster, tmp_path, "TensorBoard", "ModelCheckpoint", "CSVLogger", epochs=2, only_chief=True)
    assert event_files(tmp_path) == ["tb/train", "tb/validation"] and (tmp_path / "best.keras").exists()
    assert epochs_in(tmp_path / "epochs.csv") == ["0", "1"]


def test_a_task_that_stops_alone_ends_the_others(tmp_path):
    with tfmagic.Cluster(workers=2) as own, pytest.raises(Exception) as ended:
        own.run(fitted, (), str(tmp_path), 4, stops=("worker-1", 1), view="quiet")
    assert "peer-ended" in "".join(ended.value.__notes__)


def save_all(folder):
    """Save and export on all tasks; return what each can read."""
    import keras
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    os.chdir(folder)
    model.fit(np.ones((16, 4)), np.ones((16, 1)), batch_size=8, epochs=1, verbose=0)
    model.save("trained.keras")
    model.save_weights("trained.weights.h5")
    with tfmagic.logdir.task_logdir("saved") as path:
        model.export(f"{path}/1", verbose=False)
    tfmagic.barrier()
    x = tf.ones((2, 4))
    expected = model(x).numpy().tolist()
    exported = tf.saved_model.load("saved/1")
    served = exported.serve(x).numpy().tolist()
    again = keras.models.load_model("trained.keras")(x).numpy().tolist()
    return expected, served, again


def test_models_that_all_tasks_save_can_be_read(cluster, tmp_path):
    found = cluster.run(save_all, str(tmp_path), view="quiet")
    for expected, served, again in found.values():
        assert [row[0] for row in served] == pytest.approx([row[0] for row in expected])
        assert [row[0] for row in again] == pytest.approx([row[0] for row in expected])
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
        *("saved", "trained.keras", "trained.weights.h5")
    ]
