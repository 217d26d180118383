"""TensorFlow's guide: tensors, variables, autodiff, graphs, modules, ragged and sparse, random, precision."""

# %% tensors: values, shapes and slices
import tensorflow as tf
x = tf.constant([[1, 2, 3], [4, 5, 6]])
print(x.shape, x.dtype, x[0], x[:, 1], tf.rank(x), x.numpy().tolist())
x

# %% tensors: arithmetic and broadcasting
import tensorflow as tf
a, b = tf.constant([1.0, 2.0]), tf.constant([[3.0], [4.0]])
print(a + b, a * 2, tf.reduce_sum(a * b), tf.matmul(b, a[None]), a @ tf.ones((2, 1)) if False else "")
tf.reduce_mean(b)

# %% tensors: a string tensor, a bool and casting
import tensorflow as tf
s = tf.constant(["ab", "ü"])
print(s, tf.strings.length(s, unit="UTF8_CHAR"), tf.cast([1.7, 2.2], tf.int32), tf.constant([1, 2]) > 1)
tf.strings.join(["a", "b"], "-")

# %% tensors: tf.print
import tensorflow as tf
import sys
tf.print("values:", tf.range(20), output_stream=sys.stdout)
tf.print("to the error stream", tf.constant(1))

# %% tensors: shapes that do not fit
import tensorflow as tf
tf.matmul(tf.ones((2, 3)), tf.ones((2, 3)))

# %% tensors: wrong types
import tensorflow as tf
tf.constant(1) + tf.constant(1.0)

# %% tensors: immutable
import tensorflow as tf
x = tf.constant([1, 2])
x[0] = 5

# %% tensors: gather, scatter, concat, einsum
import tensorflow as tf
x = tf.reshape(tf.range(6), (2, 3))
print(tf.gather(x, [1, 0]), tf.scatter_nd([[1]], [5], [3]), tf.concat([x, x], 0).shape, tf.stack([x, x]).shape)
tf.einsum("ij->ji", x)

# %% tensors: devices and functions of the configuration
import tensorflow as tf
print(tf.executing_eagerly(), [d.device_type for d in tf.config.list_physical_devices()], tf.version.VERSION[0])
with tf.device("CPU:0"):
    y = tf.constant(1)
y.device.endswith("CPU:0")

# %% variables
import tensorflow as tf
v = tf.Variable([1.0, 2.0], name="v")
v.assign_add([1.0, 1.0])
v[0].assign(9.0)
w = tf.Variable(v)
print(v, w.trainable, v.numpy())
v

# %% variables: a shape that does not fit
import tensorflow as tf
v = tf.Variable([1.0, 2.0])
v.assign([1.0, 2.0, 3.0])

# %% variables: kept over cells
import tensorflow as tf
counter = tf.Variable(0)
# %%
for _ in range(3):
    counter.assign_add(1)
int(counter)

# %% autodiff: tapes
import tensorflow as tf
x = tf.Variable(3.0)
with tf.GradientTape(persistent=True) as tape:
    y = x**2
    z = y * 2
print(tape.gradient(y, x), tape.gradient(z, x), tape.gradient(z, y))
with tf.GradientTape() as t2:
    with tf.GradientTape() as t1:
        y = x**3
    first = t1.gradient(y, x)
t2.gradient(first, x)

# %% autodiff: jacobian, watch and custom gradient
import tensorflow as tf
@tf.custom_gradient
def clipped(x):
    def grad(upstream):
        return tf.clip_by_value(upstream, -0.5, 0.5)
    return x * 2, grad
x = tf.constant([1.0, 2.0])
with tf.GradientTape() as tape:
    tape.watch(x)
    y = clipped(x) ** 2
print(tape.jacobian(y, x) if False else tape.gradient(y, x))

# %% autodiff: a tape that is used twice
import tensorflow as tf
x = tf.Variable(1.0)
with tf.GradientTape() as tape:
    y = x * x
tape.gradient(y, x)
tape.gradient(y, x)

# %% tf.function: traced once, control flow, prints
import tensorflow as tf
@tf.function
def collatz(n):
    print("tracing with", n.dtype)
    steps = tf.constant(0)
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps
collatz(tf.constant(6)), collatz(tf.constant(7)), collatz.experimental_get_tracing_count()

# %% tf.function: a signature, a concrete function and a retrace
import tensorflow as tf
@tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
def mean(x):
    return tf.reduce_mean(x)
print(mean([1.0, 2.0]), mean.get_concrete_function().structured_outputs)
mean(tf.constant([[1.0]]))

# %% tf.function: a Python error while it is traced
import tensorflow as tf
@tf.function
def bad(x):
    y = x + 1
    return undefined_thing(y)
bad(tf.constant(1))

# %% tf.function: an error while it runs
import tensorflow as tf
@tf.function
def check(x):
    tf.debugging.assert_positive(x, message="not positive")
    return x
print(check(tf.constant(1)))
check(tf.constant(-1))

