"""The table of training programs: what several workers do with each, compared with one process.

- *equal*: weights, losses and metrics, but for the last digits; *repaired*: so by a row of the table of patches;
- *hinted*: they differ, and a hint with this name says why before the first epoch ends;
- *designed*: they differ, as the page says, and no hint can tell the program from a right one;
- *refused*: an exception before the first step, whose hint has this name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from training_programs import ITERATOR_LOOP, LOOP, Program

Verdict = Literal["equal", "repaired", "hinted", "designed", "refused"]


@dataclass(frozen=True, slots=True)
class Row:
    """A program, and what is to become of it on several workers.

    Attributes:
        named: The names of the hints, or the text of a notice.
        digits: To how many digits weights are equal: fewer with float16.
        quick: Whether `make test` runs it: those that have much in one program, since each is traced anew.
    """

    program: Program
    verdict: Verdict = "equal"
    named: str = ""
    digits: int = 4
    quick: bool = False


def _sgd(options: str) -> str:
    return f"optimizers.SGD(0.1, {options})"


_CLASSES = "y = (y > 0).astype('float32')"
_SIGMOID = "model = keras.Sequential([layers.Dense(1, 'sigmoid', kernel_initializer='ones')])"
_SOFTMAX = "model = keras.Sequential([layers.Dense(5, 'softmax')])"
_FIVE = "y = (np.arange(len(x)) % 5).astype('int64')"
_WEIGHTED = "tf.data.Dataset.from_tensor_slices((x, y, w)).batch({batch})"
_GENERATOR = """\
def batches():
    while True:
        for start in range(0, len(x), 4):
            yield x[start:start + 4], y[start:start + 4]
made = batches()"""
_SEQUENCE = """\
class Batches(keras.utils.PyDataset):
    def __len__(self):
        return len(x) // 4
    def __getitem__(self, index):
        return x[4 * index:4 * index + 4], y[4 * index:4 * index + 4]
made = Batches()"""
_GENERATED = (
    "history = {{{{**model.fit(made, epochs=2, verbose=0, {0}).history, 'rows': [x, y]}}}}"  # as they were
)
_SEQUENCES = """\
x = draw.normal(size=(len(y), 4, 2)).astype('float32')
for row in range(len(x)):
    x[row, 1 + row % 4:] = 0.0
y = np.repeat(y[:, None], 4, axis=1)"""
_LSTM = "model = keras.Sequential([layers.Masking(), layers.LSTM(3, return_sequences=True), layers.Dense(1)])"
_IMAGES = "x = draw.normal(size=(len(y), 6, 6, 1)).astype('float32')"
_CONV = """\
model = keras.Sequential([
    layers.Conv2D(2, 3), layers.LayerNormalization(), layers.ReLU(), layers.Flatten(), layers.Dense(1)])"""
_WORDS = "x = (np.arange(3 * len(y)).reshape(-1, 3) % 7).astype('int32')"
_EMBEDDING = "model = keras.Sequential([layers.Embedding(7, 4), layers.Flatten(), layers.Dense(1)])"
_TWO = """\
inputs = keras.Input([3])
hidden = layers.Dense(4, 'tanh')(inputs)
model = keras.Model(inputs, {'a': layers.Dense(1, name='a')(hidden), 'b': layers.Dense(1, name='b')(hidden)})"""
_TWO_DATA = "tf.data.Dataset.from_tensor_slices((x, {{'a': y, 'b': -y}})).batch({batch})"


def _dense(options: str) -> str:
    return f"model = keras.Sequential([layers.Dense(1, kernel_initializer='ones', {options})])"


def _with_layer(layer: str) -> str:
    return f"model = keras.Sequential([layers.Dense(4, 'tanh'), {layer}, layers.Dense(1)])"


_ADD_LOSS = """\
class Pulled(layers.Layer):
    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(inputs ** 2))
        return inputs
model = keras.Sequential([layers.Dense(4, 'tanh'), Pulled(), layers.Dense(1)])"""
_ADD_SUM = _ADD_LOSS.replace("reduce_mean", "reduce_sum")
_ENDPOINT = """\
class Endpoint(layers.Layer):
    def __init__(self):
        super().__init__()
        self.error = losses.MeanSquaredError()
    def call(self, y, predicted):
        self.add_loss(0.5 * self.error(y, predicted))
        return predicted
inputs, targets = keras.Input([3]), keras.Input([1])
model = keras.Model([inputs, targets], Endpoint()(targets, layers.Dense(1)(inputs)))"""
_OWN_STEP = """\
class Own(keras.Sequential):
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            {loss}
        grads = tape.gradient(loss, self.trainable_variables)
        {grads}
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, predicted)
        return {{**{{metric.name: metric.result() for metric in self.metrics}}, "twice": 2 * loss}}
