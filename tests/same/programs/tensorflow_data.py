"""tf.data in all its sources."""

# %% from tensors and slices
import tensorflow as tf
ds = tf.data.Dataset.from_tensor_slices({"a": [1, 2, 3], "b": ["x", "y", "z"]})
for row in ds.batch(2):
    print(row)
ds.element_spec, ds.cardinality()

# %% map, filter, batch, shuffle, repeat, take and skip
import tensorflow as tf
tf.random.set_seed(1)
ds = tf.data.Dataset.range(10).map(lambda x: x * 2).filter(lambda x: x % 3 == 0).repeat(2)
print([int(x) for x in ds], [b.tolist() for b in ds.batch(3, drop_remainder=True).as_numpy_iterator()])
[int(x) for x in tf.data.Dataset.range(6).shuffle(6, seed=1).skip(1).take(3)]

# %% zip, window, interleave, flat_map, concatenate, reduce and scan
import tensorflow as tf
D = tf.data.Dataset
print(list(D.zip(D.range(2), D.range(5, 7)).as_numpy_iterator()))
print([list(w.as_numpy_iterator()) for w in D.range(5).window(2)])
print(list(D.range(3).interleave(lambda x: D.from_tensors(x).repeat(2)).as_numpy_iterator()))
print(list(D.range(2).flat_map(lambda x: D.range(x + 1)).concatenate(D.range(1)).as_numpy_iterator()))
D.range(5).reduce(tf.constant(0, tf.int64), lambda a, b: a + b), list(D.range(3).scan(tf.constant(0, tf.int64), lambda s, x: (s + x, s + x)).as_numpy_iterator())

# %% from a generator
import tensorflow as tf
def rows():
    for i in range(3):
        yield i, [i] * 2
ds = tf.data.Dataset.from_generator(rows, output_signature=(tf.TensorSpec((), tf.int32), tf.TensorSpec((2,), tf.float32)))
list(ds.as_numpy_iterator())

# %% from a generator that raises
import tensorflow as tf
def rows():
    yield 1
    raise ValueError("the source is broken")
ds = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((), tf.int32))
try:
    for x in ds:
        print(int(x))
except tf.errors.InvalidArgumentError as error:
    print("the source is broken" in str(error))

# %% a generator and two epochs of fit
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(1)
def rows():
    for i in range(8):
        yield [i / 8], [i / 4]
ds = tf.data.Dataset.from_generator(rows, output_signature=(tf.TensorSpec((1,)), tf.TensorSpec((1,)))).batch(4)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(ds, epochs=3, verbose=0).history["loss"]
len(history), np.round(history, 5).tolist()

# %% TFRecord: written, read, and two epochs of fit
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(1)
with tf.io.TFRecordWriter("rows.tfrecord") as writer:
    for i in range(8):
        feature = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=[i / 8]))}
        writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
def parse(record):
    x = tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([1], tf.float32)})["x"]
    return x, 2 * x
ds = tf.data.TFRecordDataset("rows.tfrecord").map(parse).batch(4)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(ds, epochs=2, verbose=0).history["loss"]
len(history), np.round(history, 5).tolist(), int(ds.cardinality())

# %% TFRecord: a damaged file
import tensorflow as tf
with tf.io.TFRecordWriter("damaged.tfrecord") as writer:
    writer.write(b"one"); writer.write(b"two")
data = bytearray(open("damaged.tfrecord", "rb").read())
data[-5] ^= 255
open("damaged.tfrecord", "wb").write(data)
try:
    print(list(tf.data.TFRecordDataset("damaged.tfrecord").as_numpy_iterator()))
except tf.errors.DataLossError as error:
    print(type(error).__name__)

# %% text lines and files
import tensorflow as tf
for i in range(2):
    with open(f"lines-{i}.txt", "w") as f:
        f.write(f"a{i}\nb{i}\n")
ds = tf.data.Dataset.list_files("lines-*.txt", shuffle=False).interleave(tf.data.TextLineDataset)
list(ds.as_numpy_iterator())

