"""Keras 3: fit with callbacks, custom loops, saving, preprocessing layers."""

# %% fit, evaluate and predict
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
x = np.arange(32, dtype="float32").reshape(-1, 1) / 32
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(4, "relu"), tf.keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
history = model.fit(x, 3 * x, epochs=2, batch_size=8, verbose=0, validation_split=0.25)
print({k: np.round(v, 5).tolist() for k, v in history.history.items()})
np.round(model.evaluate(x, 3 * x, verbose=0), 5).tolist(), model.predict(x[:2], verbose=0).shape

# %% the summary of a model
import tensorflow as tf
tf.keras.backend.clear_session()
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3), tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)])
model.summary()

# %% verbose output of fit
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
_ = model.fit(np.ones((4, 1)), np.ones((4, 1)), epochs=2, verbose=2)

# %% the progress bar of fit
import numpy as np, re, io, contextlib, tensorflow as tf
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
out = io.StringIO()
with contextlib.redirect_stdout(out):
    _ = model.fit(np.ones((4, 1)), np.ones((4, 1)), epochs=1, verbose=1)
text = re.sub(r"\x1b\[[\d;]*m|\x08", "", out.getvalue())
out = None
re.findall(r"Epoch 1/1|1/1|loss: [\d.]+", text)
text = ""

# %% callbacks of the user's own and of Keras
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
class Tell(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, sorted(logs))
    def on_train_end(self, logs=None):
        print("end")
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((8, 1))
callbacks = [Tell(), tf.keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1e9), tf.keras.callbacks.CSVLogger("log.csv"),
             tf.keras.callbacks.LearningRateScheduler(lambda e, lr: lr * 0.5), tf.keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True)]
model.fit(x, x, epochs=5, verbose=0, callbacks=callbacks)
open("log.csv").read().splitlines()[0]

# %% a callback that raises
import numpy as np, tensorflow as tf
class Stop(tf.keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        raise RuntimeError("stop here")
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=[Stop()])

# %% a callback of tensorboard
import numpy as np, os, tensorflow as tf
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0, callbacks=[tf.keras.callbacks.TensorBoard("tb_logs")])
sorted(os.listdir("tb_logs"))

# %% backup and restore
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
class Fails(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise RuntimeError("power cut")
def fit(*more):
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model.fit(np.ones((8, 1)), np.ones((8, 1)), epochs=4, verbose=0, callbacks=[tf.keras.callbacks.BackupAndRestore("backup"), *more])
try:
    fit(Fails())
except RuntimeError as error:
    print(error)
history = fit()
history.epoch
history = None

# %% shapes that do not fit
import numpy as np, tensorflow as tf
model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1, name="out")], name="wrong")
model.compile("sgd", "mse")
try:
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
except Exception as error:
    print(type(error).__name__, str(error)[:60])

# %% a functional model with two inputs
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
a, b = tf.keras.Input((2,), name="a"), tf.keras.Input((3,), name="b")
out = tf.keras.layers.Dense(1)(tf.keras.layers.Concatenate()([a, b]))
model = tf.keras.Model([a, b], out)
float(np.round(model([np.ones((1, 2)), np.ones((1, 3))]).numpy()[0, 0], 5))
a = b = out = model = None

# %% a layer and a model of the user's own
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
class Scale(tf.keras.layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones")
    def call(self, x):
        return x * self.w
class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.scale, self.dense = Scale(), tf.keras.layers.Dense(1)
    def call(self, x, training=False):
        return self.dense(self.scale(x))
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"own": loss}
net = Net()
net.compile("sgd")
h = net.fit(np.ones((4, 2), "float32"), np.ones((4, 1), "float32"), verbose=0)
print(np.round(h.history["own"], 5), len(net.weights))
h = None

# %% a custom loop
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
x = np.linspace(0, 1, 16, dtype="float32")[:, None]
ds = tf.data.Dataset.from_tensor_slices((x, 2 * x + 1)).batch(4)
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
optimizer, loss_fn, metric = tf.keras.optimizers.SGD(0.1), tf.keras.losses.MeanSquaredError(), tf.keras.metrics.Mean()
@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    metric.update_state(loss)
for epoch in range(2):
    metric.reset_state()
    for bx, by in ds:
        step(bx, by)
    print(epoch, round(float(metric.result()), 5))
