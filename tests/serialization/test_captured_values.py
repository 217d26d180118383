"""A captured value is on a task what it is in the notebook, or is refused by name before anything runs."""

import json
from pathlib import Path

import process_state
import pytest
from kernels import text_of

NOTEBOOK = """
import contextlib, enum, functools, io, logging, os, sys, threading
from typing import Generic, TypeVar

import numpy as np
import tensorflow as tf
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

class Color(enum.Enum):
    RED = 1
    BLUE = 2

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2

T = TypeVar("T")

class Box(Generic[T]):
    def __init__(self, value: T):
        self.value = value

box, favourite, k, w = Box[int](3), Color.BLUE, 10, 3.0

def paint(color=Color.RED):
    return color

class Holder:
    color: Color = Color.RED
    def __init__(self):
        self.functions = {"add": lambda x: x + k}

holder = Holder()
table = {"times": lambda x: x * k, "all": [lambda: k], "pair": (lambda: k,)}

@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

@tf.function
def scale(x):
    if tf.reduce_sum(x) > 0:
        return x * w
    return -x

@tf.function
def traced(x):
    return x + w

traced(tf.constant(1.0))

class Line(tf.Module):
    def __init__(self):
        self.slope = tf.Variable(2.0)
    @tf.function
    def __call__(self, x):
        if x > 0:
            return self.slope * x
        return x

line = Line()

def with_k(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args) + k
    return inner

@with_k
def decorated(x):
    return x

@contextlib.contextmanager
def managed():
    yield k

class Empty:
    def __init__(self):
        self.a, self.b = np.zeros(0), np.zeros((0, 3))

empty = Empty()
X = np.random.RandomState(0).randn(20, 3)
svc = make_pipeline(StandardScaler(), SVC()).fit(X, X[:, 0] > 0)
dataset = tf.data.Dataset.range(10).map(lambda v: v * 2).shuffle(10, seed=1).batch(3)
ragged = tf.data.Dataset.from_tensor_slices({"a": range(3), "b": tf.ragged.constant([[1], [2, 3], []])}).batch(2)
buffer = io.StringIO("kept")

import keras

class Double(keras.layers.Layer):
    def call(self, x):
        return 2 * x

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), Double()])
xs = np.ones((2, 3), np.float32)

def squared(expected, found):
    return keras.ops.mean((expected - found) ** 2) * k

def losses_of(*factors):
    return [lambda expected, found, by=by: squared(expected, found) * by for by in factors]

class Halving(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, start):
        self.start = start
    def __call__(self, step):
        return self.start / k
    def get_config(self):
        return {"start": self.start}

compiled = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, lambda x: x * w), keras.layers.Lambda(lambda x: x * k)])
compiled.compile(keras.optimizers.SGD(Halving(0.5)), loss=squared, metrics=[squared, *losses_of(2.0, 3.0)])
averaged = keras.metrics.MeanMetricWrapper(squared)
averaged.update_state(xs, 2 * xs)

class Pair(tf.experimental.ExtensionType):
    n: int
    x: tf.Tensor

logger = logging.getLogger("of.notebook")
logger.setLevel(logging.DEBUG)
logging.getLogger("of").propagate = False
shown = logging.StreamHandler(sys.stdout)
shown.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
logger.addHandler(shown)

class Registered:
    seen = set()
    def __init__(self, name):
        self.name = name
        Registered.seen.add(self)
    def __setstate__(self, state):
        vars(self).update(checked(state))
    def __hash__(self):
        return hash(self.name)

def checked(state):
    return dict(state)

registered = Registered("one")

def say(text, file=sys.stdout):
    print(text, file=file)

class OfInstance:
    __module__ = property(lambda self: "of the instance")

odd, odd_property = type("Odd", (), {"__module__": None, "value": [1]})(), OfInstance()
odd.it = odd
"""
SAME = {
    "classes without a module's name": "odd.value, odd.it is odd, type(odd).__module__, odd_property.__module__, [odd, 1][0] is odd",
    "enum": "Color.RED, paint(), favourite is Color.BLUE, Level.HIGH > Level.LOW, {Color.RED: 1}",
    "generic": "box.value, isinstance(box, Box), Box[str]('x').value, box.__orig_class__",
    "functions in containers": "table['times'](4), table['all'][0](), table['pair'][0](), holder.functions['add'](1)",
    "lru_cache": "fib(30)",
    "tf.function": "float(scale(tf.constant(2.0))), float(scale(tf.constant(-2.0))), float(traced(tf.constant(1.0)))",
    "tf.function of a class": "float(Line()(tf.constant(3.0)))",
    "wraps": "decorated(1), decorated.__name__, managed().__enter__()",
    "empty arrays": "empty.a.shape, empty.b.shape, svc.predict(X[:5]).tolist()",
    "dataset": "[v.tolist() for v in dataset.as_numpy_iterator()], int(dataset.cardinality()), dataset.element_spec",
    "ragged dataset": "[str(v) for v in ragged], int(ragged.cardinality())",
    "a layer of the user's": "model.predict(xs, verbose=0).round(4).tolist(), type(model.layers[1]) is Double",
    "functions of a model": (
        "compiled(xs).numpy().round(3).tolist(), [round(v, 3) for v in compiled.evaluate(xs, xs, verbose=0)], "
        "compiled.loss.__name__, float(compiled.optimizer.learning_rate), float(averaged.result())"
    ),
    "an extension type": "Pair(1, 2.0).n, float(Pair(1, 2.0).x)",
    "a logger": "logger.level, logger.isEnabledFor(10), logger is logging.getLogger('of.notebook'), logger.parent.propagate",
    "a registry": "registered in Registered.seen, [found is registered for found in Registered.seen]",
    "buffer": "buffer.getvalue()",
}
STAYING = """
path = os.path.abspath("log.txt")
log = open(path, "w")
log.write("kept"), log.flush()
holding = {"log": log}
lock, event = threading.Lock(), threading.Event()

class Guarded:
    def __init__(self):
        self.lock = threading.RLock()

guarded = Guarded()
thread = threading.Thread(target=print)
strategies = [tf.distribute.MirroredStrategy(["CPU:0"])]
generated = tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec((), tf.int32))
lookup = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), 0)
looked_up = tf.data.Dataset.from_tensor_slices(["a"]).map(lookup.lookup)

class Unloadable:
    def __getstate__(self):
        return {"a": 1}
    def __setstate__(self, state):
        raise ValueError("will not load")

unloadable = Unloadable()

class Raising:
    def __init__(self, kind): self.kind = kind
    def __reduce__(self): raise self.kind(3)

class OfNoKind(BaseException): pass

class Arriving:
    def __getstate__(self): return {"a": 1}
    def __setstate__(self, state): raise SystemExit(4)

class Unclassed:
    __class__ = property(lambda self: 1 / 0)

import ipywidgets, tqdm.notebook
slider = ipywidgets.IntSlider()
sliders = [slider]
progress = tqdm.notebook.tqdm(total=2)

import asyncio
ending, closing, arriving, unclassed = Raising(SystemExit), Raising(GeneratorExit), Arriving(), Unclassed()
cancelled, of_no_kind, inside = Raising(asyncio.CancelledError), Raising(OfNoKind), {"x": [Raising(OfNoKind)]}
"""
REFUSED = {
    "log": "an open file",
    "holding": "['log'] (TextIOWrapper): an open file",
    "lock": "a lock holds for the threads of one process",
    "event": "a lock",
    "guarded": ".lock (RLock): a lock",
    "strategies": "[0] (MirroredStrategy): a strategy of TensorFlow belongs to the process that made it; make it in the cell",
    "thread": "a thread runs in the process that started it",
    "generated": "calls Python",
    "lookup": "a lookup table",
    "looked_up": "uses a lookup table",
    "unloadable": "ValueError: will not load",
    "ending": "SystemExit: 3",
    "closing": "GeneratorExit: 3",
    "cancelled": "CancelledError: 3",
    "of_no_kind": "OfNoKind: 3",
    "inside": "['x'][0] (Raising): OfNoKind: 3",
    "arriving": "it cannot be unpickled there: SystemExit: 4",
    "slider": "a widget belongs to the page of the process that made it; make it in the cell",
    "sliders": "[0] (IntSlider): a widget belongs to the page",
    "progress": "a progress bar of tqdm.notebook belongs to the page",
    "unclassed": "ZeroDivisionError: division by zero",
}


