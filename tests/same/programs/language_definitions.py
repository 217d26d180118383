"""Python's language reference: functions, classes, the data model, and coroutines."""

# %% parameters of all kinds
def f(a, b=2, /, c=3, *args, d, e=5, **kwargs):
    return a, b, c, args, d, e, kwargs
print(f(1, d=4), f(1, 2, 3, 4, 5, d=6, z=7))
f(1)

# %% a default is evaluated once
def collect(item, into=[]):
    into.append(item)
    return into
collect(1), collect(2)

# %% a closure in a loop
makers = [lambda: i for i in range(3)]
bound = [lambda i=i: i for i in range(3)]
[m() for m in makers], [b() for b in bound]

# %% decorators with and without arguments
import functools
def times(n):
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            return [fn(*args) for _ in range(n)]
        return wrapper
    return decorate
@times(2)
def greet(name):
    """Say hello."""
    return f"hello {name}"
greet("you"), greet.__name__, greet.__doc__

# %% a function is shown
def shown(x: int = 3) -> str:
    return ""
print(shown.__annotations__, shown.__defaults__, shown.__module__, shown.__qualname__)
shown

# %% generators, send and throw
def talk():
    received = []
    try:
        while True:
            received.append((yield len(received)))
    except ValueError:
        received.append("error")
        yield received
    finally:
        print("closed")
g = talk()
next(g), g.send("a"), g.send("b"), g.throw(ValueError), g.close()

# %% yield from gives its value
def inner():
    yield 1
    return "result"
def outer():
    value = yield from inner()
    yield value
list(outer())

# %% a class with everything
class Account:
    """An account."""
    rate = 0.1
    def __init__(self, balance):
        self._balance = balance
    @property
    def balance(self):
        return self._balance
    @balance.setter
    def balance(self, value):
        if value < 0:
            raise ValueError("negative")
        self._balance = value
    @classmethod
    def empty(cls):
        return cls(0)
    @staticmethod
    def currency():
        return "EUR"
    def __repr__(self):
        return f"Account({self._balance})"
a = Account(5)
a.balance = 7
print(a, Account.empty(), a.currency(), Account.__doc__)
a.balance = -1

# %% inheritance, super and the method resolution order
class Base:
    def hello(self):
        return ["base"]
class Left(Base):
    def hello(self):
        return ["left", *super().hello()]
class Right(Base):
    def hello(self):
        return ["right", *super().hello()]
class Both(Left, Right):
    pass
Both().hello(), [c.__name__ for c in Both.__mro__]

# %% a metaclass and init_subclass
registry = []
class Meta(type):
    def __new__(mcs, name, bases, namespace):
        registry.append(name)
        return super().__new__(mcs, name, bases, namespace)
class Plugin(metaclass=Meta):
    def __init_subclass__(cls, tag="none", **kwargs):
        cls.tag = tag
class One(Plugin, tag="one"):
    pass
registry, One.tag, type(One)

# %% a descriptor with set_name
class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name
    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name)
    def __set__(self, instance, value):
        if value <= 0:
            raise ValueError(f"{self.name} must be positive")
        setattr(instance, self.name, value)
class Box:
    width = Positive()
b = Box()
b.width = 3
print(b.width)
b.width = 0

# %% slots
class Slim:
    __slots__ = ("x",)
s = Slim()
s.x = 1
s.y = 2

# %% operators and comparison
import functools
@functools.total_ordering
class V:
    def __init__(self, n): self.n = n
    def __add__(self, other): return V(self.n + other.n)
    def __radd__(self, other): return V(self.n + other)
    def __mul__(self, k): return V(self.n * k)
    def __eq__(self, other): return self.n == other.n
    def __lt__(self, other): return self.n < other.n
    def __hash__(self): return hash(self.n)
    def __repr__(self): return f"V({self.n})"
    def __matmul__(self, other): return self.n * other.n
    def __neg__(self): return V(-self.n)
    def __bool__(self): return self.n != 0
sum([V(1), V(2)]), V(3) @ V(4), -V(1), sorted([V(3), V(1)]), V(1) >= V(1), bool(V(0)), V(2) * 3

# %% a container
class Grid:
    def __init__(self): self.cells = {}
    def __getitem__(self, key): return self.cells.get(key, 0)
    def __setitem__(self, key, value): self.cells[key] = value
    def __contains__(self, key): return key in self.cells
    def __len__(self): return len(self.cells)
    def __iter__(self): return iter(sorted(self.cells))
    def __delitem__(self, key): del self.cells[key]
g = Grid()
g[1, 2] = 5
g[0, 0] = 1
del g[0, 0]
(1, 2) in g, len(g), list(g), g[9, 9]

# %% getattr and setattr hooks
class Dynamic:
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return f"made {name}"
    def __setattr__(self, name, value):
        print("set", name)
        super().__setattr__(name, value)
d = Dynamic()
d.a = 1
d.a, d.b