# %% csv
import tensorflow as tf
with open("numbers.csv", "w") as f:
    f.write("a,b\n1,2.5\n3,4.5\n")
ds = tf.data.experimental.CsvDataset("numbers.csv", [tf.int32, tf.float32], header=True)
print(list(ds.as_numpy_iterator()))
batches = tf.data.experimental.make_csv_dataset("numbers.csv", 2, label_name="b", shuffle=False, num_epochs=1)
for features, label in batches:
    print({k: v.numpy().tolist() for k, v in features.items()}, label.numpy())

# %% numpy and pandas as sources
import numpy as np, pandas as pd, tensorflow as tf
df = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
print(list(tf.data.Dataset.from_tensor_slices(dict(df)).as_numpy_iterator()))
tf.data.Dataset.from_tensor_slices(np.eye(2)).batch(2).get_single_element()

# %% py_function and numpy_function in a pipeline
import tensorflow as tf
def double(x):
    return x * 2
ds = tf.data.Dataset.range(3).map(lambda x: tf.py_function(double, [x], tf.int64))
list(ds.as_numpy_iterator()), list(tf.data.Dataset.range(2).map(lambda x: tf.numpy_function(double, [x], tf.int64)).as_numpy_iterator())

# %% cache, prefetch, options and parallel maps
import tensorflow as tf
options = tf.data.Options()
options.deterministic = True
ds = tf.data.Dataset.range(6).map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE).cache().prefetch(2).with_options(options)
[int(x) for x in ds], [int(x) for x in ds], len(ds)

# %% ragged, sparse and padded batches
import tensorflow as tf
ds = tf.data.Dataset.range(1, 4).map(lambda n: tf.fill([n], n))
print(next(iter(ds.padded_batch(3))), next(iter(ds.ragged_batch(3))))

# %% bucketing, group_by_window, unique, rejection and sampling
import tensorflow as tf
tf.random.set_seed(1)
D = tf.data.Dataset
print(list(D.from_tensor_slices([1, 1, 2]).unique().as_numpy_iterator()))
print([b.tolist() for b in D.range(6).group_by_window(lambda x: x % 2, lambda k, w: w.batch(3), 3).as_numpy_iterator()])
list(D.sample_from_datasets([D.range(2), D.range(5, 7)], seed=1).as_numpy_iterator())

# %% shards and save, load, snapshot
import tensorflow as tf
ds = tf.data.Dataset.range(6)
print(list(ds.shard(3, 1).as_numpy_iterator()))
ds.save("saved_data")
list(tf.data.Dataset.load("saved_data").as_numpy_iterator())

# %% an iterator over several cells
import tensorflow as tf
it = iter(tf.data.Dataset.range(3))
next(it)
# %%
next(it), it.get_next_as_optional().get_value()
# %%
next(it)

# %% a checkpoint of an iterator
import tensorflow as tf
it = iter(tf.data.Dataset.range(5))
next(it)
ckpt = tf.train.Checkpoint(it=it)
path = ckpt.save("iterators/at")
next(it); next(it)
ckpt.restore(path)
next(it)

# %% an error in a map
import tensorflow as tf
ds = tf.data.Dataset.from_tensor_slices([1, 0]).map(lambda x: 10 // x)
for x in ds:
    print(int(x))

# %% a file that is not there
import tensorflow as tf
list(tf.data.TFRecordDataset("no-such.tfrecord"))

# %% a data set as the value
import tensorflow as tf
tf.data.Dataset.range(3).batch(2)

# %% out of a data set by next
import tensorflow as tf
next(iter(tf.data.Dataset.range(0)))

# %% image and text folders
import os, tensorflow as tf
for c in "ab":
    os.makedirs(f"pictures/{c}", exist_ok=True)
    for i in range(2):
        tf.io.write_file(f"pictures/{c}/{i}.png", tf.io.encode_png(tf.zeros((4, 4, 3), tf.uint8)))
ds = tf.keras.utils.image_dataset_from_directory("pictures", image_size=(4, 4), batch_size=4, shuffle=False)
ds.class_names, next(iter(ds))[1].numpy().tolist()
