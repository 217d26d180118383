"""Generated sequences: a notebook of values and definitions, then changes to it, with a look after each.

    notebook: DEFINITIONS ─→ change ─→ look ─→ change ─→ look ...      a look prints every value, on the task

The plain kernel is the oracle: it runs the same cells. A variable that the task has assigned is the task's
own until the task is restarted; the plain kernel then gets the notebook's value back. So no change may read
one of those variables when it is made. The notebook changes only `SINGLE` ones meanwhile: the plain kernel keeps
what it would have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from corpus import Cell
from hypothesis import strategies as st

DEFINITIONS = """
import abc, collections, contextlib, dataclasses, enum, functools, importlib, math, os, pathlib, sys, types
import numpy as np
n, text, items, table, arr = 1, "a", [1, [2]], {"inner": [1]}, np.arange(4)
best, done, epoch, empty = None, False, 0, ()
alias = items
big = np.zeros(20_000)
def f(x, seen=[]): return (x, n, list(seen))
f.tags = ["f"]
def make():
    count, log = 0, []
    def step(by=0):
        nonlocal count
        count += by
        if by: log.append(by)
        return count, list(log)
    return step
g = make()
def h(x, *, opts={"k": []}): return f(x), opts, n
def traced(fn):
    calls = []
    @functools.wraps(fn)
    def call(*args, **more): return fn(*args, **more), list(calls)
    call.calls = calls
    return call
@traced
def w(x, extra=[]): return x, list(extra), text
@functools.lru_cache
def cached(x, memo=[]): return x, list(memo)
@functools.singledispatch
def kind(x): return "any"
class Base:
    shared = []
    def size(self): return len(self.shared)
class CFG(Base):
    rate, opts, old = 1, {"lr": [0.1]}, "old"
    class Inner:
        values = [1]
    def __init__(self): self.items, self.made = [1], 1
    def __repr__(self): return f"CFG({self.items}, {self.made}, {self.rate}, {self.opts})"
    def method(self, x, seen=[]): return x, list(seen), n, self.size()
    @property
    def total(self): return len(self.items) + n
    @staticmethod
    def make(seen=[]): return list(seen), f(0)
    @classmethod
    def read(cls): return cls.rate, cls.opts
class Shape(abc.ABC): pass
@dataclasses.dataclass
class Point:
    x: int = 1
    tags: list = dataclasses.field(default_factory=lambda: [1])
class Colour(enum.Enum):
    RED = 1
Colour.RED.notes = []
obj, point, hooks, part = CFG(), Point(), [f, lambda x: (x, n)], functools.partial(f, 5, [6])
obj.fn, obj.friend = f, CFG()
node = types.SimpleNamespace(value=[1]); node.me = node
queue, names = collections.deque([1], maxlen=4), {"a", "b"}
"""

_MODULE = """
limit = {k}
TABLE = [{k}]
def use(x, seen=[]): return x, {k}, list(seen), limit
class Net:
    rate = {k}
    def read(self): return self.rate, {k}