model = Own([layers.Dense(1, kernel_initializer='ones')])"""


def _own_step(loss: str = "loss = self.compute_loss(y=y, y_pred=predicted)", grads: str = "pass") -> str:
    return _OWN_STEP.format(loss=loss, grads=grads)


_FUNCTIONAL = "loss = tf.reduce_mean((y - predicted) ** 2)"
_SUM_LOSS = """\
def loss_of(model, x, y):
    return tf.reduce_sum((model(x) - y) ** 2) / {batch}
"""
_MEAN_LOSS = """\
def loss_of(model, x, y):
    return tf.reduce_mean((model(x) - y) ** 2)
"""
_NORM_LOSS = _MEAN_LOSS.replace("reduce_mean((model(x) - y) ** 2)", "norm(model(x) - y)")
_RATIO_LOSS = _MEAN_LOSS.replace("tf.reduce_mean(", "2 * tf.reduce_sum(abs(y)) / tf.reduce_sum(")
_NORMS = """\
def loss_of(model, x, y):  # of each row, and of weights
    weights = tf.norm(model.trainable_variables[0]) / strategy.num_replicas_in_sync
    return tf.reduce_sum(tf.norm(model(x) - y, axis=-1)) / {batch} + weights
"""
_NOISY_LOSS = _SUM_LOSS.replace("model(x)", "model(x + tf.random.normal(tf.shape(x), seed=1))")
_SCALED_LOSS = """\
def loss_of(model, x, y):
    return optimizer.scale_loss(tf.reduce_sum((model(x) - y) ** 2) / {batch})
"""
_BUILT = (
    "model = keras.Sequential([keras.Input([3]), layers.Dense(1, kernel_initializer='ones')])\nmodel.build()"
)


_NEGATED = "loss = 0.1 * tf.reduce_mean(abs(predicted)) - tf.reduce_mean(-((y - predicted) ** 2))"
_WITH_WEIGHTS = "loss = losses.MeanSquaredError()(y, predicted) + tf.reduce_sum(self.layers[0].kernel ** 2)"
_NOISY = "loss = self.compute_loss(y=y, y_pred=predicted + tf.random.normal(tf.shape(y)))"
_NO_CALL = """\
class Outer(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([keras.Input([3]), layers.Dense(1, kernel_initializer='ones')])
        self.error = losses.MeanSquaredError()
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.error(y, self.inner(x))
        weights = self.inner.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}
model = Outer()"""
_FROM_GENERATOR = (
    "tf.data.Dataset.from_generator("
    "lambda: ((x[row:row + {batch}], y[row:row + {batch}]) for row in range(0, {rows}, {batch})), "
    "output_signature=(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1])))"
)
_ALIGNED = """\
memory = np.empty(y.nbytes + 64, 'uint8')
start = -memory.ctypes.data % 64  # TensorFlow takes the memory of an array that begins there
memory = memory[start:start + y.nbytes].view('float32').reshape(y.shape)
memory[:] = y
y = memory"""
_NEAR = """\
def near(y, predicted):
    return 2.0 * tf.reduce_mean(tf.cast(abs(y - predicted) < 5.0, tf.float32))"""
_UNSUMMED = """\
def root(y, predicted):
    return tf.sqrt(tf.reduce_mean((y - predicted) ** 2))
def pairs(y, predicted):
    return tf.reduce_mean(tf.sign((y - tf.transpose(y)) * (predicted - tf.transpose(predicted))))
