"""The standard library as people use it in notebooks."""

# %% enum: members, flags and auto
from enum import Enum, Flag, IntEnum, StrEnum, auto, unique
@unique
class Colour(Enum):
    RED = auto()
    GREEN = auto()
    @property
    def short(self):
        return self.name[0]
class Level(IntEnum):
    LOW = 1
    HIGH = 10
class Perm(Flag):
    R = auto()
    W = auto()
class Mode(StrEnum):
    TRAIN = auto()
print(list(Colour), Colour["RED"].short, Colour(2), Level.HIGH > 5, Perm.R | Perm.W, Mode.TRAIN, repr(Mode.TRAIN))
Colour.RED

# %% enum: a class with a value twice
from enum import Enum, unique
@unique
class Twice(Enum):
    A = 1
    B = 1

# %% enum: pickling of a member
import pickle
from enum import Enum
class C(Enum):
    A = "a"
pickle.loads(pickle.dumps(C.A)) is C.A

# %% dataclasses: fields, ordering, frozen and replace
from dataclasses import asdict, dataclass, field, fields, replace, FrozenInstanceError
@dataclass(order=True)
class Run:
    loss: float
    name: str = field(compare=False)
    tags: list[str] = field(default_factory=list)
@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: int = 0
    y: int = 0
runs = sorted([Run(0.3, "b"), Run(0.1, "a", ["x"])])
print(runs, asdict(runs[0]), [f.name for f in fields(Run)], replace(Point(x=1), y=5), hash(Point()) == hash(Point()))
Point().x = 3

# %% dataclasses: post_init and InitVar
from dataclasses import InitVar, dataclass, field
@dataclass
class Net:
    sizes: list
    scale: InitVar[int] = 1
    total: int = field(init=False)
    def __post_init__(self, scale):
        self.total = sum(self.sizes) * scale
Net([1, 2, 3], scale=10)

# %% typing: Generic, TypeVar, Protocol, NamedTuple, TypedDict
from typing import Generic, NamedTuple, Protocol, TypedDict, TypeVar, get_type_hints, runtime_checkable
T = TypeVar("T")
class Stack(Generic[T]):
    def __init__(self) -> None:
        self.items: list[T] = []
    def push(self, item: T) -> "Stack[T]":
        self.items.append(item)
        return self
@runtime_checkable
class Sized(Protocol):
    def __len__(self) -> int: ...
class Pair(NamedTuple):
    left: int
    right: int = 2
class Movie(TypedDict, total=False):
    title: str
print(Stack[int]().push(3).items, isinstance([], Sized), Pair(1), Movie(title="m"), get_type_hints(Stack.push), Stack[int])
Pair(5)

# %% typing: cast, overload, Annotated and Literal
from typing import Annotated, Any, Literal, Optional, Union, cast, get_args, overload
Mode = Literal["r", "w"]
@overload
def f(x: int) -> int: ...
@overload
def f(x: str) -> str: ...
def f(x: Any) -> Any:
    return x
get_args(Mode), Optional[int], Union[int, str], int | None, Annotated[int, "units"], cast(int, "a"), f(1)

# %% functools: caches, partial, reduce and singledispatch
import functools
calls = []
@functools.lru_cache(maxsize=None)
def fib(n):
    calls.append(n)
    return n if n < 2 else fib(n - 1) + fib(n - 2)
@functools.singledispatch
def tell(x):
    return "thing"
@tell.register
def _(x: int):
    return "int"
@tell.register(list)
def _tell_list(x):
    return "list"
class Lazy:
    @functools.cached_property
    def value(self):
        calls.append("computed")
        return 42
lazy = Lazy()
print(fib(20), len(calls), fib.cache_info(), tell(1), tell([]), tell(""), lazy.value, lazy.value, calls[-1])
functools.reduce(lambda a, b: a * b, range(1, 6)), functools.partial(pow, 2)(10)