@pytest.fixture(scope="module")
def shared_kernel(tmp_path_factory):
    from kernels import Kernel

    made = Kernel()
    made.run(f"%cd -q {tmp_path_factory.mktemp('notebook')}")
    made.states = {"before": state_of(made)}
    made.run("%load_ext tfmagic")
    made.run("%tfcluster start --workers 1")
    made.run("%%tfcluster\n1")
    made.states["after"] = state_of(made)
    for magic in ("", "%%tfcluster\n"):
        made.run(f"{magic}import matplotlib.pyplot, pandas, tensorflow\ntensorflow.keras.Sequential;")
        made.states[magic or "with TensorFlow"] = state_of(made, magic)
    for code in (NOTEBOOK, STAYING):
        assert not [content for kind, content in made.run(code) if kind == "error"]
    yield made
    made.close()


def state_of(kernel, magic=""):
    """Return the state of the kernel's process, or of the task's."""
    source = Path(process_state.__file__).read_text()
    problem = kernel.run(
        f"{magic}{source}\nimport json\n_ = open('state', 'w').write(json.dumps(process_state()))"
    )
    assert not any(kind == "error" for kind, _ in problem), problem
    return json.loads(Path(kernel.text("import os; print(os.path.abspath('state'))").strip()).read_text())


def test_tfmagic_changes_nothing_for_the_other_code_of_the_kernel(shared_kernel):
    states = shared_kernel.states
    assert process_state.differences(states["before"], states["after"], process_state.OF_KERNEL) == {}


