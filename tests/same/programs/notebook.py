"""Definitions of the notebook that a cell uses."""

# %% (notebook) data of all plain kinds
number, text, flag, nothing, data = 5, "abc", True, None, b"bytes"
values, pair, names, table = [1, [2, 3]], (1, "x"), {"a", "b"}, {"k": {"n": 1.5}, 3: None}
big, small, odd, span = 10**40, 1e-300, float("inf"), range(2, 10, 3)
# %%
print(number, text, flag, nothing, data, values, pair, sorted(names), table, big, small, odd, list(span))

# %% (notebook) a function that uses another, a constant and a module
import math
scale = 3
def inner(x):
    return math.floor(x) * scale
def outer(x):
    return inner(x) + 1
# %%
outer(2.7)

# %% (notebook) a function with defaults, keywords, a closure and a docstring
def maker(n):
    def add(x, *, y=2):
        """Add."""
        return x + y + n
    return add
add5 = maker(5)
# %%
add5(1), add5(1, y=0), add5.__doc__, add5.__name__

# %% (notebook) a lambda and a partial
import functools
base = 2
power = lambda x: x**base
cube = functools.partial(pow, exp=3)
# %%
power(5), cube(2)

# %% (notebook) functions in a dictionary, a list and a tuple
unit = 10
def up(x):
    return x + unit
def down(x):
    return x - unit
table, row, pair = {"up": up, "down": down}, [up, down], (up, lambda x: x * unit)
# %%
table["up"](1), [f(1) for f in row], pair[1](3)

# %% (notebook) a function in an attribute
unit = 7
class Holder:
    pass
holder = Holder()
holder.fn = lambda x: x + unit
# %%
holder.fn(1)

# %% (notebook) a function in lru_cache
import functools
offset = 3
@functools.lru_cache(maxsize=8)
def slow(n):
    return n + offset
slow(1)
# %%
slow(1), slow(2), slow.cache_info().maxsize

