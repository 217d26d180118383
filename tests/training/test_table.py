"""Each training program of the table gives the weights of one process on several workers, or says why not.

What one process gives is in one_process.json, with the versions of TensorFlow and Keras; with other versions, and for
a row that is not there, the program runs in one process first.
``PYTHONPATH=tests/support python tests/training/test_table.py`` records it.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_programs import LOOP, PARAMETER_SERVER_LOOP, Outcome, Program, train
from training_rows import ROWS, Row

import tfmagic
from tfmagic.system.installed_packages import find_package

RECORD = Path(__file__).with_name("one_process.json")
PAGE = Path(__file__).parents[2] / "docs" / "training.md"
# 4 rows are 2, 2 and 0, which a convolution refuses; half of a mean is one that is divided by two workers
TWO_ONLY = ("convolution", "loop, half of a mean")
BEGIN, END = "<!-- table: python tests/training/test_table.py -->", "<!-- end -->"
PACKAGES = ("tensorflow", "keras", "keras-nightly", "tf_keras")
DIFFERENT = ("hinted", "designed")
VERSIONS = {name: found["Version"] for name in PACKAGES if (found := find_package(name))}


@pytest.fixture(scope="module")
def cluster_of_module() -> Iterator[Callable[[Row], tfmagic.Cluster]]:
    with contextlib.ExitStack() as stack:

        @functools.cache
        def with_keras(version: int) -> tfmagic.Cluster:
            return stack.enter_context(tfmagic.Cluster(workers=2, keras=version, name=f"keras-{version}"))

        yield lambda row: with_keras(row.program.keras)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    record = json.loads(RECORD.read_text())
    return record["rows"] if record["versions"] == VERSIONS else {}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if ROWS[n].quick else pytest.mark.soak) for n in ROWS]
)
def test_two_workers_train_what_one_process_trains_or_say_why_not(name, cluster_of_module, recorded):
    row = ROWS[name]
    print(row.program.source())
    cluster = cluster_of_module(row)
    alone = recorded[name] = recorded.get(name) or one_process(cluster, row.program)
    check(row, alone, cluster.run(train, row.program, False, timeout=100, view="quiet"))


@pytest.fixture(scope="module")
def three() -> Iterator[tfmagic.Cluster]:
    with tfmagic.Cluster(workers=3, name="three") as cluster:
        yield cluster


@pytest.mark.soak
@pytest.mark.parametrize("name", [n for n in ROWS if ROWS[n].program.keras == 3 and n not in TWO_ONLY])
def test_three_workers_train_what_one_process_trains_or_say_why_not(name, three, recorded):
    row = ROWS[name]
    alone = recorded[name] = recorded.get(name) or one_process(three, row.program)
    check(row, alone, three.run(train, row.program, False, timeout=100, view="quiet"))


def one_process(cluster: tfmagic.Cluster, program: Program, on: str = "worker-0") -> dict[str, Any]:
    """Return weights and history of a program in one process, as they are recorded."""
    outcome = cluster.run(train, program, True, on=on, timeout=100, view="quiet")[on]
    return {"weights": outcome.weights, "history": outcome.history}


def check(row: Row, alone: dict[str, Any], results: tfmagic.TaskResults) -> None:
    """Compare what the workers have trained with one process, and what they printed with the row."""
    first = next(iter(results.values()))
    for outcome in results.values():
        assert row.verdict in DIFFERENT or differs(first.weights, outcome.weights, row.digits) is None
        for name in filter(None, row.named.split(", ")):
            words = name if " " in name else f"explain {name})"
            assert outcome.printed.count(words) == 1, (name, outcome.printed)
        assert row.named or "hint:" not in outcome.printed
    found = differs(alone["weights"], first.weights, row.digits) or differs_in_history(
        alone, first, row.digits
    )
    assert (found is not None) == (row.verdict in DIFFERENT), found


def differs(one: list[Any], other: list[Any], digits: int) -> str | None:
    """Name the first value that differs, but for the last digits."""
    for place, (a, b) in enumerate(zip(one, other, strict=True)):
        near = np.allclose(a, b, rtol=10.0**-digits, atol=10.0 ** -(digits + 1))
        if not near:
            return f"{place}: {a} {b}"
    return None


def differs_in_history(alone: dict[str, Any], outcome: Outcome, digits: int) -> str | None:
    one, other = alone["history"], outcome.history
    assert list(one) == list(other)
    return next((f"{name}: {it}" for name in one if (it := differs(one[name], other[name], digits))), None)


@pytest.mark.parametrize(
    "options, rows", [({}, 64), pytest.param({"validation_split": 0.25}, 48, marks=pytest.mark.soak)]
)
def test_arrays_without_a_seed_are_read_once_in_an_epoch(options, rows, cluster_of_module):
    read = cluster_of_module(ROWS["arrays"]).run(rows_read, options, timeout=100, view="quiet")
    assert sorted(row for rows_of in read.values() for row in rows_of) == list(range(rows))
    assert sorted(read["worker-0"]) != read["worker-0"], "they are shuffled"


def rows_read(options: dict[str, Any]) -> list[int]:
    """Return the rows that an epoch of `fit` on arrays reads on this task."""
    import keras
    import tensorflow as tf

    read: list[int] = []

    class Reading(keras.Sequential):
        def train_step(self, batch: Any) -> dict[str, Any]:
            read.extend(map(int, batch[0].numpy().ravel()))
            return {"loss": tf.zeros([])}

    tf.random.set_seed(None)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = Reading([keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    rows = np.arange(64.0)[:, None]
    model.fit(rows, rows, batch_size=8, verbose=0, **options)
    return read


@pytest.mark.soak
def test_a_loop_with_a_parameter_server_trains_what_one_process_trains(recorded):
    """With one worker, whose steps follow each other; `fit` of Keras 3 is refused there: tests/failures/test_hints.py."""
    program = replace(
        ROWS["loop"].program, call=PARAMETER_SERVER_LOOP, optimizer="optimizers.SGD(0.1, clipnorm=1.0)"
    )
    with tfmagic.Cluster(chief=True, workers=1, ps=1) as cluster:
        alone = one_process(cluster, replace(program, call=LOOP), on="chief-0")
        outcome = cluster.run(train, program, False, timeout=100, view="quiet")["chief-0"]
    assert differs(alone["weights"], outcome.weights, 4) is None


def test_the_page_has_the_table():
    assert table() in PAGE.read_text("utf-8")


def table() -> str:
    """Return the rows as a table of the documentation."""
    words = {
        "equal": "equal",
        "repaired": "equal, since tfmagic repairs Keras 3",
        "hinted": "other weights, and a hint",
        "designed": "other weights by design, see below",
    }
    lines = [f"{BEGIN}", "| on several workers | programs |", "| --- | --- |"]
    for verdict, meaning in words.items():
        names = (
            name + (f" (`{row.named}`)".replace(", ", "`, `") if verdict == "hinted" else "")
            for name, row in ROWS.items()
            if row.verdict == verdict
        )
        lines.append(f"| {meaning} | {'; '.join(names)} |")
    return "\n".join([*lines, END])


def record() -> None:
    """Record what one process trains, and write the table into the page."""
    found = {}
    for keras in (3, 2):
        with tfmagic.Cluster(workers=1, keras=keras) as cluster:
            rows = {name: row for name, row in ROWS.items() if row.program.keras == keras}
            found |= {name: one_process(cluster, row.program) for name, row in rows.items()}
    RECORD.write_text(json.dumps({"versions": VERSIONS, "rows": found}) + "\n")
    write_table()


def write_table() -> None:
    """Write the table into the page."""
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{table()}{rest.split(END)[1]}", "utf-8")


if __name__ == "__main__":
    record()