def test_tfmagic_changes_what_is_listed_for_the_other_code_of_a_task(shared_kernel):
    states, meant = shared_kernel.states, process_state.OF_TASKS
    plain, on_task = states["with TensorFlow"], states["%%tfcluster\n"]
    assert process_state.differences(plain, on_task, meant) == {}
    assert len(on_task) > 300


@pytest.mark.parametrize("expression", SAME.values(), ids=SAME)
def test_a_value_is_on_a_task_what_it_is_in_the_notebook(shared_kernel, expression):
    assert text_of(shared_kernel.run(f"here = repr(({expression}))")) == ""
    assert text_of(shared_kernel.run(f"%%tfcluster --view quiet --out there\nrepr(({expression}))")) == ""
    assert (
        text_of(shared_kernel.run("print(there['worker-0'] == here or (there['worker-0'], here))"))
        == "True\n"
    )


@pytest.mark.parametrize("cell", ["best = None", "%%time\nbest = None", "for best in [None]: pass"])
def test_a_variable_that_a_cell_assigned_stays_the_tasks_own_also_with_the_value_that_was_sent(
    shared_kernel, cell
):
    shared_kernel.run("best = None\n%tfcluster restart")
    for source in ("best", cell):
        shared_kernel.run(f"%%tfcluster --view quiet\n{source}")
    shared_kernel.run("best = ['the notebook']")
    assert text_of(shared_kernel.run("%%tfcluster --view text\nprint(best)")) == "[worker-0]:    None\n"


def test_names_of_ipython_that_the_notebook_has_bound_anew_travel(shared_kernel):
    names = "open, exit, quit, _, __, _7, In, Out"
    shared_kernel.run(
        f"kept = In, Out\n{names} = (lambda text, n=n: (text, n) for n in range(8))"
        "\nuse = lambda: [open(1), exit(2), quit(3), _(4), __(5), _7(6), In(7), Out(8)]"
    )
    text = text_of(
        shared_kernel.run("%%tfcluster --view text\nprint(use() == [(n + 1, n) for n in range(8)])")
    )
    text += text_of(shared_kernel.run("%%tfcluster --view text\nprint(open(1), Out(8))"))
    shared_kernel.run("(In, Out), kept = kept, None\ndel open, exit, quit, _, __, _7\n%tfcluster restart")
    assert text == "[worker-0]:    True\n[worker-0]:    (1, 0) (8, 7)\n"
    cell = "%%tfcluster --view text\nprint(open.__globals__['__name__'], In is get_ipython().user_ns['_ih'], Out == {}, repr(_))"
    text = text_of(shared_kernel.run(cell))
    assert text == "[worker-0]:    IPython.core.interactiveshell True True ''\n"