# %% (notebook) a decorated function
import functools, time
log = []
def timed(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        log.append(fn.__name__)
        return fn(*args, **kwargs)
    return wrapper
@timed
def work(x):
    return x * 2
# %%
work(4), log, work.__name__

# %% (notebook) a function under wraps of a library
import contextlib
level = 2
@contextlib.contextmanager
def room(name):
    yield name * level
# %%
with room("a") as r:
    print(r)

# %% (notebook) a function under wraps, beside a value that needs dill
import contextlib
level = 2
@contextlib.contextmanager
def room(name):
    yield name * level
class Thing:
    def __init__(self): self.fn = lambda: level
thing = Thing()
# %%
with room("a") as r:
    print(r, thing.fn())

# %% (notebook) a recursive function and mutual recursion
def fact(n):
    return 1 if n == 0 else n * fact(n - 1)
def even(n):
    return n == 0 or odd(n - 1)
def odd(n):
    return n != 0 and even(n - 1)
# %%
fact(5), even(10), odd(7)

# %% (notebook) a generator function and an async function
import asyncio
def count(n):
    yield from range(n)
async def later(x):
    await asyncio.sleep(0)
    return x * 2
# %%
list(count(3)), await later(4)

# %% (notebook) an enum
from enum import Enum
class Colour(Enum):
    RED = 1
    BLUE = 2
# %%
Colour.RED, list(Colour), Colour(2).name

# %% (notebook) a member of an enum
from enum import Enum
class Colour(Enum):
    RED = 1
    BLUE = 2
chosen = Colour.BLUE
# %%
chosen is Colour.BLUE, chosen.value

# %% (notebook) an enum as a default, a field and a key
from dataclasses import dataclass
from enum import Enum, IntEnum
class Mode(Enum):
    FAST = "fast"
class Level(IntEnum):
    LOW = 1
@dataclass
class Config:
    mode: Mode = Mode.FAST
def pick(mode=Mode.FAST):
    return mode.value
config, weights = Config(), {Level.LOW: 0.5}
# %%
config, pick(), weights[Level.LOW], Config(Mode.FAST) == config

# %% (notebook) a flag and a string enum
from enum import Enum, Flag, StrEnum, auto
class Perm(Flag):
    R = auto()
    W = auto()
class Name(str, Enum):
    A = "a"
class Tag(StrEnum):
    X = "x"
both = Perm.R | Perm.W
# %%
Perm.R in both, Name.A == "a", f"{Tag.X}", both

# %% (notebook) an enum with methods and a nested class
from enum import Enum
class Shape(Enum):
    SQUARE = 4
    @property
    def corners(self):
        return self.value
    @classmethod
    def default(cls):
        return cls.SQUARE
# %%
Shape.default().corners

# %% (notebook) a class with inheritance, a property and super
class Base:
    kind = "base"
    def __init__(self, n): self.n = n
    def area(self): return self.n
class Square(Base):
    kind = "square"
    @property
    def side(self): return self.n
    def area(self): return super().area() ** 2
    @staticmethod
    def unit(): return Square(1)
s = Square(3)
# %%
s.area(), s.side, Square.unit().area(), isinstance(s, Base), Square.kind

# %% (notebook) a dataclass and its instances
from dataclasses import dataclass, field, replace
@dataclass(frozen=True)
class Params:
    rate: float = 0.1
    layers: tuple = (1, 2)
    tags: list = field(default_factory=list)
p = Params(rate=0.5)
# %%
p, replace(p, rate=1.0), Params() == Params(), hash(Params(tags=())) is not None

# %% (notebook) a named tuple, typed and plain
from collections import namedtuple
from typing import NamedTuple
P = namedtuple("P", "x y")
class Q(NamedTuple):
    a: int
    b: str = "b"
p, q = P(1, 2), Q(3)
# %%
p.x, q, P(5, 6), Q(1, "z")._replace(a=9), isinstance(p, P)

# %% (notebook) a TypeVar and a generic class
from typing import Generic, TypeVar
T = TypeVar("T")
class Box(Generic[T]):
    def __init__(self, item: T): self.item = item
    def get(self) -> T: return self.item
box = Box(5)
def first(items: list[T]) -> T:
    return items[0]
# %%
box.get(), Box[int](3).get(), first([7]), isinstance(box, Box)

# %% (notebook) a protocol, a typed dict and type aliases
from typing import Protocol, TypedDict, Union, runtime_checkable
@runtime_checkable
class HasArea(Protocol):
    def area(self) -> float: ...
class Movie(TypedDict):
    title: str
Number = Union[int, float]
class Square:
    def area(self): return 4
# %%
isinstance(Square(), HasArea), Movie(title="t"), Number

# %% (notebook) an abstract class and its subclass
from abc import ABC, abstractmethod
class Shape(ABC):
    @abstractmethod
    def area(self): ...
class Square(Shape):
    def area(self): return 4
# %%
Square().area(), Shape.__abstractmethods__

# %% (notebook) an exception class is raised by a cell
class ConfigError(ValueError):
    def __init__(self, key, code=3):
        super().__init__(f"bad {key}")
        self.key, self.code = key, code
# %%
raise ConfigError("rate")

# %% (notebook) a function of the notebook raises
def check(x):
    if x < 0:
        raise ValueError(f"{x} is negative")
    return x
# %%
check(1)
check(-1)

# %% (notebook) a class with slots, a metaclass and a descriptor
class Meta(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tag = "meta"
        return made
class Point(metaclass=Meta):
    __slots__ = ("x", "tag")
    def __init__(self, x): self.x = x
point = Point(4)
# %%
point.x, Point(5).tag

# %% (notebook) a class with a cached property and a class method
import functools
class Lazy:
    made = 0
    @functools.cached_property
    def value(self):
        return 42
    @classmethod
    def create(cls):
        cls.made += 1
        return cls()
lazy = Lazy()
# %%
lazy.value, Lazy.create().value, Lazy.made

# %% (notebook) singledispatch
import functools
@functools.singledispatch
def tell(x):
    return "thing"
@tell.register
def _tell_int(x: int):
    return "int"
# %%
tell(1), tell("s")

# %% (notebook) an instance with reduce, getstate and setstate
class Custom:
    def __init__(self, n): self.n, self.cache = n, {}
    def __getstate__(self): return {"n": self.n}
    def __setstate__(self, state): self.n, self.cache = state["n"], "made again"
class Reduced:
    def __init__(self, n): self.n = n
    def __reduce__(self): return Reduced, (self.n,)
_custom, reduced = Custom(1), Reduced(5)
# %%
_custom.n, reduced.n

# %% (notebook) shared and recursive objects stay so
shared = [1]
a, b = {"x": shared}, {"y": shared}
loop = []
loop.append(loop)
# %%
loop[0] is loop, a["x"] is b["y"]

# %% (notebook) modules and aliases of them
import numpy as np, os.path as path, json
from collections import Counter
# %%
np.arange(2).sum(), path.join("a", "b"), json.dumps(1), Counter("aa")

# %% (notebook) numpy arrays of all kinds
import numpy as np
a, empty, other = np.arange(6.0).reshape(2, 3), np.zeros((0, 3)), np.zeros((0,))
s = np.array([(1, 2.0)], dtype=[("i", "i4"), ("f", "f8")])
o, scalar, view = np.array([{"a": 1}, None], dtype=object), np.float32(2.5), np.arange(10)[::2]
fortran = np.asfortranarray(a)
# %%
a, empty.shape, s["f"], o[0], scalar, view, fortran.flags.f_contiguous, other.dtype

# %% (notebook) an instance with two empty arrays
import numpy as np
class Model:
    def __init__(self): self.a, self.b = np.empty(0), np.empty((0, 2))
model = Model()
# %%
model.a.shape, model.b.shape

# %% (notebook) a fitted model of scikit-learn
from sklearn.datasets import make_classification
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
X, y = make_classification(40, random_state=0)
pipe = make_pipeline(StandardScaler(), SVC()).fit(X, y)
# %%
pipe.predict(X[:5])

# %% (notebook) frames, series and dates of pandas
import pandas as pd
df = pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": pd.Categorical(["u", "v"])})
s = pd.Series([1, 2], name="s")
when = pd.Timestamp("2026-01-01", tz="UTC")
# %%
df, s.sum(), when

# %% (notebook) standard objects: paths, dates, patterns, decimals, deques
import datetime, decimal, fractions, pathlib, re, uuid
from collections import OrderedDict, defaultdict, deque
p, d, r = pathlib.Path("/a") / "b", datetime.date(2026, 1, 1), re.compile("a+")
dec, frac, q = decimal.Decimal("1.1"), fractions.Fraction(1, 3), deque([1], maxlen=2)
dd, od, u = defaultdict(list, a=[1]), OrderedDict(b=1), uuid.UUID(int=3)
# %%
p, d, r.findall("baa"), dec, frac, q, dd["new"], od, u

# %% (notebook) random and numpy generators with their state
import random, numpy as np
r, _rng = random.Random(5), np.random.default_rng(5)
# %%
r.random(), _rng.random()

# %% (notebook) a bound method and a method of a builtin
class Counter:
    def __init__(self): self.n = 0
    def add(self, k):
        self.n += k
        return self.n
_counter = Counter()
bound, upper = _counter.add, "abc".upper
# %%
bound(5), upper()

# %% (notebook) an iterator and a generator expression
numbers = iter([1, 2, 3])
pairs = zip("ab", [1, 2])
# %%
next(numbers), list(pairs)

# %% (notebook) a logger
import logging
log = logging.getLogger("notebooks")
def warn():
    log.warning("from %s", "a function")
# %%
warn()

# %% (notebook) a context variable, a weak reference and a lock
import threading
lock = threading.Lock()
# %%
lock.acquire()

# %% (notebook) an open file
f = open("kept.txt", "w")
print("first", file=f, flush=True)
# %%
print("second", file=f, flush=True)
# %% (notebook)
f.close()
open("kept.txt").read()

# %% (notebook) a cell reads what is not there
x = 1
# %%
x + missing_everywhere

# %% (notebook) a variable that is changed in the notebook travels again
v = [1]
# %%
v
# %% (notebook)
v.append(2)
# %%
v

# %% (notebook) a function that is defined again
def f():
    return "old"
# %%
f()
# %% (notebook)
def f():
    return "new"
# %%
f()

# %% (notebook) a global that a function reads is changed
rate = 1
def scaled(x):
    return x * rate
# %%
scaled(10)
# %% (notebook)
rate = 5
# %%
scaled(10)

# %% (notebook) names used in an f-string, a comprehension and a lambda of the cell
a, b, c = 2, [1, 2, 3], "k"
# %%
f"{a!r:>4}", [x * a for x in b if x < a + 1], (lambda: {c: a})()

# %% (notebook) names in the texts of query and eval
import pandas as pd
frame = pd.DataFrame({"a": [1, 2, 3]})
limit, more = 1, 10
def select(table):
    return table.query("a > @limit")
# %%
frame.query("a > @limit").a.tolist(), eval("limit + more"), pd.eval("more * 2"), frame.eval("a + @more").tolist()
# %%
select(frame).a.tolist(), [eval("limit + i") for i in range(2)]

# %% (notebook) a name used in exec, eval and a format string
hidden = 5
# %%
eval("1 + 1"), "{0}".format(hidden)

# %% (notebook) a name used in a shell command and in a magic
word, n = "spoken", 4
# %%
!echo $word {n + 1}
%time n

# %% (notebook) a name used in a class body and a decorator
base_rate = 3
def mark(cls):
    cls.marked = True
    return cls
# %%
@mark
class C:
    rate = base_rate * 2
C.rate, C.marked

# %% (notebook) a name that the cell also assigns
total = 10
# %%
total = total + 5
total

# %% (notebook) a name that the cell changes in place
items = [1]
# %%
items.append(2)
items += [3]
items

# %% (notebook) a name that is deleted by the cell
extra = 1
# %%
print(extra)
del extra
# %%
extra

# %% (notebook) the source of a function is read
import inspect
def documented(x):
    return x + 1  # a comment
# %%
print(inspect.getsource(documented))

# %% (notebook) an object whose class comes from a file beside the notebook
from pathlib import Path
Path("beside_them.py").write_text("class Thing:\n    def __init__(self, n): self.n = n\n    def twice(self): return 2 * self.n\n")
import importlib; importlib.invalidate_caches()
from beside_them import Thing
thing = Thing(4)
# %%
thing.twice(), Thing(1).n

# %% (notebook) a monkeypatched function and a subclass of a builtin
class Names(list):
    def first(self): return self[0]
class Upper(str):
    def shout(self): return self.upper()
class Attr(dict):
    __getattr__ = dict.__getitem__
names, word, attr = Names(["a"]), Upper("abc"), Attr(k=1)
# %%
names.first(), word.shout(), attr.k, type(names).__name__