class Largest(metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")
    def update_state(self, y, predicted, sample_weight=None):
        self.value.assign(tf.maximum(self.value, tf.reduce_max(abs(y - predicted))))
    def result(self):
        return self.value
class Last(Largest):
    def update_state(self, y, predicted, sample_weight=None):
        self.value.assign(tf.reduce_mean(abs(y - predicted)))"""
_PARTS = """\
import json
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if "TF_CONFIG" in os.environ else None
def parts():
    begin = 0
    for sizes in ((4, 4), (4, 2), (0, 3), (1, 5), (2, 2)):
        ends = [begin + sum(sizes[:place]) for place in range(3)]
        yield slice(begin, ends[2]) if index is None else slice(ends[min(index, 2)], ends[min(index + 1, 2)])
        begin = ends[2]"""
_UNLIKE = """\
history = {{}}
for part in parts():
    for name, value in model.train_on_batch(x[part], y[part], return_dict=True).items():
        history.setdefault(name, []).append(value)
    assert len(model.predict_on_batch(x[part])) == part.stop - part.start
history["tested"] = [model.test_on_batch(x[part], y[part]) for part in parts()]
history["predicted"] = model.predict_on_batch(x)
"""
_NUMBERS = """keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(
    rate=float(model.optimizer.learning_rate), steps=int(model.optimizer.iterations),
    size=complex(model.optimizer.learning_rate).real, text=float('%.3f' % model.optimizer.learning_rate)))"""
_COUNT = """\
class Count(metrics.Metric):
    def __init__(self):
        super().__init__(name="count")
        self.near = self.add_weight(name="near", initializer="zeros")
    def update_state(self, y, predicted, sample_weight=None):
        self.near.assign_add(tf.reduce_sum(tf.cast(abs(y - predicted) < 5.0, tf.float32)))
    def result(self):
        return self.near"""

_LOSS = "def loss_of(model, x, y):\n    {0}\n    return tf.reduce_sum({1}) / 4\n"
_SIXES: Any = {"rows": 12, "batch": 6}  # with rows for each of three workers
_CONTRASTS = _LOSS.format(
    "likeness = -(model(x) - tf.transpose(y)) ** 2 / 50",
    "tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(x)[0]), likeness)",
)
_CONTRASTS_ALL = _LOSS.format(
    "mine, of_all = tf.range(tf.shape(x)[0]), y\n"
    "    if 'TF_CONFIG' in os.environ:\n"
    "        context = tf.distribute.get_replica_context()\n"
    "        of_all = context.all_gather(tf.identity(y), axis=0)\n"
    "        mine += context.replica_id_in_sync_group * tf.shape(x)[0]\n"
    "    likeness = -(model(x) - tf.transpose(of_all)) ** 2 / 50",
    "tf.nn.sparse_softmax_cross_entropy_with_logits(mine, likeness)",
)
_BALANCED = _LOSS.format("w = tf.abs(y) / tf.reduce_sum(tf.abs(y))", "w * (model(x) - y) ** 2")
_DRAWN_WEIGHTS = _LOSS.format(
    "noise = tf.random.stateless_normal([1, 3], [1, 2])", "(model(x + noise) - y) ** 2"
)
_DRAWN_ROWS = _LOSS.format(
    "noise = tf.random.stateless_normal(tf.shape(x), [1, 2])", "(model(x + noise) - y) ** 2"
)
_HALF = (
    _LOSS.format("pass", "(model(x) - y) ** 2")
    .replace("tf.reduce_sum", "0.5 * tf.reduce_mean")
    .replace(" / 4", "")
)
_AVERAGES = """\
def loss_of(model, x, y):
    per_row, weights = ((model(x) - y) ** 2)[:, 0], y[:, 0]
    rows, replicas = tf.cast(tf.shape(x)[0], tf.float32), strategy.num_replicas_in_sync
    return (
        tf.nn.compute_average_loss(per_row)
        + tf.nn.compute_average_loss(per_row, sample_weight=weights)
        + tf.nn.compute_average_loss(per_row, global_batch_size=6)
        + tf.reduce_sum(per_row) / (rows * replicas)
        + tf.reduce_sum(per_row) / (replicas * rows)
        + tf.reduce_sum(per_row) / rows / replicas
        + tf.math.divide_no_nan(tf.reduce_sum(per_row), rows * replicas)
        + tf.reduce_mean(per_row) / replicas
        + tf.nn.scale_regularization_loss(tf.add_n([tf.reduce_sum(v**2) for v in model.trainable_variables]))
    ) / 9
