"""`tfmagic.track` and what `model.fit` tracks by itself, on real tasks."""

import pytest

import tfmagic

FIT = """
import numpy as np
import tensorflow as tf
keras = tf.keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
x = np.ones((64, 2), "float32")
model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, validation_data=(x, x[:, :1]))
"""


def rows(results, **wanted):
    found = results.tracked
    found = found.to_dict("records") if hasattr(found, "to_dict") else found
    return [row for row in found if all(row[key] == value for key, value in wanted.items())]


def test_values_of_all_tasks_are_rows_and_a_chart(notebook):
    notebook.run(
        "%%tfcluster --workers 2 --out r\n"
        "import tfmagic\nme = tfmagic.current_task()\n"
        "for n in range(2_000):\n    tfmagic.track(loss=1 / (n + 1 + me.index))\n"
        "tfmagic.track(step=7, accuracy=0.5)\nme.index"
    )
    results = notebook.ns["r"]
    losses = rows(results, name="loss", task="worker-1")
    assert [row["step"] for row in losses] == list(range(2_000)), "every point, in order"
    assert losses[0]["value"] == 0.5
    assert len(rows(results, name="accuracy", step=7)) == 2


def test_a_long_wait_does_not_hold_points_back(notebook):
    notebook.run("%tfcluster start")
    cluster = notebook.cluster()

    def wait_for_points():
        import os
        import time

        tfmagic.track(progress=1)
        folder = os.environ["FOLDER"]
        path = os.path.join(folder, "worker-0.track.jsonl")
        deadline = time.monotonic() + 10
        tfmagic.track(progress=2)
        while time.monotonic() < deadline:
            if os.path.exists(path) and "[1,2.0]" in open(path).read():  # noqa: SIM115
                return True
            time.sleep(0.02)
        return False

    def with_folder(folder):
        import os

        os.environ["FOLDER"] = folder
        return wait_for_points()

    folder = str(cluster.run_folder.folder)
    assert list(cluster.run(with_folder, folder, view="quiet").values()) == [True, True]


def test_symbolic_values_get_a_clear_error(notebook):
    with pytest.raises(TypeError, match="return it, and track it outside"):
        notebook.run(
            "%%tfcluster\nimport tensorflow as tf\nimport tfmagic\n"
            "@tf.function\ndef step(x):\n    tfmagic.track(x=x)\n    return x\nstep(tf.constant(1.0))"
        )


def test_outside_of_a_task_nothing_happens():
    tfmagic.track(loss=1)


@pytest.mark.parametrize("keras", ["3", pytest.param("2", marks=pytest.mark.soak)])
def test_fit_tracks_loss_and_metrics_by_itself(notebook, keras):
    notebook.run(f"%%tfcluster --fresh --workers 1 --keras {keras} --out r\n{FIT}")
    found = notebook.ns["r"]
    names = {row["name"] for row in rows(found)}
    assert {"loss", "mae", "val_loss", "val_mae"} <= names
    ends = rows(found, name="val_loss")
    assert [row["step"] for row in ends] == [8, 16], "the batches so far"
    assert rows(found, name="loss")[-1]["step"] == 16


def test_fit_can_be_told_not_to(notebook):
    notebook.run("%config TFCluster.track_fit = False")
    try:
        notebook.run(f"%%tfcluster --out r\n{FIT}\nimport tfmagic\ntfmagic.track(mine=1)")
        assert {row["name"] for row in rows(notebook.ns["r"])} == {"mine"}
    finally:
        notebook.run("%config TFCluster.track_fit = True")