ASKING = """
import doctest, timeit, unittest

class TestSum(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(double(2), 4)

def double(x):
    '''
    >>> double(factor)
    6
    '''
    return 2 * x

factor = 3
"""


def test_a_cell_that_asks_for_all_names_finds_those_of_the_notebook(kernel):
    kernel.run(ASKING + "import threading\nlock = threading.Lock()")
    cell = """%%tfcluster --workers 1 --view text
print("ran", unittest.main(argv=["x"], exit=False).result.testsRun)
print(doctest.testmod(), timeit.timeit("double(factor)", globals=globals(), number=1) > 0)"""
    text = kernel.text(cell)
    assert "ran 1\n" in text and "TestResults(failed=0, attempted=1) True\n" in text, text
    assert "lock (lock)" in text
    assert "lock (lock)" not in kernel.text(cell)


def test_an_object_whose_class_has_no_modules_name_comes_back(shared_kernel):
    shared_kernel.run("%%tfcluster --view quiet --out there\nodd")
    assert (
        text_of(shared_kernel.run("print(there['worker-0'].value, type(there['worker-0']).__name__)"))
        == "[1] Odd\n"
    )


@pytest.mark.parametrize("made", ["model", "keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])"])
def test_a_model_of_the_notebook_that_a_task_trains_stays_trained_there(shared_kernel, made):
    """Its saved form has the time in it: two of one model differ after a second."""
    shared_kernel.run(f"import time\nclock, net = time.localtime, {made}\nnet.compile('sgd', 'mse')")
    train = "net.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)"
    shared_kernel.run(f"%%tfcluster --view quiet --out trained\n{train}\nrepr(net.get_weights())")
    shared_kernel.run("time.localtime = lambda *_: clock(10**9)")
    shared_kernel.run("%%tfcluster --view quiet --out later\nrepr(net.get_weights())")
    shared_kernel.run("time.localtime = clock\nnet.optimizer.learning_rate = 0.5")
    shared_kernel.run("%%tfcluster --view quiet --out changed\n[float(net.optimizer.learning_rate)]")
    assert text_of(shared_kernel.run("print(later == trained, changed['worker-0'])")) == "True [0.5]\n"


def test_a_default_stream_is_the_stream_of_the_task(shared_kernel):
    assert text_of(shared_kernel.run("%%tfcluster --view text\nsay('hello')")) == "[worker-0]:    hello\n"


def test_a_logger_writes_what_it_writes_in_the_notebook(shared_kernel):
    run = shared_kernel.run
    assert text_of(run("%%tfcluster --view text\nlogger.debug('hello')")) == "[worker-0]:    DEBUG: hello\n"
    run("%%tfcluster --view quiet\nlogging.getLogger().setLevel(logging.INFO)")
    run("logger.setLevel(logging.INFO), shown.setLevel(logging.INFO)")
    code = "logger.debug('no'), logger.info('yes')\nprint(len(logger.handlers), logging.getLogger().level);"
    assert text_of(run(f"%%tfcluster --view text\n{code}")) == (
        "[worker-0]:    INFO: yes\n[worker-0]:    1 20\n"  # the level that the task has set stays
    )
    run("logger.removeHandler(shown)")
    assert text_of(run("%%tfcluster --view text\nprint(logger.handlers)")) == "[worker-0]:    []\n"


def test_lines_of_tasks_are_in_the_log_file_of_the_notebook(shared_kernel, tmp_path):
    """Also one that the notebook has opened to write it anew; a handler that stays is named once."""
    run, path = shared_kernel.run, tmp_path / "run.log"
    run(
        f"""
        import logging.handlers
        filed = logging.getLogger("filed")
        filed.propagate = False
        filed.addHandler(logging.FileHandler({str(path)!r}, mode="w"))
        filed.handlers[0].setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        filed.handlers[0].setLevel(logging.ERROR)
        filed.addHandler(logging.handlers.RotatingFileHandler({str(tmp_path / "rotated.log")!r}))
        filed.addHandler(logging.handlers.MemoryHandler(1))
        filed.error("one")
        """
    )
    said = text_of(run("%%tfcluster --view text\nfiled.warning('no'), filed.error('two')"))
    assert "the RotatingFileHandler of the logger 'filed' stays here" in said and "rotate" in said
    assert "the MemoryHandler of the logger 'filed' stays here" in said
    run("filed.error('three')")
    run("filed.handlers[0].setFormatter(None)")
    assert "stays here" not in text_of(run("%%tfcluster --view text\nfiled.error('four')"))
    opened = "[os.path.realpath(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')]"
    count = f"print({opened}.count({str(path.resolve())!r}))"
    assert text_of(run(f"%%tfcluster --view text\n{count}")) == "[worker-0]:    1\n"
    assert path.read_text() == "ERROR: one\nERROR: two\nERROR: three\nfour\n"
    run(f"filed.handlers[0].baseFilename = {str(tmp_path / 'nowhere' / 'x.log')!r}")
    said = text_of(run("%%tfcluster --view text\nfiled.error('five')"))
    assert "no lines are logged to" in said and "No such file" in said