# %% itertools
import itertools as it
print(list(it.chain([1], "ab")), list(it.islice(it.count(5, 2), 3)), list(it.accumulate([1, 2, 3])))
print({k: list(g) for k, g in it.groupby("aabbc")}, list(it.product("ab", repeat=2)), list(it.combinations(range(3), 2)))
list(it.pairwise("abc")), list(it.zip_longest([1], [2, 3], fillvalue=0)), next(it.cycle([7]))

# %% contextlib
import contextlib, io
@contextlib.contextmanager
def tag(name):
    print(f"<{name}>")
    yield
    print(f"</{name}>")
with contextlib.ExitStack() as stack:
    for name in "ab":
        stack.enter_context(tag(name))
    stack.callback(print, "called")
with contextlib.suppress(KeyError):
    {}["x"]
out = io.StringIO()
with contextlib.redirect_stdout(out):
    print("captured")
with contextlib.redirect_stderr(out):
    import sys; print("this, too", file=sys.stderr)
out.getvalue()

# %% collections
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque, namedtuple
d = defaultdict(list)
d["a"].append(1)
P = namedtuple("P", "x y", defaults=[0])
q = deque([1, 2, 3], maxlen=3)
q.append(4)
print(d, P(1), q, Counter("hello").most_common(1), ChainMap({"a": 1}, {"b": 2})["b"])
P(1, 2)

# %% collections: a named tuple of the cell is pickled
import pickle
from collections import namedtuple
P = namedtuple("P", "x y")
pickle.loads(pickle.dumps(P(1, 2)))

# %% asyncio: gather, queue, timeout, semaphore and to_thread
import asyncio
async def worker(queue, found):
    while True:
        item = await queue.get()
        found.append(item * 2)
        queue.task_done()
async def main():
    queue, found = asyncio.Queue(), []
    tasks = [asyncio.create_task(worker(queue, found)) for _ in range(3)]
    for i in range(5):
        queue.put_nowait(i)
    await queue.join()
    for t in tasks:
        t.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(10)
    except TimeoutError:
        found.append("timeout")
    return sorted(found[:-1]), found[-1], await asyncio.to_thread(lambda: "thread")
await main()

# %% asyncio: a task group with an error
import asyncio
async def bad():
    raise ValueError("from a task")
async with asyncio.TaskGroup() as group:
    group.create_task(bad())
    group.create_task(asyncio.sleep(10))

# %% asyncio: a subprocess
import asyncio
_process = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
out, _err = await _process.communicate()
out, _process.returncode

# %% concurrent.futures: threads
from concurrent.futures import ThreadPoolExecutor, as_completed
def work(n):
    if n == 3:
        raise ValueError("three")
    return n * n
with ThreadPoolExecutor(4) as pool:
    print(list(pool.map(work, [1, 2])))
    futures = {pool.submit(work, n): n for n in (2, 3)}
    for f in sorted(as_completed(futures), key=futures.get):
        print(futures[f], f.exception() or f.result())
pool.submit(work, 1)

# %% concurrent.futures: an error of a thread
from concurrent.futures import ThreadPoolExecutor
def work(n):
    return 1 // n
with ThreadPoolExecutor() as pool:
    pool.submit(work, 0).result()

# %% concurrent.futures: processes
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
def square(n):
    return n * n
with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
    print(list(pool.map(square, range(5))))

# %% multiprocessing: a pool with a function of the cell
import multiprocessing as mp
def cube(n):
    return n**3
with mp.get_context("fork").Pool(2) as pool:
    print(pool.map(cube, range(4)), pool.apply(cube, (5,)))

# %% multiprocessing: a process, a queue, a pipe and an exit code
import multiprocessing as mp
ctx = mp.get_context("fork")
def child(queue, end):
    queue.put({"pid is an int": isinstance(mp.current_process().pid, int)})
    end.send("through the pipe")
    raise SystemExit(3)
queue, (a, b) = ctx.Queue(), ctx.Pipe()
p = ctx.Process(target=child, args=(queue, b), name="child")
p.start()
print(queue.get(timeout=20), a.recv())
p.join(20)
p.exitcode, p.name

# %% multiprocessing: an error of a child is printed
import multiprocessing as mp
def child():
    raise ValueError("in the child")