"""

LOOKS = {
    "best": "best, best is None",
    "done": "done",
    "epoch": "epoch",
    "empty": "empty",
    "n": "n() if callable(n) and not isinstance(n, type) else n",
    "text": "text",
    "items": "items, alias, alias is items",
    "table": "table",
    "arr": "arr.tolist(), big.sum(), big.shape",
    "f": "f(1), sorted(map(repr, f.tags)) if hasattr(f, 'tags') else None, getattr(f, 'note', None)",
    "g": "g()",
    "h": "h(2)",
    "w": "w(3), w.calls, w.__wrapped__(4)",
    "cached": "cached.__wrapped__(5), getattr(cached, 'note', None)",
    "kind": "kind(1), kind('a'), kind(2.5)",
    "CFG": "CFG.rate, CFG.opts, getattr(CFG, 'old', None), CFG.Inner.values, CFG.read(), CFG.make(), CFG.shared",
    "made": "CFG(), CFG().method(1), CFG().total, getattr(CFG, 'added', lambda self: 0)(CFG())",
    "shapes": "[issubclass(c, Shape) for c in (CFG, Base, Point)]",
    "point": "point, Point(), isinstance(point, Point)",
    "colour": "Colour.RED.notes, list(Colour), Colour.RED is Colour(1)",
    "obj": "obj, obj.fn(1), obj.fn is f, isinstance(obj, CFG), obj.friend, obj.method(2), type(obj).__mro__[1].shared",
    "hooks": "[hook(1) for hook in hooks], [hook is f for hook in hooks]",
    "part": "part()",
    "node": "node.value, node.me is node",
    "queue": "queue, sorted(names)",
    "lib": "lib.limit, lib.TABLE, lib.use(1), use(2), net.read(), isinstance(net, lib.Net)",
}

IN_PLACE = """
items.append({k})
items[0] = [{k}]
alias.append({k})
table['k{k}'] = {k}
table['inner'].append({k})
arr[1] = {k}
big[{k}] += 1
f.__defaults__[0].append({k})
f.__defaults__ = ([{k}],)
f.tags.append({k})
f.note = [{k}]
f.__dict__.pop('tags', None)
f.__code__ = (lambda x, seen=[]: (x, {k}, n, list(seen))).__code__
g({k})
h.__kwdefaults__['opts']['k'].append({k})
w.calls.append({k})
w.__wrapped__.__defaults__[0].append({k})
cached.__wrapped__.__defaults__[0].append({k})
cached.note = [{k}]
kind.register(int, lambda x: ('int', {k}, n))
kind.register(str, f)
CFG.rate = {k}
CFG.opts['lr'].append({k})
CFG.opts = {{'lr': [{k}]}}
CFG.__dict__.get('old') and delattr(CFG, 'old')
CFG.old = {k}
CFG.added = lambda self: (self.rate, {k})
CFG.method.__defaults__[0].append({k})
CFG.make.__defaults__[0].append({k})
CFG.Inner.values.append({k})
CFG.size = lambda self: {k}
CFG.__dict__.get('size') and delattr(CFG, 'size')
CFG.__dict__.get('added') and delattr(CFG, 'added')
CFG.hook = f
CFG.opts['self'] = [CFG]
Base.shared.append({k})
Base.size = lambda self: ({k}, len(self.shared))
Shape.register(CFG); Shape.register(Point)
Point.x = {k}
point.tags.append({k})
Colour.RED.notes.append({k})
obj.items.append({k})
obj.friend.items.append({k})
obj.rate = {k}
obj.fn = lambda x: (x, {k})
obj.fn = f
obj.friend = CFG()
hooks.append(f)
hooks.append(lambda x: (x, {k}, text))
hooks.reverse()
part.args[1].append({k})
node.value.append({k})
node.more = [node, {k}]
queue.append({k})
names.add('{k}')
""".strip().splitlines()

REBOUND = """
n = {k}
n = [{k}]
n = None
n = lambda: {k}
n = Base
n = math
n = n
text = 'text {k}'
items = [{k}, [{k}]]
items = alias
alias = items
alias = list(items)
table = {{'inner': [{k}]}}
table = {{'inner': items, 'f': f}}
arr = np.arange({k} % 7 + 2.0)
big = np.ones(20_000)
f = traced(f) if not hasattr(f, 'calls') else f
def f(x, seen=[]): return ('new', x, {k}, list(seen))
def f(x, seen=[], n={k}): return (x, n, list(seen))
g = make()
def make(): return lambda by=0: {k}
def h(x, *, opts={{'k': [{k}]}}): return w(x), opts
w = traced(f)
kind = functools.singledispatch(lambda x: {k})
class Base: shared = [{k}]; size = lambda self: ('new', n)
class Point(Base): x = {k}; __repr__ = lambda self: f'Point({{self.x}})'
class CFG(CFG): rate = {k}
obj = CFG()
point = Point()
hooks = [f, w]
part = functools.partial(f, {k}, [text])
node = types.SimpleNamespace(value=[{k}]); node.me = node
queue = collections.deque(items, maxlen=4)
names = {{'{k}'}}
""".strip().splitlines()

SINGLE = """
best = None
best = {k}
done = True
done = False
epoch = 0
epoch = {k}
empty = ()
empty = ({k},)
""".strip().splitlines()
"""Changes of variables that have few values, most of which are the same object in each process."""

_SINGLE_NAMES = ("best", "done", "epoch", "empty")
DELETED = (
    *_SINGLE_NAMES,
    "n",
    "text",
    "items",
    "alias",
    "table",
    "f",
    "g",
    "w",
    "CFG",
    "obj",
    "hooks",
    "point",
)
OWNED = {
    "n": "n = {k}",
    "text": "text = 'the task {k}'",
    "items": "items = ['the task', {k}]",
    "table": "table = {{'inner': ['the task', {k}]}}",
    "queue": "import collections\nqueue = collections.deque([{k}])",
    "best": "best = 0.5\nbest = None",
    "done": "try: done = not not done\nexcept NameError: done = True",
    "epoch": "for epoch in range(1): pass",
    "empty": "with contextlib.nullcontext(()) as empty: pass",
}
_RESTORED = "globals().update(kept_{k})"
_LOSE_CELL = """%%capture
cluster = get_ipython().magics_manager.registry["TFClusterMagics"].notebook.clusters["default"]
def press(job):
    del cluster._latest.kept_record.begin
    raise KeyboardInterrupt