# %% tf.function: another one after a failed one, in the same cell
import tensorflow as tf
@tf.function
def fails(x):
    tf.debugging.assert_positive(x)
    return x
@tf.function
def works(x):
    return x + 1
try:
    fails(tf.constant(-1))
except tf.errors.InvalidArgumentError as error:
    print(type(error).__name__)
print(works(tf.constant(1)), fails(tf.constant(5)))

# %% tf.function: the end of a data set inside a loop
import tensorflow as tf
it = iter(tf.data.Dataset.range(3))
@tf.function
def step(iterator):
    return next(iterator) * 2
found = []
try:
    while True:
        found.append(int(step(it)))
except tf.errors.OutOfRangeError:
    found.append("end")
another = iter(tf.data.Dataset.range(2))
found + [int(step(another)), int(step(another))]

# %% tf.function: a variable made inside
import tensorflow as tf
@tf.function
def f(x):
    v = tf.Variable(1.0)
    return x + v
f(1.0)

# %% tf.function: side effects, py_function and numpy_function
import tensorflow as tf
seen = []
@tf.function
def f(x):
    seen.append("traced")
    tf.py_function(lambda v: seen.append(int(v)), [x], [])
    return tf.numpy_function(lambda v: v * 2, [x], tf.int32)
f(tf.constant(1)), f(tf.constant(2)), seen

# %% tf.function: with a data set, a tensor array and a for loop
import tensorflow as tf
@tf.function
def total(ds):
    result = tf.constant(0, tf.int64)
    for x in ds:
        if x == 3:
            continue
        result += x
    return result
@tf.function
def squares(n):
    out = tf.TensorArray(tf.int32, size=n)
    for i in tf.range(n):
        out = out.write(i, i * i)
    return out.stack()
total(tf.data.Dataset.range(6)), squares(4)

# %% tf.function: an error of a py_function
import tensorflow as tf
def inner(x):
    raise ValueError("from Python")
@tf.function
def f(x):
    return tf.py_function(inner, [x], tf.int32)
try:
    f(tf.constant(1))
except tf.errors.InvalidArgumentError as error:
    print("ValueError: from Python" in str(error))

# %% tf.function: autograph's code and the graph
import tensorflow as tf
@tf.function
def f(x):
    return tf.where(x > 0, x, 0)
g = f.get_concrete_function(tf.TensorSpec([], tf.int32)).graph
sorted(op.type for op in g.get_operations())

# %% tf.function: defined in one cell, used in the next
import tensorflow as tf
w = tf.Variable(2.0)
@tf.function
def scaled(x):
    return w * x
# %%
print(scaled(3.0))
w.assign(10.0)
scaled(3.0)

# %% tf.function: compiled by XLA
import tensorflow as tf
@tf.function(jit_compile=True)
def f(x):
    return x * x + 1
f(tf.constant(3.0))

# %% tf.function: eager on purpose
import tensorflow as tf
tf.config.run_functions_eagerly(True)
@tf.function
def f(x):
    print("runs", int(x))
    return x
f(tf.constant(1)); f(tf.constant(2))
tf.config.run_functions_eagerly(False)

# %% tf.cond, tf.while_loop, tf.map_fn and tf.vectorized_map
import tensorflow as tf
print(tf.cond(tf.constant(True), lambda: 1, lambda: 2), tf.while_loop(lambda i: i < 5, lambda i: [i + 1], [0]))
print(tf.map_fn(lambda x: x * 2, tf.range(3)))
tf.vectorized_map(lambda x: x + 1, tf.range(3))

# %% modules: tf.Module with variables
import tensorflow as tf
class Dense(tf.Module):
    def __init__(self, n, m, name=None):
        super().__init__(name=name)
        self.w = tf.Variable(tf.ones([n, m]), name="w")
        self.b = tf.Variable(tf.zeros([m]), name="b")
    @tf.function
    def __call__(self, x):
        return tf.nn.relu(x @ self.w + self.b)
class Net(tf.Module):
    def __init__(self):
        super().__init__()
        self.layers = [Dense(2, 3), Dense(3, 1)]
    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
net = Net()
print(net(tf.ones((1, 2))), len(net.trainable_variables), [v.name for v in net.variables], [m.name for m in net.submodules])

# %% TensorFlow's log in a notebook, and a level of the user's
import logging, sys
import tensorflow as tf
logger = tf.get_logger()
print(logging.getLevelName(logger.level), [handler.stream is sys.stdout for handler in logger.handlers])
logger.info("shown")
logger.debug("hidden")
logger.warning("shown, too")
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
# %%
logger.setLevel("ERROR")
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
logger.warning("hidden")
logger.error("shown")
logger.setLevel("INFO")
del strategy, logger

# %% modules: saved and loaded
import tensorflow as tf
class M(tf.Module):
    def __init__(self): self.v = tf.Variable(2.0)
    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def scale(self, x): return x * self.v
