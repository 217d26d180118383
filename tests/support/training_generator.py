"""Training programs that are drawn from a seed: the dimensions of the table, combined at random.

Each is to train on several workers what it trains in one process, or a hint is to say why not.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from training_programs import LOOP, Program


@dataclass(frozen=True, slots=True)
class Problem:
    """What a model is to learn.

    Attributes:
        setup: Lines that make other arrays `x` and `y`.
        models: Lists of layers, or whole models.
        y: The targets of some rows, `{0}`.
        weights: The weights of these rows.
    """

    setup: str
    models: tuple[str, ...]
    losses: tuple[str, ...]
    metrics: tuple[str, ...]
    y: str = "y{0}"
    weights: str = "w{0}"


_ADDED = """\
class Pulled(layers.Layer):
    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(inputs ** 2))
        return inputs
"""
_TWO = """\
inputs = keras.Input([3])
hidden = layers.Dense(4, 'tanh')(inputs)
model = keras.Model(inputs, {'a': layers.Dense(1, name='a')(hidden), 'b': layers.Dense(1, name='b')(hidden)})"""
_SEQUENCES = """\
x = draw.normal(size=(len(y), 4, 2)).astype('float32')
for row in range(len(x)):
    x[row, 1 + row % 4:] = 0.0
y = np.repeat(y[:, None], 4, axis=1) + np.arange(4, dtype='float32')[:, None]"""
_DENSE = (
    "layers.Dense(1, kernel_initializer='ones')",
    "layers.Dense(8, 'tanh'), layers.Dense(1)",
    "layers.Dense(4, 'gelu', kernel_regularizer='l2'), layers.Dense(1)",
    "layers.Dense(4, 'tanh', activity_regularizer=keras.regularizers.L2(0.1)), layers.Dense(1)",
    "layers.Dense(4, 'tanh', kernel_constraint='unit_norm'), layers.Dense(1)",
    "layers.Dense(4), layers.LayerNormalization(), layers.Dense(1)",
    "layers.Dense(4, 'tanh'), layers.BatchNormalization(synchronized=True), layers.Dense(1)",
    "layers.Dense(4, 'tanh'), layers.BatchNormalization(), layers.Dense(1)",
    "layers.Dense(4, 'tanh'), layers.Dropout(0.5), layers.Dense(1)",
    "layers.Dense(4, 'tanh'), Pulled(), layers.Dense(1)",
    "layers.Dense(4, 'tanh', dtype='mixed_bfloat16'), layers.Dense(1)",
)


def _loss(name: str) -> tuple[str, ...]:
    return tuple(
        f"losses.{name}({reduction})"
        for reduction in ("", "reduction='sum'", "reduction='mean'", "reduction='mean_with_sample_weight'")
    )


PROBLEMS = (
    Problem(
        "",
        _DENSE,
        (
            *(_loss("MeanSquaredError") + _loss("MeanAbsoluteError") + _loss("Huber") + _loss("LogCosh")),
            "'mse'",
            "lambda y, p: tf.reduce_mean((y - p) ** 2)",
            "lambda y, p: (y - p) ** 2",
        ),
        (
            "'mae'",
            "metrics.RootMeanSquaredError()",
            "metrics.R2Score()",
            "metrics.MeanAbsolutePercentageError()",
        ),
    ),
    Problem(
        "y = (y > 0).astype('float32')",
        tuple(f"{it}, layers.Activation('sigmoid')" for it in _DENSE),
        (*_loss("BinaryCrossentropy"), *_loss("BinaryFocalCrossentropy"), "'hinge'", "losses.Poisson()"),
        (
            *("'accuracy'", "'auc'", "metrics.Precision()", "metrics.Recall()", "metrics.BinaryIoU()"),
            *(
                "metrics.F1Score(threshold=0.5)",
                "metrics.SensitivityAtSpecificity(0.5)",
                "metrics.TruePositives()",
            ),
        ),
    ),
    Problem(
        "y = (np.arange(len(x)) % 5).astype('int64')",
        ("layers.Dense(5, 'softmax')", "layers.Dense(6, 'tanh'), layers.Dense(5, 'softmax')"),
        _loss("SparseCategoricalCrossentropy"),
        ("'accuracy'", "metrics.SparseTopKCategoricalAccuracy(2)", "metrics.SparseCategoricalCrossentropy()"),
    ),
    Problem(
        "y = np.eye(5, dtype='float32')[np.arange(len(x)) % 5]",
        ("layers.Dense(5, 'softmax')", "layers.Dense(6, 'tanh'), layers.Dense(5, 'softmax')"),
        (*_loss("CategoricalCrossentropy"), *_loss("KLDivergence"), *_loss("CosineSimilarity")),
        (
            "'accuracy'",
            "metrics.F1Score('macro')",
            "metrics.CosineSimilarity()",
            "metrics.AUC(multi_label=True)",
        ),
    ),
    Problem(
        _SEQUENCES,
        (
            "layers.Masking(), layers.LSTM(3, return_sequences=True), layers.Dense(1)",
            "layers.Masking(), layers.GRU(3, return_sequences=True), layers.TimeDistributed(layers.Dense(1))",
            "layers.LSTM(3, return_sequences=True), layers.Dense(1)",
        ),
        (*_loss("MeanSquaredError"), *_loss("MeanAbsoluteError"), "'mse'"),
        ("'mae'", "metrics.RootMeanSquaredError()", "'mse'"),
        weights="np.repeat(w{0}[:, None], 4, axis=1)",
    ),
    Problem(
        "x = (np.arange(3 * len(y)).reshape(-1, 3) % 7).astype('int32')",
        (
            "layers.Embedding(7, 4), layers.Flatten(), layers.Dense(1)",
            "layers.Embedding(7, 4, mask_zero=True), layers.GlobalAveragePooling1D(), layers.Dense(1)",
        ),
        (*_loss("MeanSquaredError"), "'mae'"),
        ("'mae'", "'mse'"),
    ),
    Problem(
        "",
        (_TWO,),
        (
            "{'a': 'mse', 'b': 'mae'}",
            "{'a': losses.MeanSquaredError(reduction='sum'), 'b': losses.Huber()}",
            "'mse'",
        ),
        (),
        y="dict(a=y{0}, b=-y{0})",
        weights="dict(a=w{0}, b=2 * w{0})",
    ),
)
_OPTIMIZERS = (
    *("SGD({rate}", "SGD({rate}, momentum=0.9", "SGD({rate}, momentum=0.9, nesterov=True", "Adam(0.05"),
    *("Adam(0.05, amsgrad=True", "AdamW(0.05", "RMSprop(0.05", "Adagrad(0.1", "Adadelta(1.0", "Adamax(0.05"),
    *("Nadam(0.05", "Ftrl(0.1", "Lion(0.01", "Adafactor(0.05", "Lamb(0.05"),
    "SGD(optimizers.schedules.ExponentialDecay({rate}, 2, 0.5)",
)
_CLIPS = ("clipnorm=0.5", "global_clipnorm=0.5", "clipvalue=0.1")
_AVERAGES = ("use_ema=True, ema_momentum=0.5", "use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2")
_OWN_STEP = """\
class Own(keras.Sequential):
    def train_step(self, batch):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted, weights)
            scaled = self.optimizer.scale_loss(loss)
        grads = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(y)[0])
        return self.compute_metrics(x, y, predicted, weights)
