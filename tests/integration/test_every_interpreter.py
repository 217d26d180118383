"""One of each of the first things that a user does. `scripts/suite.py` runs them on every Python there is."""

import pytest
from test_strategies import ALL_REDUCE, COORDINATOR

import tfmagic

# Lasts longer than a task waits until it tells which line it has reached, and reaches several.
LONG = """
import time
began = time.monotonic()
steps = 0
while time.monotonic() - began < 0.8:
    time.sleep(0.02)
    steps += 1
print("many steps:", steps > 3)
steps > 3
"""


def pids(notebook):
    return {row["task"]: row["pid"] for row in notebook.cluster().status()}


def test_a_long_cell_keeps_its_tasks_and_a_second_one_runs_on_them(notebook):
    notebook.run("%tfcluster start --workers 2")
    before = pids(notebook)
    for _ in range(2):
        out = notebook.run("%%tfcluster --out r\n" + LONG)
        assert dict(notebook.ns["r"]) == {"worker-0": True, "worker-1": True}
        assert out.count("many steps: True") == 2
    assert pids(notebook) == before


def test_what_a_notebook_defines_travels_there_and_back(notebook):
    notebook.run(
        "import dataclasses, functools, typing\n"
        "@dataclasses.dataclass(frozen=True, slots=True)\n"
        "class Point:\n    x: int\n    y: int = 2\n"
        "class Pair(typing.NamedTuple):\n    a: Point\n    b: str\n"
        "class Base:\n    def area(self): return 1\n"
        "class Square(Base):\n    def area(self): return super().area() + 1\n"
        "def outer(n):\n    def inner(m): return n + m\n    return inner\n"
        "add = outer(3)\ntwice = functools.partial(map, lambda v: 2 * v)\n"
    )
    notebook.run(
        "%%tfcluster --workers 1 --out r\nPair(Point(add(4)), str(list(twice([1]))) ), Square().area()"
    )
    pair, area = notebook.ns["r"]["worker-0"]
    assert (pair.a.x, pair.a.y, pair.b, area) == (7, 2, "[2]", 2)
    assert type(pair) is notebook.ns["Pair"] and type(pair.a) is notebook.ns["Point"]


def test_an_error_after_some_time_is_the_users_own_and_the_other_task_goes_on(notebook):
    notebook.run("class MyError(Exception):\n    pass")
    with pytest.raises(Exception, match="bad batch") as caught:
        notebook.run(
            "%%tfcluster --workers 2\nimport tfmagic\nkept = 1\n"
            + LONG
            + "if tfmagic.current_task().index == 1:\n"
            "    try:\n        {}['x']\n    except KeyError as error:\n"
            "        raise MyError('bad batch') from error\n"
            "tfmagic.barrier()"
        )
    assert type(caught.value) is notebook.ns["MyError"]
    assert type(caught.value.__cause__) is KeyError
    assert any("raised on worker-1" in note for note in caught.value.__notes__)
    notebook.run("%%tfcluster --out r\nkept")
    assert dict(notebook.ns["r"]) == {"worker-0": 1, "worker-1": 1}


def test_functions_run_on_a_cluster_also_long_ones():
    def work(n):
        scope = {}
        exec(LONG, scope)
        return n, scope["steps"] > 3

    with tfmagic.Cluster(workers=2) as cluster:
        assert dict(cluster.run(work, 1)) == {"worker-0": (1, True), "worker-1": (1, True)}
        assert cluster.map(work, [1, 2, 3]) == [(n, True) for n in (1, 2, 3)]


def test_two_workers_train_with_a_mirrored_strategy(notebook):
    notebook.run("%%tfcluster --workers 2 --out r\n" + LONG + ALL_REDUCE)
    assert notebook.ns["r"].of("worker") == [[21.0, 21.0]] * 2


def test_keras_fits_on_two_workers_as_one_model(notebook):
    notebook.run(
        "%%tfcluster --workers 2 --out r\n"
        "import numpy as np, tensorflow as tf\n"
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
        "x = np.arange(64, dtype='float32').reshape(-1, 1) / 64\n"
        "data = tf.data.Dataset.from_tensor_slices((x, 2 * x)).batch(16)\n"
        "with strategy.scope():\n"
        "    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "model.fit(data, epochs=3, verbose=0).history['loss']"
    )
    first, second = notebook.ns["r"].of("worker")
    assert first == second and first[-1] < first[0]


def test_a_coordinator_uses_its_parameter_server(notebook):
    notebook.run("%%tfcluster --workers 1 --ps 1 --out r\n" + COORDINATOR)
    assert dict(notebook.ns["r"]) == {"chief-0": 50.0}


def test_a_script_runs_to_its_end_and_its_failure_is_the_exit_code(tmp_path, commands):
    (tmp_path / "script.py").write_text(LONG + "import sys\nsys.exit(3 if 'fail' in sys.argv else 0)\n")
    for words, code in (([], 0), (["fail"], 3)):
        commands.start(tmp_path, ["run", "--workers", "2", "script.py", *words])
        assert commands.wait() == code, (tmp_path / "err.txt").read_text()
        assert (tmp_path / "out.txt").read_text().count("many steps: True") == 2


def test_a_script_trains_on_two_workers(tmp_path, commands):
    (tmp_path / "train.py").write_text(LONG + ALL_REDUCE + "\nprint('weights', w.numpy().tolist())\n")
    commands.start(tmp_path, ["run", "--workers", "2", "train.py"])
    assert commands.wait() == 0, (tmp_path / "err.txt").read_text()
    assert (tmp_path / "out.txt").read_text().count("weights [21.0, 21.0]") == 2