p = mp.get_context("fork").Process(target=child, name="child")
p.start(); p.join(20)
p.exitcode

# %% multiprocessing: a shared value, a lock and shared memory
import multiprocessing as mp
from multiprocessing import shared_memory
ctx = mp.get_context("fork")
total, lock = ctx.Value("i", 0), ctx.Lock()
def add():
    for _ in range(50):
        with lock:
            total.value += 1
ps = [ctx.Process(target=add) for _ in range(2)]
[p.start() for p in ps]; [p.join(20) for p in ps]
_memory = shared_memory.SharedMemory(create=True, size=16)
_memory.buf[0] = 7
first = _memory.buf[0]
_memory.close(); _memory.unlink()
total.value, first

# %% multiprocessing: spawn with a function of a module
import multiprocessing as mp, math
with mp.get_context("spawn").Pool(1) as pool:
    print(pool.map(math.sqrt, [4, 9]))

# %% multiprocessing: names of the process and of its parent
import multiprocessing as mp
mp.current_process().name, mp.parent_process(), mp.active_children()

# %% threading: locals, events and an exception of a thread
import threading
seen, ready = [], threading.Event()
local = threading.local()
def run():
    local.x = 1
    ready.wait(10)
    seen.append((threading.current_thread().name, local.x))
t = threading.Thread(target=run, name="mine")
t.start(); ready.set(); t.join()
seen, hasattr(local, "x"), threading.current_thread() is threading.main_thread()

# %% threading: what a thread prints is in the cell
import threading
t = threading.Thread(target=print, args=("from a thread",))
t.start(); t.join()

# %% threading: an exception in a thread is printed
import threading
def fails():
    raise ValueError("in a thread")
t = threading.Thread(target=fails, name="failing")
t.start(); t.join()
"the cell goes on"

# %% subprocess
import subprocess, sys
done = subprocess.run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(4)"], capture_output=True, text=True)
print(done.returncode, done.stdout, done.stderr)
print(subprocess.check_output("echo $((1 + 2))", shell=True, text=True))
subprocess.run(["false"], check=True)

# %% subprocess: what a child writes is shown
import subprocess
subprocess.run(["echo", "from a child"])
subprocess.run("echo to stderr >&2", shell=True).returncode

# %% subprocess: a program that is not there
import subprocess
subprocess.run(["no-such-program-anywhere"])

# %% subprocess: standard input is empty
import subprocess
subprocess.run(["cat"], stdin=subprocess.DEVNULL, capture_output=True).stdout

# %% os.system and os.popen
import os
code = os.system("exit 3")
os.waitstatus_to_exitcode(code), os.popen("echo popen").read()

# %% os.fork and waitpid
import os
_pid = os.fork()
if _pid == 0:
    os._exit(5)
os.waitstatus_to_exitcode(os.waitpid(_pid, 0)[1])

# %% environment and working folder
import os
os.environ["SAME_PROGRAM"] = "1"
print(os.getenv("SAME_PROGRAM"), os.path.basename(os.getcwd()) != "", os.path.isfile("/etc/passwd"))
del os.environ["SAME_PROGRAM"]
os.environ["NO_SUCH_VARIABLE"]

# %% logging: a root warning without any setting
import logging
logging.warning("root %s", "warning")
logging.info("not shown")

# %% logging: basicConfig and a logger of the user's
import logging
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s", force=True)
log = logging.getLogger("mine")
log.info("shown %d", 5)
log.debug("not shown")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
logging.getLogger().handlers.clear(); logging.getLogger().setLevel(logging.WARNING)

# %% logging: a handler to a string and to a file
import io, logging
from pathlib import Path
out = io.StringIO()
log = logging.getLogger("handled")
log.propagate = False
log.handlers = [logging.StreamHandler(out), logging.FileHandler("run.log", mode="w")]
log.error("both")
for h in log.handlers: h.close()
out.getvalue(), Path("run.log").read_text()

# %% logging: handlers of the root before anybody sets them
import logging
logging.getLogger().handlers, logging.getLogger().level, logging.lastResort.level