"""
_GENERATOR = """\
def batches(*arrays):
    while True:
        for start in range(0, len(arrays[0]), {batch}):
            yield tuple(array[start:start + {batch}] for array in arrays)
"""
_SEQUENCE = """\
class Batches(keras.utils.PyDataset):
    def __init__(self, *arrays):
        super().__init__()
        self.arrays = arrays
    def __len__(self):
        return -(-len(self.arrays[0]) // {batch})
    def __getitem__(self, index):
        return tuple(array[index * {batch}:(index + 1) * {batch}] for array in self.arrays)
"""
_SETS = (
    "tf.data.Dataset.from_tensor_slices(({arrays})).batch({{batch}})",
    "tf.data.Dataset.from_tensor_slices(({arrays})).batch({{batch}}, drop_remainder=True)",
    "tf.data.Dataset.from_tensor_slices(({arrays})).shuffle(16, seed=3).batch({{batch}})",
    "tf.data.Dataset.from_tensor_slices(({arrays})).cache().batch({{batch}}).prefetch(2)",
    "tf.data.Dataset.from_tensor_slices(({arrays})).batch({{batch}}).map(lambda *parts: parts)",
)
_PLATEAU = "keras.callbacks.ReduceLROnPlateau('val_loss', 0.1, patience=0, min_delta=1000.0)"
_CALLBACKS = (
    "keras.callbacks.EarlyStopping('loss', min_delta=1000.0, patience=1, restore_best_weights=True)",
    _PLATEAU,
    "keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(more=logs['loss']))",
)
_PART = """\
import json
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if "TF_CONFIG" in os.environ else None
def part_of(step):  # the rows of this worker, which has more or fewer of them than the other one
    begin, middle, end = step, step + 1 + step % ({batch} - 1), step + {batch}
    return slice(begin, end) if index is None else slice(*((begin, middle), (middle, end))[index])
"""
_BATCHES = """\
history = {{{{}}}}
for part in map(part_of, range(3)):
    found = model.train_on_batch(x[part], {y}, {weights}, return_dict=True)
    for name, value in found.items():
        history.setdefault(name, []).append(value)
history['tested'] = keras.tree.flatten(model.test_on_batch(x[part], {y}))
history['predicted'] = keras.tree.flatten(model.predict_on_batch(x))
"""
_FIT = "history = model.fit({data}, epochs=2, verbose=0{options}).history\n"
_EVALUATE = "history['evaluated'] = keras.tree.flatten(model.evaluate({data}, verbose=0))\n"
_PREDICT = "history['predicted'] = keras.tree.flatten(model.predict(x, batch_size={{batch}}, verbose=0))\n"
_SIZES = ((16, 4), (16, 4), (16, 8), (16, 3), (13, 5), (17, 4), (14, 4), (15, 7), (12, 6), (17, 3))
_SUM = (
    "def loss_of(model, x, y):\n    return optimizer.scale_loss(tf.reduce_sum((model(x) - y) ** 2) / {0})\n"
)
_MEAN = "def loss_of(model, x, y):\n    return optimizer.scale_loss(tf.reduce_mean((model(x) - y) ** 2))\n"


def drawn(seed: int) -> Program:
    """Return a program; the same one for the same seed."""
    draw = Random(seed)
    rows, batch = draw.choice(_SIZES)
    if draw.random() < 0.06:
        return _loop(draw, rows, batch)
    problem = draw.choice(PROBLEMS)
    layers, loss = draw.choice(problem.models), draw.choice(problem.losses)
    is_weighted = draw.random() < 0.4 and "tf.reduce_mean" not in loss  # a scalar takes no weights
    setup, data, call = _call(draw, problem, rows, batch, is_weighted)
    optimizer = _optimizer(draw, loss, "Embedding" in layers)
    if "schedules" in optimizer:  # whose rate Keras does not let a callback set
        call = call.replace(_PLATEAU, "keras.callbacks.TerminateOnNaN()")
    return Program(
        optimizer,
        loss,
        f"[{', '.join(draw.sample(problem.metrics, min(2, len(problem.metrics))))}]",
        _more(draw, problem),
        f"{problem.setup}\n{setup}",
        _model(draw, layers),
        call=call,
        data=data,
        rows=rows,
        batch=batch,
    )


def _optimizer(draw: Random, loss: str, has_slices: bool) -> str:
    rate = 0.005 if any(word in loss for word in ("sum", "lambda", "Squared", "mse")) else 0.05
    words = [draw.choice(_OPTIMIZERS).format(rate=rate)]
    words += [draw.choice(_CLIPS)] * (draw.random() < 0.35)
    words += [f"gradient_accumulation_steps={draw.choice((2, 3))}"] * (draw.random() < 0.25)
    words += [draw.choice(_AVERAGES)] * (draw.random() < 0.2)
    words += ["weight_decay=0.01"] * (draw.random() < 0.15 and "AdamW" not in words[0])
    how = 1.0 if has_slices else draw.random()  # Keras cannot divide the gradients of an embedding
    words += ["loss_scale_factor=8.0"] * (how < 0.1)
    made = f"optimizers.{', '.join(words)})"
    return f"optimizers.LossScaleOptimizer({made}, initial_scale=64.0)" if 0.1 < how < 0.25 else made


def _more(draw: Random, problem: Problem) -> str:
    words = [f"weighted_metrics=[{problem.metrics[0]}]"] if problem.metrics and draw.random() < 0.2 else []
    how = draw.random()
    words += ["run_eagerly=True"] * (how < 0.15)
    words += [f"steps_per_execution={draw.choice((2, 3))}"] * (0.15 < how < 0.3)
    words += ["jit_compile=True"] * (0.3 < how < 0.35)
    return ", ".join(words)


def _model(draw: Random, layers: str) -> str:
    if layers.startswith("inputs"):
        return layers
    is_own = draw.random() < 0.15
    lines = (_ADDED if "Pulled" in layers else "") + (_OWN_STEP if is_own else "")
    return f"{lines}model = {'Own' if is_own else 'keras.Sequential'}([{layers}])"


def _call(draw: Random, problem: Problem, rows: int, batch: int, is_weighted: bool) -> tuple[str, str, str]:
    """Return lines for the setup of a program, its data set, and its calls."""
    kind = draw.choice(("set", "set", "set", "arrays", "arrays", "steps", "generator", "sequence", "batches"))
    if "dict" in problem.y and kind in ("generator", "sequence"):  # they divide arrays
        kind = "arrays"
    y, weights = problem.y.format(""), problem.weights.format("") if is_weighted else ""
    if kind == "batches":
        of_part = [words.format("[part]") for words in (problem.y, problem.weights)]
        return (
            _PART.format(batch=batch),
            "None",
            _BATCHES.format(y=of_part[0], weights=of_part[1] if is_weighted else "None"),
        )
    options, arrays = (
        _options(draw, problem, is_weighted or kind == "generator"),
        f"x, {y}" + f", {weights}" * is_weighted,
    )
    setup, data = "", "None"
    given = evaluated = f"x, {y}, batch_size={{batch}}" + f", sample_weight={weights}" * is_weighted
    if kind == "arrays":
        given += ", shuffle=False"
    elif kind == "set":
        data, given, evaluated = draw.choice(_SETS).format(arrays=arrays), "data", "data"
    elif kind == "steps":
        data, given = f"tf.data.Dataset.from_tensor_slices(({arrays})).repeat().batch({{batch}})", "data"
        options += ", steps_per_epoch=3"
    elif kind == "generator":
        setup, given = _GENERATOR.format(batch=batch), f"batches({arrays})"
        options += f", steps_per_epoch={-(-rows // batch)}"
    else:
        setup, given = _SEQUENCE.format(batch=batch), f"Batches({arrays})"
        options, evaluated = f"{options}, shuffle=False", given
    end = draw.choice(("", "", _EVALUATE, _PREDICT)).format(data=evaluated)
    return setup, data, _FIT.format(data=given, options=options) + end


def _options(draw: Random, problem: Problem, has_weights: bool) -> str:
    """Return further arguments of `fit`; a generator takes no weights of classes."""
    words = []
    if "y > 0" in problem.setup and not has_weights and draw.random() < 0.3:
        words.append("class_weight={{0: 1.0, 1: 3.0}}")
    if draw.random() < 0.2:
        words.append(f"callbacks=[{draw.choice(_CALLBACKS)}]")
    if draw.random() < 0.2:
        words.append(f"validation_data=(x[:6], {problem.y.format('[:6]')}), validation_batch_size=4")
    return "".join(f", {word}" for word in words)


def _loop(draw: Random, rows: int, batch: int) -> Program:
    """Return a loop of the user's own."""
    return Program(
        _optimizer(draw, "sum", False),
        setup=draw.choice((_SUM, _SUM, _MEAN)).format(batch),
        model="model = keras.Sequential([keras.Input([3]), layers.Dense(1, kernel_initializer='ones')])",
        compile="optimizer.build(model.trainable_variables)",
        call=LOOP,
        rows=rows,
        batch=batch,
    )