m = M()
tf.saved_model.save(m, "saved_module")
loaded = tf.saved_model.load("saved_module")
print(loaded.scale(tf.constant(4.0)), type(loaded).__name__)

# %% checkpoints and their manager
import tensorflow as tf
v, step = tf.Variable(1.0), tf.Variable(0)
ckpt = tf.train.Checkpoint(v=v, step=step)
manager = tf.train.CheckpointManager(ckpt, "ckpts_basic", max_to_keep=2)
for _ in range(3):
    step.assign_add(1); v.assign(v * 2)
    manager.save()
v.assign(0.0)
ckpt.restore(manager.latest_checkpoint).assert_consumed()
print(float(v), int(step), [p.rpartition("/")[2] for p in manager.checkpoints], tf.train.list_variables(manager.latest_checkpoint)[:1])

# %% checkpoints: one that is not there
import tensorflow as tf
tf.train.Checkpoint(v=tf.Variable(1.0)).read("no/such/checkpoint")

# %% ragged tensors
import tensorflow as tf
r = tf.ragged.constant([[1, 2], [], [3]])
print(r.shape, tf.reduce_sum(r, axis=1), r.to_tensor(), r[0], tf.concat([r, r], 0).row_lengths())
r

# %% sparse tensors
import tensorflow as tf
s = tf.sparse.from_dense([[0, 1], [2, 0]])
print(s.values, tf.sparse.to_dense(s), tf.sparse.sparse_dense_matmul(s, tf.ones((2, 1), tf.int32)))

# %% a sparse tensor as the value
import tensorflow as tf
tf.sparse.from_dense([[0, 1], [2, 0]])

# %% a composite of tensors as the value
import tensorflow as tf
{"a": tf.constant([1, 2]), "b": [tf.Variable(1.0), (tf.zeros(2),)]}

# %% random: seeds and generators
import tensorflow as tf
tf.random.set_seed(3)
print(tf.random.uniform([2]), tf.random.uniform([2]), tf.random.normal([2], seed=1))
g = tf.random.Generator.from_seed(5)
print(g.normal([2]), g.split(2)[0].uniform([1]))
tf.random.stateless_uniform([2], seed=(1, 2))

# %% random: the seed holds for the next cell
import tensorflow as tf
tf.random.set_seed(11)
tf.random.uniform([2])
# %%
tf.random.uniform([2])

# %% random: set_random_seed of Keras seeds all
import random, numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(4)
random.random(), np.random.rand(1), tf.random.uniform([1])

# %% lookup tables and string functions
import tensorflow as tf
table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1)
table.lookup(tf.constant(["a", "z"])), tf.strings.split("a b c"), tf.strings.regex_replace("aab", "a+", "x")

# %% mixed precision
import tensorflow as tf
tf.keras.mixed_precision.set_global_policy("mixed_float16")
layer = tf.keras.layers.Dense(2)
y = layer(tf.ones((1, 3)))
policy = tf.keras.mixed_precision.global_policy().name
tf.keras.mixed_precision.set_global_policy("float32")
policy, y.dtype, layer.variable_dtype

# %% profiler
import os, tensorflow as tf
tf.profiler.experimental.start("prof_logs")
with tf.profiler.experimental.Trace("step", step_num=1):
    tf.reduce_sum(tf.ones((10, 10)))
tf.profiler.experimental.stop()
sorted(os.listdir("prof_logs/plugins"))

# %% summaries
import os, tensorflow as tf
writer = tf.summary.create_file_writer("summaries")
with writer.as_default(step=1):
    tf.summary.scalar("loss", 0.5)
writer.close()
from tensorflow.python.summary.summary_iterator import summary_iterator
_path = os.path.join("summaries", sorted(os.listdir("summaries"))[0])
[v.tag for e in summary_iterator(_path) for v in e.summary.value]

# %% debugging: numerics and shapes
import tensorflow as tf
tf.debugging.check_numerics(tf.constant([1.0, float("nan")]), "bad batch")

# %% nest, and functions of tf.nn
import tensorflow as tf
print(tf.nest.map_structure(lambda x: x * 2, {"a": [1, 2], "b": (3,)}), tf.nn.softmax([1.0, 2.0]))
tf.nn.sparse_softmax_cross_entropy_with_logits([1], [[0.1, 0.9]])

# %% numpy interplay
import numpy as np, tensorflow as tf
a = np.ones((2, 2), "float32")
print(tf.add(a, 1), np.add(tf.constant(a), 1), np.asarray(tf.range(3)), a @ tf.constant(a))

# %% images
import tensorflow as tf
image = tf.cast(tf.reshape(tf.range(48), (4, 4, 3)), tf.uint8)
encoded = tf.io.encode_png(image)
tf.image.resize(image, (2, 2)).shape, tf.reduce_all(tf.io.decode_png(encoded) == image), tf.image.flip_left_right(image)[0, 0]

# %% logical devices
import tensorflow as tf
len(tf.config.list_logical_devices("CPU")), tf.config.threading.get_inter_op_parallelism_threads()
