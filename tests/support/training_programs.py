"""Training programs as texts, which run in one process and on several workers; tasks import this module.

    Program ──source()──→ a script ──train()──→ Outcome: weights, history, what it printed

Each program takes the same global batches in both, so its weights, losses and metrics are to be equal.
"""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass
from typing import Any

_HEAD = """\
import contextlib
import numpy as np
import tensorflow as tf
import {keras} as keras
from {keras} import layers, losses, metrics, optimizers

strategy = tf.distribute.get_strategy()
if '"ps"' in os.environ.get("TF_CONFIG", ""):
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
elif "TF_CONFIG" in os.environ:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
keras.backend.clear_session()
draw = np.random.RandomState(0)
x = draw.normal(size=({rows}, 3)).astype("float32")
y = (x @ [[3.0], [-6.0], [1.5]] + 10.0 * (np.arange({rows})[:, None] % 3 - 1)).astype("float32")
w = (np.arange({rows}) % 4 + 0.5).astype("float32")
"""
_FIT = "history = model.fit(data, epochs=2, verbose=0, {fit}).history\n"
_LOOP = """\
history = {{}}
def step(batch):
    with tf.GradientTape() as tape:
        loss = loss_of(model, *batch)
    variables = model.trainable_variables
    grads = tape.gradient(loss, variables)
    {grads}
    optimizer.apply_gradients(zip(grads, variables))
@tf.function
def train(batch):
    strategy.run(step, args=(batch,))
for _ in range(2):
    for batch in strategy.experimental_distribute_dataset(data):
        train(batch)
"""
ITERATOR_LOOP = _LOOP.replace(
    "(batch):\n    strategy.run(step, args=(batch,))",
    "(batches):\n    strategy.run(step, args=(next(batches),))",
).replace(
    "for batch in strategy.experimental_distribute_dataset(data):\n        train(batch)",
    "batches = iter(strategy.experimental_distribute_dataset(data))\n"
    "    for _ in range({rows} // {batch}):\n        train(batches)",
)
PARAMETER_SERVER_LOOP = """\
history = {{}}
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
@tf.function
def train(batch):
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(model, *batch)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    strategy.run(step, args=(batch,))
for _ in range(2):
    for batch in data:
        coordinator.schedule(train, args=(batch,))
        coordinator.join()
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A training program. Each field is Python, but those that are numbers.

    Attributes:
        setup: Lines after the arrays `x` and `y` of float32 ([rows, 3] and [rows, 1]) and `w` ([rows]).
        model: Lines in the strategy's scope, which make `model`.
        grads: A line of such a loop, after the gradients `grads` of `variables`.
        call: Lines that train, and set `history`; `LOOP` is a loop of the user's own.
        data: The data set.
    """

    optimizer: str = "optimizers.SGD(0.1)"
    loss: str = "'mse'"
    metrics: str = "['mae']"
    more: str = ""
    setup: str = ""
    model: str = "model = keras.Sequential([layers.Dense(1, kernel_initializer='ones')])"
    compile: str = "model.compile(optimizer, {loss}, metrics={metrics}, {more})"
    call: str = _FIT
    grads: str = "pass"
    fit: str = ""
    data: str = "tf.data.Dataset.from_tensor_slices((x, y)).batch({batch})"
    rows: int = 16
    batch: int = 4
    keras: int = 3

    def source(self) -> str:
        """Return the program as a script."""
        words = {name: getattr(self, name) for name in self.__slots__}
        words["keras"] = {3: "keras", 2: "tf_keras"}[self.keras]
        lines = [
            _HEAD.format(**words),
            self.setup,
            f"data = {self.data.format(**words)}",
            "with strategy.scope():",
            *(f"    {line}" for line in self.model.splitlines()),
            f"    optimizer = {self.optimizer}",
            f"    {self.compile.format(**words)}" if self.compile else "",
            self.call.format(**words) if self.call != LOOP else _LOOP.format(**words),
        ]
        return "import os\n" + "\n".join(filter(None, lines))


LOOP = "a loop of the user's own"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program has trained: weights, the history by name, and the lines that it printed."""

    weights: list[Any]
    history: dict[str, list[float]]
    printed: str


def train(program: Program, alone: bool) -> Outcome:
    """Run a program in this task; alone as one process does."""
    import numpy as np

    from tfmagic.system.advice import Step
    from tfmagic.task.tensorflow import notices

    notices.forget()
    config, shown = os.environ["TF_CONFIG"], io.StringIO()
    namespace: dict[str, Any] = {}
    try:
        if alone:
            del os.environ["TF_CONFIG"]
        with contextlib.redirect_stdout(shown):
            exec(compile(program.source(), "<program>", "exec"), namespace)
    finally:
        os.environ["TF_CONFIG"] = config
    weights = [np.asarray(value).tolist() for value in namespace["model"].get_weights()]
    history = {
        name: [np.asarray(value, float).tolist() for value in values]
        for name, values in namespace["history"].items()
    }
    hints = [
        f"tfmagic: hint: {advice} ({Step('explain', name)})\n" for name, advice in notices.given().items()
    ]
    return Outcome(weights, history, "".join([shown.getvalue(), *hints]))
