"""One press of Ctrl-C at a random moment of a training, on a busy machine: no task loses a variable.

A round starts an endless program on real tasks, presses Ctrl-C once after a random delay, and waits for the
KeyboardInterrupt. After each round every task is the same process as before, has all its variables, and the
next program, which makes its strategy again, runs. `make chaos` makes 200 presses (CHAOS_STEPS, CHAOS_SEED);
CHAOS_STEPS=15 takes about a minute.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import tfmagic

PRESSES = max(int(os.environ.get("CHAOS_STEPS", "14")) * 2 // 3, 3)
SEED = int(os.environ.get("CHAOS_SEED", "1"))
LONGEST_DELAY_S = 6.0  # the start of a program takes two to four seconds, then it makes steps
BACK_S = 300.0  # TensorFlow can take 60 s to delete an iterator of a data set, and there can be several


# ---- programs, which end only by an interrupt -----------------------------------------------------


def fit():
    import tensorflow as tf

    global model
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((tf.ones([64, 4]), tf.ones([64, 1]))).batch(8).repeat()
    model.fit(data, epochs=10**6, steps_per_epoch=20, verbose=0)


def custom_loop():
    import tensorflow as tf

    global weight, optimizer
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(tf.ones([4, 1]))
        optimizer = tf.keras.optimizers.Adam()

    def replica(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch @ weight))
        optimizer.apply([tape.gradient(loss, weight)], [weight])
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica, (batch,)), axis=None)

    while True:
        for batch in tf.data.Dataset.from_tensors(tf.ones([16, 4])).repeat(50):
            step(batch)


def coordinate():
    import tensorflow as tf

    global counter
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        counter = tf.Variable(0.0)

    @tf.function
    def step():
        counter.assign_add(1.0)
        return counter.read_value()

    while True:
        for _ in range(10):
            coordinator.schedule(step)
        coordinator.join()


def keep(number):
    """Add to the variables of this process; return what they have."""

    import tensorflow as tf

    import tfmagic

    global kept, total
    kept = [*globals().get("kept", []), number]
    if "ps" in tfmagic.current_task().cluster_spec:
        return tuple(kept), sum(kept)  # to connect to a ps makes TensorFlow forget variables
    if "total" not in globals():
        total = tf.Variable(0)
    total.assign_add(number)
    return tuple(kept), int(total)


# ---- the rounds ----------------------------------------------------------------------------------


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Keep every core busy with two further processes, which end with this one."""
    count, burn = 2 * (os.cpu_count() or 1), f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    burners = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def press_after(delay_s: float, cluster: tfmagic.Cluster) -> threading.Timer:
    """Send SIGINT to this process once, `delay_s` after the cell was sent."""

    def press() -> None:
        if cluster.busy:
            os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(delay_s, press)
    timer.start()
    return timer


@pytest.mark.soak
@pytest.mark.timeout(600 + 30 * PRESSES)
def test_one_press_costs_no_task_its_variables():
    rng = random.Random(SEED)
    with (
        tfmagic.Cluster(workers=2, name="presses") as workers,
        tfmagic.Cluster(workers=1, ps=1, chief=True, name="coordinated") as coordinated,
        load(),
    ):
        kept: dict[str, tuple[int, ...]] = {}
        for number in range(1, PRESSES + 1):
            program = (fit, custom_loop, coordinate)[number % 3]
            cluster = coordinated if program is coordinate else workers
            kept[cluster.name] = (*kept.get(cluster.name, ()), number)
            delay_s = rng.uniform(0, LONGEST_DELAY_S)
            where = f"press {number} (seed {SEED}), {delay_s:.2f} s after the start of {program.__name__}"
            before = cluster.attempts()
            found = cluster.run(keep, number, view="quiet", timeout=BACK_S)
            for task, (numbers, total) in found.items():
                assert numbers == kept[cluster.name], f"before {where}: {task} has lost its variables"
                assert total == sum(numbers), f"before {where}: {task}'s tf.Variable has lost its value"
            timer = press_after(delay_s, cluster)
            began = time.monotonic()
            try:
                cluster.run(program, view="quiet")
                raise AssertionError(f"{where}: the program ended by itself")
            except KeyboardInterrupt as error:
                notes = "\n".join(getattr(error, "__notes__", ()))
            except Exception as error:
                texts = "\n".join(cluster.errors().values())
                raise AssertionError(f"{where}: the program failed by itself\n{texts}") from error
            finally:
                timer.cancel()
                timer.join()
            took_s = time.monotonic() - began - delay_s
            print(f"{where}: back after {took_s:.2f} s {notes}", flush=True)
            assert took_s < BACK_S, f"{where}: back after {took_s:.1f} s"
            assert cluster.attempts() == before, f"{where}: a task was replaced\n{notes}"
