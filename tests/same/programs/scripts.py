"""Scripts: `python x.py` and `tfmagic run x.py`. Each program is one file."""

# %% prints and ends
import sys
print("hello", sys.argv[1:], __name__)
print("to the error stream", file=sys.stderr)

# %% an exit code
import sys
print("leaving")
sys.exit(7)

# %% an exit message
import sys
sys.exit("nothing to do")

# %% an error
def load(path):
    return open(path)
load("/no/such/file")

# %% an error with a cause and a note
try:
    {}["k"]
except KeyError as error:
    wrong = ValueError("bad key")
    wrong.add_note("a note")
    raise wrong from error

# %% an exception group
raise ExceptionGroup("several", [ValueError(1), TypeError(2)])

# %% a syntax error
x = 1
def f(:
    pass

# %% an error in main, under a guard
def main():
    raise RuntimeError("in main")

if __name__ == "__main__":
    main()

# %% argparse refuses
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
parser.parse_args()

# %% asyncio.run
import asyncio
async def main():
    await asyncio.sleep(0)
    return [t.get_name() != "" for t in asyncio.all_tasks()]
print(asyncio.run(main()))

# %% an error in asyncio.run
import asyncio
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(10))
        raise LookupError("inside")
try:
    asyncio.run(main())
except* LookupError as group:
    print(group.exceptions)

# %% multiprocessing by spawn and fork
import multiprocessing as mp
def square(n):
    return n * n
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(1) as pool:
            print(method, pool.map(square, [1, 2, 3]))

# %% processes of concurrent.futures
from concurrent.futures import ProcessPoolExecutor
def double(n):
    return 2 * n
if __name__ == "__main__":
    with ProcessPoolExecutor(1) as pool:
        print(list(pool.map(double, "ab")))

# %% pickle, enum and dataclass of the main module
import pickle
from dataclasses import dataclass
from enum import Enum
class Colour(Enum):
    RED = 1
@dataclass
class Point:
    x: int
print(pickle.loads(pickle.dumps([Colour.RED, Point(3)])), Point.__module__)

# %% threads that go on after the main one
import threading, time
done = threading.Event()
def work():
    done.wait(20)
    print("from the thread")
threading.Thread(target=work).start()
print("main ends")
done.set()

# %% a daemon thread, and atexit in its order
import atexit, threading
atexit.register(print, "first registered, last run")
atexit.register(print, "second registered")
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("main ends")

# %% an error in atexit
import atexit
@atexit.register
def fails():
    raise ValueError("at exit")
print("main ends")

# %% a signal ends it
import os, signal
print("before", flush=True)
os.kill(os.getpid(), signal.SIGTERM)

# %% os._exit, with output that is not flushed
import os
print("flushed", flush=True)
os._exit(4)

# %% an abort
import os
print("before", flush=True)
os.abort()

# %% logging and warnings
import logging, warnings
logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(message)s")
logging.info("logged")
warnings.warn("careful")
logging.getLogger("x").error("bad")

# %% TensorFlow's log: a script shows warnings, on the error stream
import sys
import tensorflow as tf
logger = tf.get_logger()
print(logger.level, [handler.stream is sys.stderr for handler in logger.handlers])
tf.distribute.MirroredStrategy(["CPU:0"])
logger.info("hidden")
logger.warning("shown")

# %% streams: buffers, encodings, bytes and no newline
import sys
sys.stdout.buffer.write(b"bytes \xc3\xbc\n")
print("ümläut", "日本", end="")
sys.stdout.flush()

# %% what is there: name, file, argv, path and standard input
import os, sys
print(__name__, os.path.basename(__file__), os.path.basename(sys.argv[0]), sys.argv[1:], __doc__, __spec__)
print(os.path.isdir(sys.path[0]), sys.stdin.read() == "", sys.flags.interactive, hasattr(sys, "ps1"))

# %% names of a notebook are not there
for name in ("get_ipython", "display", "In"):
    try:
        eval(name)
    except NameError as error:
        print(error)

# %% an import of a neighbour with the name of a library
import pathlib, sys
folder = pathlib.Path(__file__).parent
(folder / "requests_like.py").write_text("value = 3\n")
import requests_like
print(requests_like.value)

# %% input at the end of a file
print(input("name? "))

# %% unittest main
import unittest
class T(unittest.TestCase):
    def test_passes(self):
        self.assertTrue(True)
if __name__ == "__main__":
    unittest.main(argv=["x"], verbosity=0)

# %% a recursion without end
def down(n):
    return down(n + 1)
down(0)

# %% subprocesses and their output
import subprocess, sys
sys.stdout.flush()
print(subprocess.run(["echo", "child"]).returncode, subprocess.getoutput("echo captured"), flush=True)
subprocess.run([sys.executable, "-c", "import sys; sys.exit(2)"], check=True)

# %% TensorFlow and numpy
import numpy as np, tensorflow as tf
tf.random.set_seed(1)
@tf.function
def f(x):
    return tf.reduce_sum(x * x)
print(f(tf.range(4.0)).numpy(), np.arange(3), tf.random.uniform([2]).numpy())

# %% a TensorFlow error
import tensorflow as tf
tf.matmul(tf.ones((2, 3)), tf.ones((2, 3)))

# %% Keras fit over a generator with two epochs
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(0)
def rows():
    for i in range(8):
        yield [i / 8], [i / 4]
ds = tf.data.Dataset.from_generator(rows, output_signature=(tf.TensorSpec((1,)), tf.TensorSpec((1,)))).batch(4)
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
print(np.round(model.fit(ds, epochs=2, verbose=0).history["loss"], 5))

# %% absl
from absl import app, flags
flags.DEFINE_integer("n", 3, "a number")
def main(argv):
    print(flags.FLAGS.n, argv[1:])
    return 5
if __name__ == "__main__":
    app.run(main)

# %% runpy and exec of another file
import pathlib, runpy
other = pathlib.Path(__file__).with_name("other_file.py")
other.write_text("print('other', __name__)\nvalue = 9\n")
print(runpy.run_path(str(other), run_name="other")["value"])

# %% globals are gone in their order, and del is called
class Loud:
    def __del__(self):
        print("gone")
loud = Loud()
print("end")

# %% sys.excepthook and threading.excepthook
import sys, threading
sys.excepthook = lambda kind, value, tb: print("hooked", kind.__name__, value)
threading.excepthook = lambda args: print("in a thread", args.exc_type.__name__)
t = threading.Thread(target=lambda: 1 / 0)
t.start(); t.join()
raise ValueError("last")