# %% warnings: shown with the line
import warnings
def old():
    warnings.warn("use new()", DeprecationWarning, stacklevel=2)
warnings.warn("careful")
old()
"done"

# %% warnings: shown once a place
import warnings
def noisy():
    warnings.warn("again and again", UserWarning)
for _ in range(3):
    noisy()

# %% warnings: an equal one in the next cell
import warnings
warnings.warn("the same")
# %%
import warnings
warnings.warn("the same")

# %% warnings: caught, and made errors
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.warn("one", FutureWarning)
print([(w.category.__name__, str(w.message)) for w in caught])
with warnings.catch_warnings():
    warnings.simplefilter("error")
    warnings.warn("now an error", RuntimeWarning)

# %% pathlib and tempfile
import tempfile
from pathlib import Path
with tempfile.TemporaryDirectory() as folder:
    p = Path(folder) / "a" / "b.txt"
    p.parent.mkdir()
    p.write_text("line\n" * 3)
    print(p.exists(), p.suffix, p.stem, p.read_text().count("line"), sorted(x.name for x in Path(folder).rglob("*")))
    with tempfile.NamedTemporaryFile("w+", dir=folder) as f:
        f.write("temp"); f.flush(); f.seek(0)
        print(f.read())
p.exists()

# %% files: write, append, read by line and seek
with open("notes.txt", "w") as f:
    f.write("a\nb\n")
with open("notes.txt", "a") as f:
    print("c", file=f)
with open("notes.txt") as f:
    lines = [line.strip() for line in f]
with open("notes.txt", "rb") as f:
    f.seek(-2, 2)
    tail = f.read()
f.closed, lines, tail

# %% files: an open file is a value
f = open("notes2.txt", "w")
print(f.name, f.mode, f.closed)
f.close()

# %% files: csv, zip, gzip and shutil
import csv, gzip, io, shutil, zipfile
with open("t.csv", "w", newline="") as f:
    csv.writer(f).writerows([["a", "b"], [1, "x,y"]])
rows = list(csv.DictReader(open("t.csv")))
with zipfile.ZipFile("t.zip", "w") as z:
    z.write("t.csv")
data = gzip.decompress(gzip.compress(b"data" * 10))
shutil.copy("t.csv", "t2.csv")
rows, zipfile.ZipFile("t.zip").namelist(), len(data), open("t2.csv").read()

# %% re
import re
m = re.search(r"(?P<year>\d{4})-(\d\d)", "on 2026-11-22")
print(m, m.groups(), m["year"], re.findall(r"\b\w{2}\b", "to be or"), re.sub(r"(\w)(\w)", r"\2\1", "abcd"))
re.compile("(unclosed")

# %% json
import json
text = json.dumps({"b": [1, 2.5, None, True], "a": "ü"}, sort_keys=True, indent=1, ensure_ascii=False)
print(text)
json.loads("{'a': 1}")

# %% pickle: what it cannot
import pickle
pickle.dumps(lambda: 1)

# %% pickle: a function of the cell by name
import pickle
def f(x):
    return x + 1
pickle.loads(pickle.dumps(f))(1)

# %% random with a seed
import random
random.seed(7)
r = random.Random(3)
random.random(), random.randint(1, 100), random.sample(range(10), 3), random.choice("abc"), r.gauss(0, 1)

# %% random goes on in the next cell
import random
random.seed(1)
random.random()
# %%
random.random()

# %% time and datetime
import time
from datetime import date, datetime, timedelta, timezone
_start = time.perf_counter()
time.sleep(0.01)
print(time.perf_counter() - _start > 0.005, time.strftime("%Y", time.gmtime(0)))
date(2026, 1, 31) + timedelta(days=1), datetime(2026, 1, 1, tzinfo=timezone.utc).isoformat()

# %% math, statistics, fractions and decimal
import math, statistics
from decimal import Decimal, getcontext
from fractions import Fraction
print(math.comb(5, 2), math.isclose(0.1 + 0.2, 0.3), statistics.stdev([1, 2, 3, 4]), Fraction(3, 6))
Decimal("1.10") + 1, getcontext().prec