FILTERS = """
import threading
class Hides:
    def __init__(self, word):
        self.word = word
    def filter(self, record):
        return self.word not in record.getMessage()
def adds(record):
    record.msg = prefix + record.msg
    return True
prefix = "seen: "
sieved, child = logging.getLogger("sieved"), logging.getLogger("sieved.child")
sieved.propagate = False
sieved.addHandler(logging.StreamHandler())
sieved.handlers[0].addFilter(Hides("token"))
sieved.addFilter(Hides("noise"))
sieved.addFilter(adds)
child.addFilter(logging.Filter("sieved.child"))
"""


def test_filters_of_loggers_and_handlers_hold_on_tasks(shared_kernel):
    run = shared_kernel.run
    log = "for word in ('one', 'my token', 'noise'): sieved.warning(word), child.warning(word)"
    run(FILTERS)
    # filters of a logger are not asked for what its children log
    lines = ["seen: one", "one", "noise"]
    expected = "".join(f"[worker-0]:    {line}\n" for line in lines)
    assert text_of(run(f"%%tfcluster --view text\n{log}")) == expected
    assert text_of(run(f"{log}\nNone")) == "".join(f"{line}\n" for line in lines)
    run("sieved.filters[0].word = 'one'\nsieved.removeFilter(adds)")
    lines = ["one", "noise", "noise"]
    expected = "".join(f"[worker-0]:    {line}\n" for line in lines)
    assert text_of(run(f"%%tfcluster --view text\n{log}")) == expected
    run("sieved.filters[0].lock, sieved.handlers[0].filters[0].lock = threading.Lock(), threading.Lock()")
    said = text_of(run(f"%%tfcluster --view text\n{log}"))
    assert "the filter Hides of the logger 'sieved' stays here, and tasks log without it" in said
    assert (
        "the StreamHandler of the logger 'sieved' stays here" in said and "its filters cannot travel" in said
    )
    assert "[worker-0]:" not in said  # no other handler shows what the filter hides
    assert not text_of(run(f"%%tfcluster --view text\n{log}"))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_travel_is_refused_by_name(shared_kernel, name):
    kind, text = shared_kernel.error(f"%%tfcluster\nopen('has-run', 'w')\n{name}")
    assert kind == "CaptureError"
    assert f"{name} (" in text and REFUSED[name] in text
    assert text_of(shared_kernel.run("print(os.path.exists('has-run'), open(path).read())")) == "False kept\n"


def test_an_exception_whose_class_cannot_be_compared_is_shown(shared_kernel):
    compared = "def __eq__(cls, other): 1 / 0\n    __hash__ = __eq__"
    made = f"class Meta(type):\n    {compared}\nclass Odd(Exception, metaclass=Meta): pass"
    kind, text = shared_kernel.error(f"%%tfcluster --view quiet\n{made}\nraise Odd('message')")
    assert kind == "Odd" and "Odd: message" in text


def test_a_result_that_holds_tensorflow_does_not_bring_it_into_the_kernel(kernel):
    kernel.run("%load_ext tfmagic")
    kernel.run("%%tfcluster --workers 1 --out r --view quiet\nimport tensorflow as tf\n{'module': tf}")
    text = text_of(kernel.run("import sys\nprint('tensorflow' in sys.modules, r)"))
    assert text.startswith("False") and "has not imported TensorFlow" in text