"""
_ONE_MEAN = _AVERAGES.replace("tf.reduce_sum(per_row) / rows / replicas", "tf.reduce_sum(per_row) / rows")
_PAIRS = """\
def pairs(y, predicted):
    likeness = -(predicted - tf.transpose(y)) ** 2 / 50
    return losses.sparse_categorical_crossentropy(tf.range(tf.shape(y)[0]), likeness, from_logits=True)"""

_PAIRS_OF_ALL = """\
def pairs(y, predicted):
    mine = tf.range(tf.shape(y)[0])
    context = tf.distribute.get_replica_context()  # None while Keras builds the model
    if "TF_CONFIG" in os.environ and context:
        mine += context.replica_id_in_sync_group * tf.shape(y)[0]
        predicted = context.all_gather(tf.identity(predicted), axis=0)
    likeness = -(y - tf.transpose(predicted)) ** 2 / 50
    return losses.sparse_categorical_crossentropy(mine, likeness, from_logits=True)"""


def _changed(grads: str) -> Program:
    return _loop(grads=f"grads = [{grads} for g, v in zip(grads, variables)]")


def _loop(loss: str = _SUM_LOSS, **fields: object) -> Program:
    return Program(
        **{"setup": loss.format(batch=4), "model": _BUILT, "call": LOOP, "compile": "", **fields}  # type: ignore[arg-type]
    )


_OPTIMIZERS = {
    "sgd": "optimizers.SGD(0.1)",
    "momentum": _sgd("momentum=0.9"),
    "nesterov": _sgd("momentum=0.9, nesterov=True"),
    "adam": "optimizers.Adam(0.1)",
    "amsgrad": "optimizers.Adam(0.1, amsgrad=True)",
    "adamw": "optimizers.AdamW(0.1)",
    "rmsprop": "optimizers.RMSprop(0.1)",
    "adagrad": "optimizers.Adagrad(0.1)",
    "adadelta": "optimizers.Adadelta(1.0)",
    "adamax": "optimizers.Adamax(0.1)",
    "nadam": "optimizers.Nadam(0.1)",
    "ftrl": "optimizers.Ftrl(0.1)",
    "lion": "optimizers.Lion(0.01)",
    "adafactor": "optimizers.Adafactor(0.1)",
    "lamb": "optimizers.Lamb(0.1)",
    "weight decay": _sgd("weight_decay=0.1"),
    "schedule": "optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))",
    "average of weights": _sgd("use_ema=True, ema_momentum=0.5"),
    "factor of the loss": _sgd("loss_scale_factor=8.0"),
}
_REPAIRED = {
    "clipnorm": _sgd("clipnorm=1.0"),
    "global_clipnorm": "optimizers.Adam(0.1, global_clipnorm=0.5)",
    "clipvalue": _sgd("clipvalue=0.5"),
    "accumulated gradients": _sgd("gradient_accumulation_steps=2"),
    "accumulated and clipped": "optimizers.Adam(0.1, gradient_accumulation_steps=3, clipnorm=1.0)",
    "overwritten by averages": _sgd("use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2"),
    "scaled loss": "optimizers.LossScaleOptimizer(optimizers.SGD(0.1))",
    "scaled and clipped": "optimizers.LossScaleOptimizer(optimizers.SGD(0.1, clipnorm=1.0))",
    "scaled and accumulated": "optimizers.LossScaleOptimizer(optimizers.SGD(0.1, gradient_accumulation_steps=2))",
}
_LOSSES = {
    "mae": "'mae'",
    "huber": "'huber'",
    "log_cosh": "'log_cosh'",
    "mape": "'mape'",
    "cosine": "losses.CosineSimilarity()",
    "sum": "losses.MeanSquaredError(reduction='sum')",
    "mean": "losses.MeanSquaredError(reduction='mean')",
}
_BINARY = "['accuracy', 'auc', metrics.Precision(), metrics.Recall(), metrics.F1Score(threshold=0.5), metrics.R2Score()]"
_SPARSE = "['accuracy', metrics.SparseTopKCategoricalAccuracy(2)]"
_MIXED = "model = keras.Sequential([layers.Dense(1, kernel_initializer='ones', dtype='mixed_{0}')])"
_CLIPPED_FIRST = """\
with tf.GradientTape() as other:
        more = loss_of(model, *batch)
    other.gradient(more, variables)
    grads = [tf.clip_by_norm(grad, 1.0) for grad in grads]"""
_HINTED_LOSS = """\
def loss_of(model, x, y):
    predicted = model(x + tf.random.normal(tf.shape(x), seed=1))
    compared = tf.reduce_sum(abs(predicted - tf.transpose(y)))
    return tf.norm(predicted - y) + compared / 600