# %% string, textwrap and pprint
import pprint, string, textwrap
print(textwrap.fill("word " * 12, 20), string.ascii_lowercase[:3], string.Template("$a b").substitute(a=1))
pprint.pprint({"key" * 5: list(range(20)), "other": {"nested": ["x" * 30] * 3}})

# %% io, sys streams and print to them
import sys
print("to out", file=sys.stdout)
print("to err", file=sys.stderr)
sys.stdout.write("written\n")
print("a", "b", sep="-", end="!\n", flush=True)

# %% sys.stdout: encoding, isatty and the count that write gives
import sys
sys.stdout.isatty(), sys.stdout.encoding.lower(), sys.stdout.write("abc\n"), sys.stdin is None

# %% input is refused where nobody can type
input("name? ")

# %% argparse and sys.argv in a cell
import argparse
parser = argparse.ArgumentParser(prog="train")
parser.add_argument("--epochs", type=int, default=3)
print(parser.parse_args([]), parser.parse_args(["--epochs", "5"]))
parser.parse_args(["--epochs", "x"])

# %% sqlite3
import sqlite3
db = sqlite3.connect(":memory:")
db.execute("create table t (a int)")
db.executemany("insert into t values (?)", [(1,), (2,)])
print(db.execute("select sum(a) from t").fetchone())
db.execute("select nothing from nowhere")

# %% heapq, bisect, array and struct
import array, bisect, heapq, struct
heap = [5, 1, 4]
heapq.heapify(heap)
heapq.heappop(heap), bisect.bisect([1, 3, 5], 3), array.array("i", [1, 2]), struct.unpack("<hh", struct.pack("<hh", 1, -2))

# %% unittest in a cell
import unittest
class T(unittest.TestCase):
    def test_ok(self):
        self.assertEqual(1, 1)
result = unittest.TextTestRunner(stream=__import__("io").StringIO()).run(unittest.defaultTestLoader.loadTestsFromTestCase(T))
result.wasSuccessful(), result.testsRun

# %% doctest in a cell
import doctest
def double(x):
    """
    >>> double(2)
    4
    """
    return 2 * x
doctest.run_docstring_examples(double, globals())

# %% timeit in Python
import timeit
timeit.timeit("x + 1", setup="x = 1", number=10) < 5

# %% gc, tracemalloc and resource
import gc, tracemalloc
tracemalloc.start()
data = [0] * 10000
_size, _peak = tracemalloc.get_traced_memory()
tracemalloc.stop()
gc.isenabled(), _size > 10000, gc.collect() >= 0

# %% signal: an alarm
import signal, time
fired = []
before = signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.02)
_deadline = time.monotonic() + 10
while not fired and time.monotonic() < _deadline:
    time.sleep(0.001)
signal.signal(signal.SIGALRM, before)
fired

# %% atexit, and the hooks of sys
import atexit, sys
atexit.register(lambda: None)
sys.excepthook.__name__ != "", sys.getrecursionlimit() >= 1000, sys.flags.interactive in (0, 1)

# %% contextvars
import contextvars
var = contextvars.ContextVar("var", default=1)
token = var.set(5)
value = var.get()
var.reset(token)
value, var.get(), contextvars.copy_context().run(var.get)

# %% a context variable stays in the next cell
import contextvars
var = contextvars.ContextVar("kept", default=1)
_token = var.set(9)
# %%
var.get()

# %% uuid, hashlib, base64 and secrets
import base64, hashlib, secrets, uuid
hashlib.sha256(b"a").hexdigest()[:8], base64.b64encode(b"abc"), len(secrets.token_hex(4)), uuid.UUID(int=5)

# %% http.server and urllib on this machine
import http.server, threading, urllib.request
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"served")
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), H)
threading.Thread(target=server.serve_forever, daemon=True).start()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
body = opener.open(f"http://127.0.0.1:{server.server_port}/").read()
server.shutdown(); server.server_close()
body
