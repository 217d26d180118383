"""A notebook's part on a host of its own: a program that calls the functions below, one for each line of its input.

A line is JSON: the name of a function and its arguments. What it returns is printed as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import tfmagic
from tfmagic.errors import TfmagicError

cluster: Any = None
counting: Any = None
PATIENCE_S = 90.0


def start(address: str, **options: Any) -> dict[str, str]:
    """Start a cluster; return the address of each task."""
    global cluster
    cluster = tfmagic.Cluster(backend="ray", address=address, failure_grace_s=1, **options).start()
    return {task.name: where for task, where in cluster.spec.addresses.items()}


def stop() -> None:
    cluster.stop()


def tasks() -> dict[str, list[Any]]:
    """Return host and pid of each task."""
    return {row["task"]: [row["host"], row["pid"]] for row in cluster.status()}


def all_reduce() -> Any:
    return dict(cluster.run(_all_reduce, view="quiet"))


def fit(alone: bool = False) -> Any:
    """Return the losses of a fit by all tasks together, or by one."""
    return dict(cluster.run(_fit, alone, on="worker-0" if alone else None, view="quiet"))


def count_on_parameter_servers() -> Any:
    return dict(cluster.run(_count, view="quiet"))


def run_name() -> str:
    return str(cluster.run_folder)


def begin_counting(go: str) -> None:
    """Let all tasks print numbers until there is a file."""
    global counting
    counting = cluster.submit(_count_until, go)


def end_counting() -> dict[str, list[Any]]:
    """Return what each task has counted to, and the lines of its log."""
    counted = counting.result(timeout=PATIENCE_S)
    logs = {task: cluster.run_folder.log_path(task).read_text() for task in cluster.spec.shape.tasks}
    return {task.name: [counted[task.name], log.split()] for task, log in logs.items()}


def run_something() -> str:
    """Return what a cell raises, or ""."""
    try:
        cluster.run(lambda: None, view="quiet")
    except TfmagicError as error:
        return str(error)
    return ""


def wait_for(task: str, silent: bool | None = None, dead: bool = False) -> float:
    """Return how long it took until the host of a task was silent or not, or the task was dead."""
    began = time.monotonic()
    while time.monotonic() < began + PATIENCE_S:
        (seen,) = (seen for name, seen in cluster.state.tasks.items() if name.name == task)
        is_dead = seen.phase.value == "dead"
        if is_dead if dead else bool(seen.silent_host) == silent:
            return time.monotonic() - began
        assert dead or not is_dead, "the task is dead"
        time.sleep(0.02)
    raise TimeoutError(str(seen))


def transfer(what: str, task: str, size: int) -> list[Any]:
    """Pull an array of so many bytes from a task, or push one to it.

    Return how many bytes arrived, and whether the host was silent meanwhile.
    """
    silent, ended = [], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            silent.extend(seen.silent_host for seen in cluster.state.tasks.values() if seen.silent_host)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        if what == "pull":
            cluster.run(_make, size, on=task, view="quiet")
            arrived = len(cluster.pull("made", on=task)["made"][task])
        else:
            cluster.push(made=os.urandom(size), on=task)
            (arrived,) = cluster.run(lambda: len(made), on=task, view="quiet").values()  # noqa: F821
    finally:
        ended.set()
        watching.join()
    return [arrived, bool(silent)]


def _make(size: int) -> None:
    globals_of_task = sys.modules["__main__"].__dict__
    globals_of_task["made"] = os.urandom(size)


def revive() -> list[str]:
    return list(cluster.revive())


def _count_until(go: str) -> int:
    number = 0
    while not os.path.exists(go):
        number += 1
        print(number, flush=True)
        time.sleep(0.1)
    return number


def _all_reduce() -> float:
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def step():
        return strategy.reduce("sum", strategy.run(lambda: tf.ones([])), axis=None)

    return float(step())


def _fit(alone: bool) -> list[float]:
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.get_strategy() if alone else tf.distribute.MultiWorkerMirroredStrategy()
    x = np.arange(24, dtype="float32").reshape(12, 2) / 24
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(6)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    return model.fit(data.with_options(options), epochs=3, verbose=0).history["loss"]


def _count() -> float:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

    @tf.function
    def step():
        total.assign_add(1.0)

    for _ in range(20):
        coordinator.schedule(step)
    coordinator.join()
    return float(total.numpy())


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        name, options = json.loads(line)
        print(json.dumps(globals()[name](**options)), file=answers, flush=True)


if __name__ == "__main__":
    main()
