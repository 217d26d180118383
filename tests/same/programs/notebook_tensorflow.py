"""What TensorFlow objects of the notebook do in a cell; the notebook imports TensorFlow itself."""

# %% (notebook) tensors and variables
import tensorflow as tf
t, v, s = tf.constant([1.0, 2.0]), tf.Variable(3.0), tf.constant(["a"])
nested = {"t": [t, (v,)]}
# %%
t * v, s, nested["t"][0] + 1

# %% (notebook) ragged and sparse tensors, specs and dtypes
import tensorflow as tf
r, sp = tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense([[0, 1]])
spec, dtype = tf.TensorSpec([None], tf.float32), tf.float16
# %%
r, tf.sparse.to_dense(sp), spec, dtype

# %% (notebook) a tf.function
import tensorflow as tf
rate = 3.0
@tf.function
def scaled(x):
    if x > 1.0:
        return x * rate
    return x
# %%
scaled(tf.constant(2.0)), scaled(tf.constant(0.5))

# %% (notebook) a tf.function that was called before
import tensorflow as tf
offset = 1.0
@tf.function
def shifted(x):
    return x + offset
shifted(tf.constant(1.0))
# %%
shifted(tf.constant(5.0))

# %% (notebook) a tf.function that calls another function of the notebook
import tensorflow as tf
def activation(x):
    return tf.nn.relu(x)
@tf.function
def layer(x):
    total = tf.constant(0.0)
    for i in tf.range(3):
        total += activation(x) * tf.cast(i, tf.float32)
    return total
# %%
layer(tf.constant(2.0))

# %% (notebook) a class with tf.function methods
import tensorflow as tf
class Model:
    def __init__(self): self.w = tf.Variable(2.0)
    @tf.function
    def __call__(self, x):
        return x * self.w
model = Model()
# %%
model(tf.constant(3.0))

# %% (notebook) a tf.Module
import tensorflow as tf
class Dense(tf.Module):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.w = tf.Variable([[2.0]], name="w")
    def __call__(self, x):
        return x @ self.w
dense = Dense()
# %%
dense(tf.ones((1, 1))), len(dense.trainable_variables)

# %% (notebook) a data set of tensors
import tensorflow as tf
ds = tf.data.Dataset.from_tensor_slices([1, 2, 3, 4]).batch(2)
# %%
list(ds.as_numpy_iterator()), int(ds.cardinality()), ds.element_spec

# %% (notebook) a data set with map, shuffle and prefetch
import tensorflow as tf
factor = 10
ds = tf.data.Dataset.range(5).map(lambda x: x * factor).filter(lambda x: x > 0).prefetch(1)
# %%
list(ds.as_numpy_iterator())

# %% (notebook) a data set from a generator
import tensorflow as tf
def rows():
    yield from range(3)
ds = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((), tf.int32))
# %%
list(ds.as_numpy_iterator())

# %% (notebook) a function that makes a data set
import tensorflow as tf
def rows():
    yield from range(3)
def make(n):
    return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((), tf.int32)).take(n)
# %%
list(make(2).as_numpy_iterator())

# %% (notebook) a lookup table
import tensorflow as tf
table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), -1)
# %%
table.lookup(tf.constant(["a"]))

# %% (notebook) a Keras model
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1, kernel_initializer="ones")])
# %%
model(tf.ones((1, 2)))

# %% (notebook) a compiled and fitted Keras model
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)
# %%
np.round(model.predict(np.ones((1, 1)), verbose=0), 5)

# %% (notebook) a function that makes a Keras model
import tensorflow as tf
units = 3
def make():
    return tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(units)])
# %%
make().count_params()

# %% (notebook) a layer and a callback class
import numpy as np, tensorflow as tf
class Twice(tf.keras.layers.Layer):
    def call(self, x):
        return 2 * x
class Tell(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch)
# %%
model = tf.keras.Sequential([tf.keras.Input((1,)), Twice(), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
_h = model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=[Tell()])

# %% (notebook) optimizers, losses, metrics and schedules
import tensorflow as tf
opt, loss = tf.keras.optimizers.SGD(0.5), tf.keras.losses.MeanSquaredError()
schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
# %%
float(opt.learning_rate), float(loss([1.0], [3.0])), float(schedule(10))

# %% (notebook) an iterator of a data set
import tensorflow as tf
it = iter(tf.data.Dataset.range(3))
# %%
next(it)

# %% (notebook) a custom gradient and a gradient function
import tensorflow as tf
@tf.custom_gradient
def clipped(x):
    return x, lambda up: up * 0.5
def grad(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x)
# %%
grad(clipped, tf.constant(1.0))

# %% (notebook) a random generator and its state
import tensorflow as tf
g = tf.random.Generator.from_seed(3)
# %%
g.normal([1])

# %% (notebook) a tf_keras model
import tf_keras
model = tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(1, kernel_initializer="ones")])
# %%
model.count_params()

# %% (notebook) a protocol buffer
import tensorflow as tf
example = tf.train.Example(features=tf.train.Features(feature={"x": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))}))
# %%
example.features.feature["x"].int64_list.value[0], example

# %% (notebook) a tensor that the cell gives back
import tensorflow as tf
w = tf.constant([1.0, 2.0])
# %%
w + 1

# %% (notebook) metrics with what they have seen
import keras
seen = keras.metrics.SparseCategoricalAccuracy()
seen.update_state([[2], [1]], [[0.1, 0.6, 0.3], [0.05, 0.95, 0]])
mean = keras.metrics.Mean("loss")
mean.update_state([1.0, 3.0])
class Largest(keras.metrics.Metric):
    def __init__(self, name="largest", **kwargs):
        super().__init__(name=name, **kwargs)
        self.value = self.add_weight(name="value", initializer="zeros")
    def update_state(self, y, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y)))
    def result(self):
        return self.value
largest = Largest()
largest.update_state([4.0, 9.0])
# %%
mean.update_state(8.0)
[round(float(m.result()), 4) for m in (seen, mean, largest)], mean.name