cluster._latest.kept_record.begin = press
try: get_ipython().run_cell_magic("tfcluster", "--view quiet", {look!r})
except KeyboardInterrupt: pass
else: raise AssertionError("nothing was lost")
del cluster, press"""
_INTERRUPT = """%%capture
try: get_ipython().run_cell_magic("tfcluster", "--view quiet --timeout 0.2", {look!r} + "\\nwhile True: pass")
except Exception: pass"""


def _change(lines: list[str]) -> st.SearchStrategy[tuple[str, str]]:
    return st.sampled_from(lines).map(lambda line: ("notebook", line))


STEPS = st.one_of(
    _change(IN_PLACE),
    _change(IN_PLACE),
    _change(REBOUND),
    _change(SINGLE),
    st.sampled_from(DELETED).map(lambda name: ("delete", name)),
    st.sampled_from(sorted(OWNED)).map(lambda name: ("own", name)),
    st.sampled_from(["restart", "lose", "interrupt", "edit", "edit and reload"]).map(lambda kind: (kind, "")),
)
SEQUENCES = st.lists(
    st.tuples(st.lists(STEPS, min_size=1, max_size=3), st.lists(st.sampled_from(sorted(LOOKS)), unique=True)),
    min_size=4,
    max_size=8,
)


@dataclass
class _Writer:
    """Writes the cells of a sequence."""

    number: int  # of the sequence: its module has a name of its own
    owned: dict[str, int]
    k: int = 1

    def begin(self) -> list[Cell]:
        write = self._write(0)
        lib = f"lib_{self.number}"
        imports = f"import {lib} as lib\nfrom {lib} import use\nnet, versions = lib.Net(), {{}}"
        source = f"{DEFINITIONS}\n{write}\n{imports}"
        return [Cell(source, in_notebook=True), look(LOOKS)]

    def step(self, kind: str, what: str) -> list[Cell]:
        self.k += 1
        k = self.k
        if kind == "notebook" and not any(_touches(what, name) for name in self.owned):
            return [_in_notebook(f"try:\n    {_indented(what.format(k=k))}\nexcept NAMES: print('failed')")]
        name, _, value = what.format(k=k).partition(" = ")
        if name in _SINGLE_NAMES and name in self.owned and kind in ("notebook", "delete"):
            notebooks = f"kept_{self.owned[name]}"  # what the plain kernel keeps for the restart
            if kind == "delete":
                code, otherwise = f"globals().pop({name!r}, None)", f"{notebooks}.pop({name!r}, None)"
            else:
                code, otherwise = f"{name} = {value}", f"{notebooks}[{name!r}] = {value}"
            return [_in_notebook(code, otherwise)]
        if kind == "delete" and what not in self.owned:
            return [_in_notebook(f"globals().pop({what!r}, None)")]
        if kind == "own" and what not in self.owned:
            self.owned[what] = k
            code = OWNED[what].format(k=k)
            kept = f"kept_{k} = {{name: globals()[name] for name in [{what!r}] if name in globals()}}\n"
            return [Cell(code, otherwise=f"{kept}{code}")]
        if kind == "restart":
            back = "\n".join(
                f"globals().pop({name!r}, None); globals().update(kept_{k})" for name, k in self.owned.items()
            )
            self.owned.clear()
            return [_in_notebook("%%capture\n%tfcluster restart", otherwise=back)]
        if kind in ("lose", "interrupt"):
            source = (_LOSE_CELL if kind == "lose" else _INTERRUPT).format(look=look(LOOKS).source)
            return [_in_notebook(source, otherwise="")]
        if kind.startswith("edit"):
            return self._edit(kind)
        return []

    def _edit(self, kind: str) -> list[Cell]:
        lib = f"lib_{self.number}"
        fresh = f"importlib.reload(lib)\nfrom {lib} import use\nnet = lib.Net()"
        in_place = (
            "from IPython.extensions.autoreload import superreload\n"
            "lib = superreload(lib, old_objects=versions)"
        )
        reload = fresh if kind == "edit" else in_place
        cells = [_in_notebook(f"{self._write(self.k)}\n{reload}")]
        return [*cells, _in_notebook(f"%%capture\n%tfcluster reload {lib}", otherwise="")]

    def _write(self, k: int) -> str:
        path, text = f"lib_{self.number}.py", _MODULE.format(k=k)
        when = 1_700_000_000 + 10 * k  # a file of the same second and size would look the same to Python
        return f"pathlib.Path({path!r}).write_text({text!r}); os.utime({path!r}, ({when}, {when}))"


def cells_of(number: int, sequence: list[tuple[list[tuple[str, str]], list[str]]]) -> tuple[Cell, ...]:
    """Return the cells of a sequence of changes and of the names to look at after each."""
    writer = _Writer(number, {})
    cells = writer.begin()
    for steps, names in sequence:
        for kind, what in steps:
            cells += writer.step(kind, what)
        cells.append(look(names or LOOKS))
    return (*cells, look(LOOKS))


def look(names: object) -> Cell:
    """Return a cell that prints these values, or why each has none."""
    lines = [
        f"try: print({name!r}, {LOOKS[name]})\n"
        f"except Exception as error: print({name!r}, type(error).__name__, error)"
        for name in LOOKS
        if name in names  # type: ignore[operator]  # a list or a dict
    ]
    return Cell("\n".join(lines))


def _in_notebook(source: str, otherwise: str | None = None) -> Cell:
    return Cell(
        source.replace("NAMES", "(AttributeError, NameError, KeyError, TypeError, IndexError)"),
        True,
        False,
        otherwise,
    )


def _indented(source: str) -> str:
    return source.replace("\n", "\n    ")


def _touches(source: str, name: str) -> bool:
    return name in re.findall(r"\w+", source)