[np.round(w, 5).tolist() for w in model.get_weights()]

# %% saving in the keras format, h5 and weights
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
model.save("model.keras")
model.save_weights("model.weights.h5")
again = tf.keras.models.load_model("model.keras")
x = np.ones((1, 2))
bool(np.allclose(model.predict(x, verbose=0), again.predict(x, verbose=0)))

# %% saving with a class of the cell
import numpy as np, tensorflow as tf
@tf.keras.utils.register_keras_serializable(package="same")
class Twice(tf.keras.layers.Layer):
    def call(self, x):
        return 2 * x
model = tf.keras.Sequential([tf.keras.Input((1,)), Twice()])
model.save("twice.keras")
tf.keras.models.load_model("twice.keras").predict(np.ones((1, 1)), verbose=0)

# %% export and serve
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1, kernel_initializer="ones")])
model.export("exported", verbose=False)
tf.saved_model.load("exported").serve(np.ones((1, 2), "float32"))

# %% preprocessing: normalization, text and categories
import numpy as np, tensorflow as tf
norm = tf.keras.layers.Normalization(axis=None)
norm.adapt(np.array([1.0, 2.0, 3.0]))
text = tf.keras.layers.TextVectorization(output_sequence_length=3)
text.adapt(["the cat", "the dog"])
lookup = tf.keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
print(norm(np.array([2.0, 4.0])), text(["the cat flew"]), lookup(["a", "z"]), text.get_vocabulary())
tf.keras.layers.Discretization([0.5])([0.1, 0.9]), tf.keras.layers.CategoryEncoding(3)([1])
norm = text = lookup = None

# %% preprocessing: images
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
layer = tf.keras.Sequential([tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.RandomFlip(seed=1)])
layer(np.full((1, 2, 2, 3), 255.0)).numpy().max()
layer = None

# %% recurrent and convolutional layers
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
rnn, conv = tf.keras.layers.LSTM(2), tf.keras.layers.Conv2D(2, 3)
print(np.round(rnn(np.ones((1, 3, 1), "float32")), 5), conv(np.ones((1, 5, 5, 1))).shape)
rnn = conv = None

# %% metrics, losses and schedules
import tensorflow as tf
m = tf.keras.metrics.BinaryAccuracy()
m.update_state([1, 0], [0.9, 0.7])
schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
print(float(m.result()), float(tf.keras.losses.Huber()([1.0], [3.0])), float(schedule(10)))
m = schedule = None

# %% gradients by jacobian through a model, and regularization
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1, kernel_regularizer="l2", kernel_initializer="ones")])
model(np.ones((1, 2)))
[round(float(loss), 5) for loss in model.losses]

# %% a data set with sample weights and class weights
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1, activation="sigmoid")])
model.compile("sgd", "binary_crossentropy", weighted_metrics=["accuracy"])
x, y = np.array([[0.0], [1.0]]), np.array([0, 1])
h = model.fit(x, y, class_weight={0: 1.0, 1: 2.0}, sample_weight=None, verbose=0)
print(sorted(h.history))
h = None

# %% config round trip and clone
import tensorflow as tf
tf.keras.backend.clear_session()
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1, name="d")], name="m")
clone = tf.keras.models.clone_model(model)
again = tf.keras.Model.from_config(model.get_config()) if False else tf.keras.Sequential.from_config(model.get_config())
clone.count_params(), [w.path for w in again.weights], model.to_json()[:30]

# %% one-device and mirrored strategies in one process
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
h = model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)
print(strategy.num_replicas_in_sync, np.round(h.history["loss"], 5))
with tf.distribute.OneDeviceStrategy("CPU:0").scope():
    v = tf.Variable(1.0)
h = strategy = None

# %% a model over several cells
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
# %%
model.compile("sgd", "mse")
# %%
_h = model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)
np.round(_h.history["loss"], 5).tolist()
# %%
len(model.get_weights())