# %% a callable object and its partial
import functools
class Adder:
    def __init__(self, n): self.n = n
    def __call__(self, x, y=0): return x + y + self.n
add = functools.partial(Adder(10), y=5)
add(1)

# %% class variables and annotations
class Config:
    rate: float = 0.1
    names: list[str]
Config.__annotations__, Config.rate, hasattr(Config, "names")

# %% nested classes and private names
class Outer:
    class Inner:
        value = 1
    __hidden = 5
    def reveal(self):
        return self.__hidden
print(Outer.Inner, Outer().reveal(), [n for n in dir(Outer) if "hidden" in n])
Outer().__hidden

# %% an abstract class
from abc import ABC, abstractmethod
class Shape(ABC):
    @abstractmethod
    def area(self): ...
class Square(Shape):
    def area(self): return 4
print(Square().area())
Shape()

# %% a class is redefined and its old instance stays
class A:
    def who(self): return "old"
a = A()
class A:
    def who(self): return "new"
a.who(), A().who(), isinstance(a, A)

# %% an instance is shown by its class
class Plain:
    pass
Plain()

# %% a class is shown
class Shown:
    pass
Shown

# %% a module is shown
import math
math

# %% a bound method is shown
class M:
    def method(self): pass
str(M().method).split(" of ")[0]

# %% del calls the finalizer at once
class Loud:
    def __del__(self):
        print("finalized")
loud = Loud()
del loud
print("after")

# %% weak references
import weakref
class Node: pass
node = Node()
ref = weakref.ref(node)
alive = ref() is node
del node
alive, ref()

# %% copying
import copy
class Deep:
    def __init__(self): self.items = [[1], [2]]
a = Deep()
b, c = copy.copy(a), copy.deepcopy(a)
a.items[0].append(9)
b.items, c.items

# %% pickling an instance of a class of the cell
import pickle
class Saved:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return self.x == other.x
s = pickle.loads(pickle.dumps(Saved(3)))
s == Saved(3), type(s) is Saved

# %% the source of a function of the cell
import inspect
def documented(x):
    # a comment
    return x + 1
print(inspect.getsource(documented))
inspect.signature(documented)

# %% the source of a class of the cell
import inspect
class Documented:
    """Words."""
    def method(self):
        return 1
print(inspect.getsource(Documented))

# %% the main module is the cell's
import sys, __main__
marker = 12
__main__.marker, sys.modules["__main__"] is __main__, __name__

# %% await at the top of a cell
import asyncio
async def fetch(n):
    await asyncio.sleep(0)
    return n * 2
result = await fetch(4)
result

# %% await as the last expression
import asyncio
await asyncio.gather(*(asyncio.sleep(0, i) for i in range(3)))

# %% async for and async with at the top
import asyncio
from contextlib import asynccontextmanager
async def count():
    for i in range(3):
        yield i
@asynccontextmanager
async def place():
    print("in")
    yield "here"
    print("out")
async with place() as p:
    async for i in count():
        print(p, i)
[i async for i in count()]

# %% an error in a coroutine
import asyncio
async def fails():
    await asyncio.sleep(0)
    raise ValueError("in a coroutine")
await fails()

# %% asyncio.run within a cell is refused by the running loop
import asyncio
async def f():
    return 1
c = f()
try:
    print(asyncio.run(c))
except RuntimeError as error:
    c.close()
    print(error)

# %% a coroutine that nobody awaits is a value
async def f():
    return 1
c = f()
print(type(c).__name__)
c.close()

# %% a task goes on in the next cell
import asyncio
done = []
async def work():
    for i in range(3):
        await asyncio.sleep(0)
        done.append(i)
_coroutine = work()
task = asyncio.create_task(_coroutine)
# %%
await task
done
# %%
_coroutine.close()

# %% the running loop is the same in each cell
import asyncio
loop = asyncio.get_running_loop()
# %%
import asyncio
asyncio.get_running_loop() is loop

# %% import system: a module beside the notebook
from pathlib import Path
Path("beside_it.py").write_text("value = 5\ndef get():\n    return value\nprint('imported', __name__)\n")
import importlib; importlib.invalidate_caches()
import beside_it
beside_it.get(), Path(beside_it.__file__).name

# %% import system: a package with a relative import, and reload
from pathlib import Path
Path("pack").mkdir(exist_ok=True)
Path("pack/__init__.py").write_text("from .inner import N\n")
Path("pack/inner.py").write_text("N = 1\n")
import importlib; importlib.invalidate_caches()
import pack
before = pack.N
Path("pack/inner.py").write_text("N = 200\n")
importlib.reload(pack.inner)
before, pack.inner.N

# %% import system: a module that fails says where
from pathlib import Path
Path("fails_itself.py").write_text("x = 1\nraise RuntimeError('while importing')\n")
import importlib; importlib.invalidate_caches()
import fails_itself