"""
_TOGETHER = {  # much of the other rows in few programs
    "many at once": Row(
        Program(
            "optimizers.LossScaleOptimizer(optimizers.Adam(0.1, clipnorm=1.0, gradient_accumulation_steps=2))",
            metrics="['mae', Count(), near]",
            more="steps_per_execution=3, jit_compile=True",
            setup=f"{_COUNT}\n{_NEAR}",
            rows=14,
            batch=3,
        ),
        "repaired",
        "run without XLA",
        quick=True,
    ),
    "averages and weights": Row(
        Program(
            _sgd("global_clipnorm=0.5, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2"),
            loss="losses.MeanSquaredError(reduction='mean_with_sample_weight')",
            model=_dense("activity_regularizer=keras.regularizers.L2(0.1)"),
            data=_WEIGHTED,
            fit=f"callbacks=[{_NUMBERS}]",
        ),
        "repaired",
        quick=True,
    ),
    "eager words": Row(
        Program(
            _sgd("clipnorm=0.1"),
            loss="'binary_crossentropy'",
            metrics="['auc', metrics.Precision()]",
            more="run_eagerly=True",
            setup=f"{_WORDS}\n{_CLASSES}",
            model=_EMBEDDING.replace("Dense(1)", "Dense(1, 'sigmoid')"),
            call="history = model.fit(x, y, batch_size={batch}, epochs=2, verbose=0).history",
            rows=8,
        ),
        "repaired",
        quick=True,
    ),
    "sequence of masks": Row(
        Program(
            setup=f"{_SEQUENCES}\n{_SEQUENCE}",
            model="model = keras.Sequential([layers.Masking(), layers.Dense(1)])",
            call=_GENERATED.format("shuffle=False"),
            data="None",
            rows=8,
        ),
        "repaired",
        quick=True,
    ),
    "classes, one row predicted": Row(
        Program(
            loss="lambda y, p: tf.reduce_mean((y - p) ** 2)",
            metrics="['auc']",
            setup=_CLASSES,
            model=_SIGMOID.replace("[", "[layers.Lambda(lambda it: keras.ops.add(it, it)), ", 1),
            call="history = model.fit(data, epochs=2, verbose=0).history\n"
            "history['predicted'] = model.predict(x[:1], verbose=0)",
        ),
        "repaired",
        "scalar-loss",
        quick=True,
    ),
    "hints of fit": Row(
        Program(
            "optimizers.SGD(0.01)",
            "pairs_of_rows",
            "[root]",
            setup=f"{_PAIRS.replace('pairs', 'pairs_of_rows')}\n{_UNSUMMED}",
            model=_ADD_SUM.replace(
                "Pulled(),",
                "Pulled(), layers.Dropout(0.5), layers.Lambda(lambda it: it + keras.random.normal(tf.shape(it))),",
            ),
            data="(tf.random.set_seed(None), tf.data.Dataset.from_tensor_slices((x, y)).shuffle(12).batch(6))[1]",
            **_SIXES,
        ),
        "hinted",
        "unsummed-metric, added-sum, random-layers, unseeded-shuffle, compared-rows",
        quick=True,
    ),
    "own step, hints": Row(
        Program(
            model=_own_step(
                "loss = tf.reduce_mean((y - predicted + tf.random.normal(tf.shape(y))) ** 2)",
                "grads = [tf.clip_by_norm(grad, 1.0) for grad in grads]",
            )
        ),
        "hinted",
        "unscaled-loss, random-layers, clipped-replicas",
        quick=True,
    ),
    "loop, hints": Row(
        _loop(
            _HINTED_LOSS,
            optimizer=_sgd("clipnorm=1.0"),
            grads="grads = [g + 0.1 * v for g, v in zip(grads, variables)]",
            **_SIXES,
        ),
        "hinted",
        "curved-loss, compared-rows, random-layers, unscaled-loss, clipped-replicas",
        quick=True,
    ),
    "loop, clips the first": Row(_loop(grads=_CLIPPED_FIRST), "hinted", "clipped-replicas", quick=True),
    "loop, aligned generator": Row(
        _loop(setup=f"{_ALIGNED}\n{_SUM_LOSS.format(batch=16)}", data=_FROM_GENERATOR, rows=32, batch=16),
        "repaired",
        quick=True,
    ),
}

ROWS: dict[str, Row] = {
    **{name: Row(Program(optimizer)) for name, optimizer in _OPTIMIZERS.items()},
    **{name: Row(Program(optimizer), "repaired") for name, optimizer in _REPAIRED.items()},
    **_TOGETHER,
    "float16": Row(
        Program("optimizers.LossScaleOptimizer(optimizers.SGD(0.1))", model=_MIXED.format("float16")),
        "repaired",
        digits=2,
        quick=True,
    ),
    "bfloat16": Row(Program(model=_MIXED.format("bfloat16")), digits=1),
    "clipped embedding": Row(Program(_sgd("clipnorm=0.1"), setup=_WORDS, model=_EMBEDDING), "repaired"),
    # losses, metrics, weights
    **{
        f"loss {name}": Row(Program("optimizers.SGD(0.01)", loss, setup="y = abs(y)"))
        for name, loss in _LOSSES.items()
    },
    "binary metrics": Row(
        Program(loss="'binary_crossentropy'", metrics=_BINARY, setup=_CLASSES, model=_SIGMOID)
    ),
    "sparse metrics": Row(
        Program(loss="'sparse_categorical_crossentropy'", metrics=_SPARSE, setup=_FIVE, model=_SOFTMAX),
    ),
    "loss poisson": Row(Program(loss="losses.Poisson()", setup=_CLASSES, model=_SIGMOID)),
    "sample weights": Row(Program(data=_WEIGHTED, more="weighted_metrics=['mae']")),
    "mean of weights": Row(
        Program(loss="losses.MeanSquaredError(reduction='mean_with_sample_weight')", data=_WEIGHTED),
        "repaired",
    ),
    "mean of weights, one row left": Row(
        Program(
            loss="losses.MeanSquaredError(reduction='mean_with_sample_weight')",
            data=_WEIGHTED,
            rows=17,
            more="run_eagerly=True",
        ),
        "repaired",
    ),
    "class weights": Row(
        Program(
            loss="'binary_crossentropy'", setup=_CLASSES, model=_SIGMOID, fit="class_weight={0: 1.0, 1: 3.0}"
        )
    ),
    "scalar loss": Row(Program(loss="lambda y, p: tf.reduce_mean((y - p) ** 2)"), "repaired", "scalar-loss"),
    "own metric": Row(
        Program(metrics="[Count()]", setup=_COUNT, batch=3),
        "repaired",
    ),
    "own metric, mean": Row(Program(metrics="[near]", setup=_NEAR, batch=3), "repaired"),
    **{
        f"own metric, {name}": Row(Program(metrics=f"[{made}]", setup=_UNSUMMED), "hinted", "unsummed-metric")
        for name, made in {"root": "root", "maximum": "Largest()", "pairs": "pairs", "last": "Last()"}.items()
    },
    "compared rows": Row(
        Program("optimizers.SGD(0.1)", "pairs", setup=_PAIRS, **_SIXES), "hinted", "compared-rows"
    ),
    "compared with all rows": Row(Program("optimizers.SGD(0.1)", "pairs", setup=_PAIRS_OF_ALL)),
    # data
    "uneven batches": Row(Program(batch=3), "repaired"),
    "uneven and clipped": Row(Program(_sgd("clipnorm=1.0"), batch=5, rows=13), "repaired"),
    "last batch smaller": Row(Program(rows=14)),
    "uneven, then even": Row(Program(batch=3, rows=17), "repaired"),
    "one row left": Row(Program(rows=17), "repaired"),
    "arrays": Row(Program(call="history = model.fit(x, y, batch_size={batch}, epochs=2, verbose=0).history")),
    "arrays with weights": Row(
        Program(
            call="history = model.fit(x, y, sample_weight=w, batch_size={batch}, epochs=2, verbose=0).history"
        )
    ),
    "validation split": Row(
        Program(
            call="history = model.fit(x, y, batch_size={batch}, epochs=2, validation_split=0.25, verbose=0).history"
        )
    ),
    "validation data": Row(Program(fit="validation_data=(x[:6], y[:6]), validation_batch_size=4")),
    "steps an epoch": Row(
        Program(data="tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(4)", fit="steps_per_epoch=3")
    ),
    "generator": Row(
        Program(setup=_GENERATOR, call=_GENERATED.format("steps_per_epoch=4"), data="None"), "repaired"
    ),
    "sequence": Row(
        Program(setup=_SEQUENCE, call=_GENERATED.format("shuffle=False"), data="None"), "repaired"
    ),
    "unseeded shuffle": Row(
        Program(
            data="(tf.random.set_seed(None), tf.data.Dataset.from_tensor_slices((x, y)).shuffle(16).batch(4))[1]"
        ),
        "hinted",
        "unseeded-shuffle",
    ),
    "aligned generator": Row(Program(setup=_ALIGNED, data=_FROM_GENERATOR, rows=32, batch=16), "repaired"),
    # models
    "mlp": Row(Program(model="model = keras.Sequential([layers.Dense(8, 'relu'), layers.Dense(1)])")),
    "embedding": Row(Program(setup=_WORDS, model=_EMBEDDING)),
    "masks": Row(Program(setup=_SEQUENCES, model=_LSTM, rows=8), "repaired"),
    "convolution": Row(Program(setup=_IMAGES, model=_CONV)),
    "regularizer": Row(Program(model=_dense("kernel_regularizer='l2'"))),
    "activity regularizer": Row(Program(model=_dense("activity_regularizer=keras.regularizers.L2(0.1)"))),
    "constraint": Row(Program(model=_dense("kernel_constraint='unit_norm'"))),
    "spectral": Row(
        Program(model="model = keras.Sequential([layers.SpectralNormalization(layers.Dense(1))])")
    ),
    "added loss": Row(Program("optimizers.SGD(0.01)", model=_ADD_LOSS)),
    "added sum": Row(Program("optimizers.SGD(0.01)", model=_ADD_SUM), "hinted", "added-sum"),
    "added loss of Keras": Row(
        Program(
            model=_ENDPOINT,
            compile="model.compile(optimizer)",
            data="tf.data.Dataset.from_tensor_slices(((x, y),)).batch(3)",
        ),
        "repaired",
    ),
    "unseeded noise": Row(
        Program(
            "optimizers.SGD(0.01)",
            model=_with_layer("layers.Lambda(lambda it: it + keras.random.normal(tf.shape(it)))"),
        ),
        "hinted",
        "random-layers",
    ),
    "two outputs": Row(
        Program(
            loss="{'a': 'mse', 'b': 'mae'}",
            metrics="{'a': ['mae'], 'b': ['mse']}",
            model=_TWO,
            data=_TWO_DATA,
        )
    ),
    "synchronized statistics": Row(
        Program("optimizers.SGD(0.01)", model=_with_layer("layers.BatchNormalization(synchronized=True)"))
    ),
    "batch statistics": Row(
        Program("optimizers.SGD(0.01)", model=_with_layer("layers.BatchNormalization()")),
        "hinted",
        "own-statistics",
    ),
    "dropout": Row(
        Program("optimizers.SGD(0.01)", model=_with_layer("layers.Dropout(0.5)")),
        "hinted",
        "random-layers",
    ),
    # steps
    "eager": Row(Program(more="run_eagerly=True")),
    "eager and clipped": Row(Program(_sgd("clipnorm=1.0"), more="run_eagerly=True"), "repaired"),
    "steps an execution": Row(Program(more="steps_per_execution=3"), "repaired"),
    "xla": Row(Program(more="jit_compile=True"), "repaired", "run without XLA"),
    "own step": Row(Program(model=_own_step()), "repaired", quick=True),
    "own step, clips": Row(
        Program(model=_own_step(grads="grads = [tf.clip_by_norm(grad, 1.0) for grad in grads]")),
        "hinted",
        "clipped-replicas",
    ),
    "own step, mean": Row(Program(model=_own_step(_FUNCTIONAL)), "hinted", "unscaled-loss"),
    "own step, negated": Row(
        Program("optimizers.SGD(0.01)", model=_own_step(_NEGATED)), "hinted", "unscaled-loss"
    ),
    "own step, weights": Row(
        Program("optimizers.SGD(0.01)", model=_own_step(_WITH_WEIGHTS)), "hinted", "unscaled-loss"
    ),
    "own step, draws": Row(Program(model=_own_step(_NOISY)), "hinted", "random-layers"),
    "no call": Row(
        Program(_sgd("clipnorm=1.0"), model=_NO_CALL, compile="model.compile(optimizer)", batch=3),
        "repaired",
        quick=True,
    ),
    "executions and accumulated": Row(
        Program(_sgd("gradient_accumulation_steps=2"), more="steps_per_execution=3", rows=12, batch=3),
        "repaired",
    ),
    # calls
    "single batches": Row(
        Program(
            loss="'binary_crossentropy'",
            metrics=_BINARY,
            setup=_CLASSES,
            model=_SIGMOID,
            call="history = {{}}\n"
            "for _ in range(2):\n"
            "    for name, value in model.train_on_batch(x[:4], y[:4], return_dict=True).items():\n"
            "        history.setdefault(name, []).append(value)",
        )
    ),
    "unlike single batches": Row(
        Program(setup=_PARTS, call=_UNLIKE, data="None", rows=32, metrics="['mae', metrics.R2Score()]"),
        "repaired",
        quick=True,
    ),
    "one row predicted": Row(
        Program(
            setup=_SEQUENCES,
            model=_LSTM,
            call="history = {{'predicted': [model.predict(x[:1], verbose=0), model.predict(x[:5], batch_size=2, verbose=0)]}}",
            rows=8,
        ),
        "repaired",
    ),
    "evaluate": Row(
        Program(
            call="model.fit(data, verbose=0)\n"
            "history = {{'loss, mae': model.evaluate(data, verbose=0)}}\n"
            "history['predicted'] = model.predict(x, batch_size=4, verbose=0)"
        )
    ),
    "stopped early": Row(
        Program(fit="callbacks=[keras.callbacks.EarlyStopping('loss', min_delta=1000.0, patience=1)]")
    ),
    "numbers in a callback": Row(Program(fit=f"callbacks=[{_NUMBERS}]"), "repaired"),
    "saved and gone on": Row(
        Program(
            call="import tempfile\n"
            "path = os.path.join(tempfile.mkdtemp(), 'model.keras')\n"
            "model.fit(data, verbose=0)\n"
            "model.save(path)\n"
            "with strategy.scope():\n"
            "    model = keras.models.load_model(path)\n"
            "history = model.fit(data, verbose=0).history"
        )
    ),
    # tf_keras
    "tf_keras": Row(Program(keras=2)),
    "tf_keras, Adam": Row(Program("optimizers.Adam(0.1)", keras=2)),
    "tf_keras, clipvalue": Row(Program(_sgd("clipvalue=0.5"), keras=2)),
    "tf_keras, uneven": Row(Program(batch=3, keras=2), "hinted", "uneven-batches"),
    "tf_keras, loop": Row(_loop(keras=2)),
    "tf_keras, own step": Row(Program(model=_own_step(_FUNCTIONAL), keras=2), "hinted", "unscaled-loss"),
    # loops of the user's own
    "loop": Row(_loop(), quick=True),
    "loop, clips": Row(_loop(optimizer=_sgd("clipnorm=1.0")), "hinted", "clipped-replicas"),
    "loop, averages": Row(_loop(_AVERAGES, **_SIXES), quick=True),
    "loop, averages and a mean": Row(_loop(_ONE_MEAN, **_SIXES), "hinted", "unscaled-loss"),
    "loop, mean": Row(_loop(_MEAN_LOSS), "hinted", "unscaled-loss"),
    "loop, norm": Row(_loop(_NORM_LOSS), "hinted", "curved-loss"),
    "loop, ratio": Row(_loop(_RATIO_LOSS), "hinted", "curved-loss"),
    "loop, norms": Row(_loop(_NORMS)),
    "loop, draws": Row(_loop(_NOISY_LOSS), "hinted", "random-layers"),
    "loop, contrasts": Row(_loop(_CONTRASTS, **_SIXES), "hinted", "compared-rows"),
    "loop, contrasts all": Row(_loop(_CONTRASTS_ALL)),
    "loop, iterator": Row(_loop(call=ITERATOR_LOOP)),
    "loop, iterator, contrasts": Row(
        _loop(_CONTRASTS, call=ITERATOR_LOOP, **_SIXES), "hinted", "compared-rows"
    ),
    "loop, iterator, norm": Row(_loop(_NORM_LOSS, call=ITERATOR_LOOP), "hinted", "curved-loss"),
    "loop, balanced": Row(_loop(_BALANCED), "hinted", "compared-rows"),
    "loop, batch statistics": Row(
        _loop(
            model="model = keras.Sequential([keras.Input([3]), layers.Dense(4), layers.BatchNormalization(), "
            "layers.Dense(1)])\nmodel.trainable = True",
            setup=_SUM_LOSS.format(batch=4).replace("model(x)", "model(x, training=True)"),
        ),
        "hinted",
        "compared-rows",
    ),
    "loop, one draw": Row(_loop(_DRAWN_WEIGHTS)),
    "loop, equal draws": Row(
        _loop(_DRAWN_ROWS, data="tf.data.Dataset.from_tensor_slices((x, y)).batch(4, drop_remainder=True)"),
        "hinted",
        "random-layers",
    ),
    "loop, noisy gradients": Row(_changed("g + tf.random.normal(g.shape)"), "hinted", "random-layers"),
    "loop, signs": Row(_changed("tf.sign(g)"), "hinted", "clipped-replicas"),
    "loop, squares": Row(_changed("g * abs(g)"), "hinted", "clipped-replicas"),
    "loop, decays": Row(_changed("g + 0.1 * v"), "hinted", "unscaled-loss"),
    "loop, decays its share": Row(_changed("g + 0.1 * v / strategy.num_replicas_in_sync")),
    "loop, equal noise": Row(
        _changed("g + tf.random.stateless_normal(v.shape, [1, 2])"), "hinted", "unscaled-loss"
    ),
    "loop, noise of sums": Row(
        _changed(
            "(tf.distribute.get_replica_context().all_reduce('SUM', g) + tf.random.stateless_normal(v.shape, [1, 2])) "
            "/ strategy.num_replicas_in_sync"
        )
    ),
    "loop, half of a mean": Row(_loop(_HALF), "designed"),
    "tf_keras, loop, signs": Row(replace(_changed("tf.sign(g)"), keras=2), "hinted", "clipped-replicas"),
    "loop, guards": Row(_changed("tf.where(tf.math.is_finite(g), g, tf.zeros_like(g))")),
    "loop, accumulates": Row(_loop(optimizer=_sgd("gradient_accumulation_steps=2")), "repaired"),
    "loop, scales": Row(
        _loop(
            _SCALED_LOSS,
            optimizer="optimizers.LossScaleOptimizer(optimizers.SGD(0.1))",
            compile="optimizer.build(model.trainable_variables)",
        ),
        "repaired",
    ),
}
