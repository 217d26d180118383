"""Variables that travel to the tasks, that are refused, and that are sent only once."""

import functools
import gc
import sys
import threading
import types
import weakref

import numpy as np
import pytest

from tfmagic.errors import CaptureError
from tfmagic.serialization import classes, packing, pickling
from tfmagic.serialization.calls import pack_call
from tfmagic.serialization.capture import capture
from tfmagic.serialization.task_names import TaskNames
from tfmagic.system import advice
from tfmagic.task.tensorflow.testing_setup import Setup, call_plain

LIMIT = 1 << 20


class Side:
    """A notebook and a task, each with a namespace."""

    def __init__(self, code=""):
        self.module = types.ModuleType("__main__")
        self.main = self.module.__dict__
        exec(code, self.main)
        self.task_main = {**types.ModuleType("__main__").__dict__, "__builtins__": __builtins__}
        self.has, self.examined = TaskNames(), {}
        self.known = weakref.WeakValueDictionary()  # classes that the task has, as another process would

    def send(self, *names, push=(), limit=LIMIT):
        found = capture(names, push, self.main, self.main, {"t": self.has}, limit, known=self.examined)["t"]
        self.has.note(found)
        got = {}
        ours, classes._known = classes._known, self.known
        try:
            for packed in found.names:
                for part in pickling.load_names(packed, self.task_main):
                    got.update(part)
                    self.task_main.update(part)
        finally:
            classes._known = ours
        return got


@pytest.fixture
def side(monkeypatch):
    def make(code=""):
        made = Side(code)
        monkeypatch.setitem(sys.modules, "__main__", made.module)
        return made

    return make


def test_a_function_takes_the_globals_it_uses_along_transitively(side):
    s = side("n = 2\nunused = object()\ndef g(): return n\ndef f(): return g() + 1")
    got = s.send("f")
    assert set(got) == {"f", "g", "n"}
    assert s.task_main["f"]() == 3


def test_a_value_on_the_task_is_freed_when_nothing_refers_to_it(side):
    s = side("import numpy\nx = numpy.ones(1000)")
    gc.disable()
    try:
        freed = weakref.ref(s.send("x")["x"])
        assert freed() is not None
        del s.task_main["x"]
        assert freed() is None
    finally:
        gc.enable()


def test_a_function_finds_its_globals_in_the_task(side):
    s = side("n = 2\ndef f(): return n")
    s.send("f")
    s.task_main["n"] = 40
    assert s.task_main["f"]() == 40


def test_a_recursive_closure_and_a_class_with_super_travel(side):
    s = side(
        "def make():\n"
        "    def fact(k): return 1 if k < 2 else k * fact(k - 1)\n"
        "    return fact\n"
        "fact = make()\n"
        "class A:\n    def m(self): return 1\n"
        "class B(A):\n    def m(self): return super().m() + 1\n"
        "b = B()"
    )
    s.send("fact", "b")
    assert s.task_main["fact"](5) == 120
    assert s.task_main["b"].m() == 2


def test_functions_by_value_are_what_they_were(side):
    source = """
import math
def outer(start):
    count = start
    def step(by: int = 2, *, times: int = 1):
        'Doc.'
        nonlocal count
        count += by * times * shift
        return count
    def look():
        return count
    def fact(n):
        return n * fact(n - 1) if n > 1 else 1
    def never():
        return later
    step.note = [1]
    return step, look, fact, never
    later = 1
shift = 10
parts = outer(5)
"""
    s = side(source)
    pickled = pickling.dumps(s.main["parts"], s.main)
    assert b"dill" not in pickled.stream
    step, look, fact, never = pickling.loads(packing.pack(pickled), {"shift": 100})
    assert step(times=2) == 405 and look() == 405 and fact(5) == 120
    assert step.__doc__ == "Doc." and step.note == [1] and step.__annotations__["by"] is int
    assert step.__qualname__ == "outer.<locals>.step" and step.__globals__ == {"shift": 100}
    with pytest.raises(NameError, match="later"):
        never()


def test_a_function_of_a_module_finds_its_module(side):
    def nested():
        return pytest

    back = pickling.loads(packing.pack(pickling.dumps(nested, {})), {})
    assert back is not nested and back.__globals__ is globals() and back() is pytest


def test_an_instance_sent_later_is_of_the_class_sent_before(side):
    s = side("class A: pass")
    s.send("A")
    s.main["a"] = s.main["A"]()
    assert set(s.send("a")) == {"a"}
    assert isinstance(s.task_main["a"], s.task_main["A"])


def test_two_names_for_one_object_stay_one_object(side):
    s = side("a = [1]\nb = a")
    got = s.send("a", "b")
    assert got["a"] is got["b"]


HOLDERS = {
    "a list of a class": ("Item.all[0] is one", "Item.all.append(one)"),
    "a dict of a class": ("Item.table['one'] is one", "Item.table = {'one': one}"),
    "an attribute of a class": ("Item.first is one", "Item.first = one"),
    "a set that asks for the hash": ("one in Item.seen and Item('one') in Item.seen", "Item.seen = {one}"),
    "a closure": ("of_closure() is one", "of_closure = (lambda it: lambda: it)(one)"),
    "an attribute of a function": ("f.first is one", "def f(): pass\nf.first = one"),
    "a default": ("f() is one", "def f(it=one): return it"),
    "a decorator": ("f.__wrapped__.it is one", "f = functools.wraps(g)(lambda: g())\ng.it = one"),
    "two definitions": ("f() is Item.first is one", "Item.first = one\ndef f(it=one): return it"),
}


@pytest.mark.parametrize(("check", "code"), HOLDERS.values(), ids=HOLDERS)
def test_an_object_that_a_definition_holds_is_the_variable(side, check, code):
    s = side(
        "import functools\n"
        "def a_name(item): return item.name\n"
        "class Item:\n"
        "    all = []\n"
        "    def __init__(self, name): self.name = name\n"
        "    def __setstate__(self, state): self.__dict__ = state; z_check(self)\n"
        "    def __hash__(self): return hash(a_name(self))\n"
        "    def __eq__(self, other): return a_name(self) == a_name(other)\n"
        "def g(): pass\n"
        "def z_check(item): assert isinstance(item, Item) and hash(item) == hash(item.name)\n"
        f"one = Item('one')\n{code}"
    )
    s.send("Item", "one", "f", "of_closure")
    assert eval(check, s.main) and eval(check, s.task_main)
    assert s.task_main["one"] is not s.main["one"]


def test_an_object_and_the_class_that_holds_it_are_sent_again_together(side):
    s = side("class Item:\n    all = []\none = Item()\nItem.all.append(one)\none.n = 1")
    assert set(s.send("Item")) == {"Item", "one"}
    assert s.send("Item", "one") == {}
    s.main["one"].n = 2
    assert set(s.send("Item", "one")) == {"Item", "one"}
    s.main["Item"].rate = 5
    assert set(s.send("Item")) == {"Item", "one"}
    item, one = s.task_main["Item"], s.task_main["one"]
    assert item.all == [one] and item.rate == 5 and one.n == 2 and type(one) is item


def test_two_names_of_an_object_are_sent_again_together(side):
    s = side("items = [1]\nalias = items")
    s.send("items", "alias")
    s.main["items"] = [2]
    assert set(s.send("items", "alias")) == {"items"}
    s.main["items"] = s.main["alias"]
    assert set(s.send("items", "alias")) == {"items", "alias"}
    assert s.task_main["items"] is s.task_main["alias"]


def test_an_object_that_the_task_has_changed_is_not_sent_with_its_class(side):
    s = side("class Item:\n    all = []\none = Item()\nItem.all.append(one)")
    s.send("Item")
    s.has.owned = frozenset({"one"})
    s.main["Item"].rate = 5
    assert set(s.send("Item")) == {"Item"}


def test_an_array_that_a_function_holds_counts_once(side):
    s = side("import numpy\nx = numpy.ones(20_000)\ndef f(it=x): return it")
    s.send("f", "x", limit=200_000)
    assert s.task_main["f"]() is s.task_main["x"]


def test_an_exception_keeps_its_causes_and_notes(side):
    s = side(
        "import threading\n"
        "class Odd(Exception):\n"
        "    def __init__(self, a, b): super().__init__(a); self.b = b\n"
        "    def __len__(self): return 0\n"
        "try:\n"
        "    try: {}['a']\n"
        "    except KeyError as missing:\n"
        "        missing.add_note('noted')\n"
        "        raise Odd(1, 2) from missing\n"
        "except Odd as found: error = found\n"
        "hidden = ValueError(); hidden.__context__ = error; hidden.__suppress_context__ = True\n"
        "of_lock = ValueError('a'); of_lock.__cause__ = KeyError('gone', threading.Lock())\n"
        "last = None\n"
        "for i in range(2000):\n"
        "    at = ValueError(i); at.__cause__ = last; last = at\n"
    )
    s.send("error", "hidden", "of_lock", "last")
    error, hidden, of_lock, last = (s.task_main[n] for n in ("error", "hidden", "of_lock", "last"))
    assert (error.args, error.b, error.__cause__.args, error.__cause__.__notes__) == (
        (1,),
        2,
        ("a",),
        ["noted"],
    )
    assert error.__cause__ is error.__context__ and error.__suppress_context__
    assert hidden.__context__ is error and hidden.__cause__ is None and hidden.__suppress_context__
    assert type(of_lock.__cause__).__name__ == "KeyError" and "gone" in str(of_lock.__cause__)
    numbers = []
    while last is not None:
        numbers.append(last.args[0])
        last = last.__cause__
    assert numbers == list(range(1999, -1, -1))


def test_a_class_that_returns_the_instance_it_has_made_before_travels(side):
    s = side(
        "class Cached:\n"
        "    made = {}\n"
        "    def __new__(cls, n):\n"
        "        if n not in cls.made: cls.made[n] = super().__new__(cls)\n"
        "        return cls.made[n]\n"
        "    def __getnewargs__(self): return (1,)\n"
        "one = Cached(1)"
    )
    s.send("one")
    cached, one = s.task_main["Cached"], s.task_main["one"]
    assert cached.made == {1: one} and cached(1) is one and type(one) is cached is not s.main["Cached"]


def test_the_data_of_a_class_of_no_name_comes_behind_its_code(side):
    s = side(
        "def make():\n"
        "    class Local:\n"
        "        all = set()\n"
        "        def __init__(self, n): self.n = n; Local.all.add(self)\n"
        "        def __hash__(self): return self.n\n"
        "        def __eq__(self, other): return self.n == other.n\n"
        "    return Local\n"
        "one = make()(1)"
    )
    s.send("one")
    kind = type(s.task_main["one"])
    assert kind is not type(s.main["one"]) and kind.all == {s.task_main["one"]} and kind(1) in kind.all


def test_the_names_of_a_class_keep_their_order(side):
    s = side("class A:\n    a = 1\n    table = {'a': object()}\n    def f(self): pass\n    z = f")
    s.send("A")
    names = [[n for n in vars(main["A"]) if not n.startswith("__")] for main in (s.main, s.task_main)]
    assert names == [["a", "table", "f", "z"]] * 2


def test_a_metaclass_that_keeps_bound_methods_of_its_classes_travels(side):
    """As pydantic does for validators."""
    s = side(
        "class Meta(type):\n"
        "    def __init__(cls, name, bases, space):\n"
        "        cls.__checks__ = [getattr(cls, n) for n in space if n.startswith('check')]\n"
        "class Model(metaclass=Meta):\n"
        "    @classmethod\n"
        "    def check_name(cls, value): return cls, value\n"
        "model = Model()"
    )
    s.send("model")
    model = s.task_main["model"]
    assert type(model) is not s.main["Model"] and model.__checks__[0](3) == (type(model), 3)


def test_a_definition_that_was_changed_in_place_is_sent_again(side):
    s = side("class A:\n    rate = 1\ndef f(k=1): return k\na = A()")
    assert set(s.send("A", "f", "a")) == {"A", "f", "a"}
    assert s.send("A", "f", "a") == {}
    sent = s.task_main["A"]
    s.main["A"].rate = 5
    s.main["f"].__defaults__ = (7,)
    assert set(s.send("A", "f", "a")) == {"A", "f"}
    assert s.task_main["A"] is sent and s.task_main["a"].rate == 5 and s.task_main["f"]() == 7


IN_PLACE = {
    "a list of a class": ("class A:\n    n = [1]\ndef use(): return A.n", "A.n.append(2)"),
    "a dict in a list of a class": ("class A:\n    n = [{}]\ndef use(): return A.n", "A.n[0]['k'] = 2"),
    "an instance in a class": (
        "class P: pass\nclass A:\n    p = P()\ndef use(): return vars(A.p)",
        "A.p.x = 2",
    ),
    "a class in a class": (
        "class A:\n    class B:\n        n = []\ndef use(): return A.B.n",
        "A.B.n.append(2)",
    ),
    "a base class": ("class B:\n    n = []\nclass A(B): pass\ndef use(): return A.n", "B.n.append(2)"),
    "the code": ("def use(): return 1\ndef g(): return 2", "use.__code__ = g.__code__"),
    "the name": ("def use(): return use.__name__", "use.__name__ = 'other'"),
    "the text": ("def use(): return use.__doc__", "use.__doc__ = 'other'"),
    "a first attribute": ("def use(): return vars(use)", "use.x = 1"),
    "a default": ("def use(n=[]): return n", "use.__defaults__[0].append(2)"),
    "a keyword default": ("def use(*, n={}): return n", "use.__kwdefaults__['n']['k'] = 2"),
    "a default of a method": (
        "class A:\n    def m(self, n=[]): return n\ndef use(): return A().m()",
        "A.m.__defaults__[0].append(2)",
    ),
    "a default of a static method": (
        "class A:\n    @staticmethod\n    def m(n=[]): return n\ndef use(): return A.m()",
        "A.m.__defaults__[0].append(2)",
    ),
    "an attribute of a function": ("def use(): return use.n\nuse.n = [1]", "use.n.append(2)"),
    "a closure": (
        "def make():\n    n = []\n    def f():\n        return n\n    return f\nf = make()\ndef use(): return f()",
        "f().append(2)",
    ),
    "a rebound name of a closure": (
        "def make():\n    n = 1\n    def f(k=0):\n        nonlocal n\n        n += k\n        return n\n    return f\n"
        "f = make()\ndef use(): return f()",
        "f(2)",
    ),
    "a closure under wraps": (
        "import functools\ndef wrap(fn):\n    calls = []\n    @functools.wraps(fn)\n    def call(x=None):\n"
        "        return fn(), len(calls)\n    return call\n"
        "@wrap\ndef f(n=[]): return n\ndef use(): return f()",
        "f.__wrapped__.__defaults__[0].append(3)",
    ),
    "a closure of a partial": (
        "import functools\ndef f(n): return n\nuse = functools.partial(f, [1])",
        "use.args[0].append(2)",
    ),
    "a function in lru_cache": (
        "import functools\n@functools.lru_cache\ndef f(n=[]): return list(n)\ndef use(): return f()",
        "f.__wrapped__.__defaults__[0].append(2); f.cache_clear()",
    ),
    "an attribute of an lru_cache": (
        "import functools\n@functools.lru_cache\ndef f(): pass\nf.n = []\ndef use(): return f.n",
        "f.n.append(2)",
    ),
    "an implementation of singledispatch": (
        "import functools\n@functools.singledispatch\ndef f(x, n=[]): return n\ndef use(): return f(1)",
        "f.registry[object].__defaults__[0].append(2)",
    ),
    "a registration of singledispatch": (
        "import functools\n@functools.singledispatch\ndef f(x): return 'any'\ndef use(): return f(1)",
        "f(1); f.register(int, lambda x: 'int')",
    ),
    "a property": (
        "def get(self, n=[]): return n\nclass A:\n    p = property(get)\ndel get\ndef use(): return A().p",
        "A.p.fget.__defaults__[0].append(2)",
    ),
    "a default factory of a dataclass": (
        "import dataclasses\nseen = [1]\n@dataclasses.dataclass\nclass A:\n    n: list = dataclasses.field("
        "default_factory=lambda: list(seen))\ndef use(): return A().n",
        "seen.append(2)",
    ),
    "an attribute of a member of an enum": (
        "import enum\nclass E(enum.Enum):\n    A = 1\nE.A.n = []\ndef use(): return E.A.n",
        "E.A.n.append(2)",
    ),
    "a deleted attribute": ("class A:\n    n = 1\ndef use(): return hasattr(A, 'n')", "del A.n"),
    "a deleted method that a base has": (
        "class B:\n    def m(self): return 'B'\nclass A(B):\n    def m(self): return 'A'\ndef use(): return A().m()",
        "del A.m",
    ),
    "an attribute of a function that was deleted": (
        "def f(): pass\nf.n = 1\ndef use(): return hasattr(f, 'n')",
        "del f.n",
    ),
    "a cycle": (
        "def f(): return f.n\nclass A:\n    g = f\nf.n = [A, 1]\ndel f\nA.g.n.append(A.g)\n"
        "def use(): return len(A.__dict__['g'].n)",
        "A.g.n.append(2)",
    ),
    "a function that a table holds": (
        "def f(n=[]): return n\ntable = {'f': f}\ndef use(): return table['f'](), table['f'] is f",
        "f.__defaults__[0].append(2)",
    ),
    "a function that a closure holds": (
        "def f(n=[]): return n\ndef hold(f):\n    return lambda: f()\nheld = hold(f)\ndef use(): return held()",
        "f.__defaults__[0].append(2)",
    ),
    "a function that a class holds": (
        "def f(n=[]): return n\nclass A:\n    g = f\ndef use(): return A.g(), A.g is f",
        "f.__defaults__[0].append(2)",
    ),
    "an array": (
        "import numpy as np\nclass A:\n    n = np.zeros(3)\ndef use(): return A.n.tolist()",
        "A.n[1] = 2",
    ),
    "an array of 1 MB": (
        "import numpy as np\ndef use(n=np.zeros(10**5)): return n.sum()",
        "use.__defaults__[0][7] = 2",
    ),
    "globals of its own": (
        "space = {'n': [1]}\nexec('def f(): return n', space)\nf = space['f']\ndel space\ndef use(): return f()",
        "f.__globals__['n'].append(2)",
    ),
    "a mapping proxy": (
        "import types\nclass A:\n    inner = {}\n    n = types.MappingProxyType(inner)\ndef use(): return dict(A.n)",
        "A.inner['k'] = 2",
    ),
}


@pytest.mark.parametrize("case", IN_PLACE)
def test_what_was_changed_in_place_inside_a_definition_is_sent_again(side, case):
    code, change = IN_PLACE[case]
    s = side(code)
    s.send("use")
    assert s.send("use") == {}
    before = _result_of(s.task_main["use"])
    exec(change, s.main)
    s.send("use")
    assert _result_of(s.task_main["use"]) == _result_of(s.main["use"]) != before
    assert s.send("use") == {}


def _result_of(use):
    return repr(use())


UNCHANGED = {
    "lru_cache": ("import functools\n@functools.lru_cache\ndef f(n): return n", "f(1)"),
    "singledispatch": ("import functools\n@functools.singledispatch\ndef f(n): return n", "f(1), f('a')"),
    "an abstract class": (
        "import abc, collections.abc\nclass A(abc.ABC):\n    @abc.abstractmethod\n    def m(self): ...\ndef f(): A",
        "isinstance(1, A)",
    ),
    "a class that was pickled": (
        "class A:\n    pass\na = A()\ndef f(): return a",
        "import pickle; pickle.dumps(a)",
    ),
    "a cached property": (
        "import functools\nclass A:\n    @functools.cached_property\n    def p(self): return 1\ndef f(): A",
        "A().p",
    ),
    "names that other code uses as well": (
        "def f(x): return x.rare_name_1, 'rare text'",
        "y = f.__code__.co_consts",
    ),
    "a part that only dill can pickle": (
        "import weakref\nclass A:\n    inner = {}\nclass B:\n    n = weakref.ref(A)\ndef f(): return B.n",
        "A, B",
    ),
}


def test_a_function_in_a_table_is_not_sent_again_since_its_constants_are_in_use(side):
    s = side("table = {'f': lambda: ('a text of its own', 12345678)}")
    s.send("table")
    exec("used = [table['f']() for _ in range(100)], table['f'].__code__.co_consts[:]", s.main)
    exec("held = list(table['f'].__code__.co_consts)", s.main)
    assert s.send("table") == {}


@pytest.mark.parametrize("case", UNCHANGED)
def test_what_only_python_notes_inside_a_definition_is_no_change(side, case):
    code, use = UNCHANGED[case]
    s = side(code)
    s.send("f", "A")
    exec(use, s.main)
    assert s.send("f", "A") == {}


def test_what_holds_a_function_that_was_replaced_is_sent_with_its_next_cell(side):
    s = side("def f(n=[]): return n\ntable = {'f': f}")
    s.send("f", "table")
    s.main["f"].__defaults__[0].append(1)
    assert set(s.send("f")) == {"f"}
    assert set(s.send("table", "f")) == {"table"}
    assert s.task_main["table"]["f"] is s.task_main["f"]


def test_an_attribute_of_the_tasks_own_stays_when_its_class_is_sent_again(side):
    s = side("class A:\n    n = [1]")
    s.send("A")
    s.task_main["A"].own = 5
    s.main["A"].n.append(2)
    s.send("A")
    assert (s.task_main["A"].n, s.task_main["A"].own) == ([1, 2], 5)


def test_content_that_grew_over_the_limit_is_refused(side):
    s = side("class A:\n    n = []")
    s.send("A")
    s.main["A"].n.append(np.zeros(LIMIT))
    with pytest.raises(CaptureError, match="A"):
        s.send("A")


def test_what_was_packed_and_not_handed_over_is_sent_again(side):
    """Also if it has the version by then that the task had before: nobody knows which of both arrived."""
    s = side("a = 1\nb = 1")
    s.send("a", "b")
    s.main["a"] = 2
    capture(["a", "b"], (), s.main, s.main, {"t": s.has}, LIMIT)  # and then Ctrl-C
    s.main["a"] = 1
    assert s.send("a", "b") == {"a": 1}


def test_a_helper_with_two_underscores_travels(side):
    s = side("def __helper__(): return 3\ndef use(): return __helper__(), __name__")
    assert set(s.send("use")) == {"__helper__", "use"}


def test_an_unchanged_value_is_sent_once_and_a_changed_one_again(side):
    s = side("a = [1]")
    assert s.send("a") == {"a": [1]}
    assert s.send("a") == {}
    s.main["a"].append(2)
    assert s.send("a") == {"a": [1, 2]}


def test_an_equal_value_that_was_bound_anew_is_sent_again(side):
    """As in a plain kernel: a cell with `log = []` that is run again empties the log, also on the tasks."""
    s = side("log, number, text = [], 1, 'a'")
    s.send("log", "number", "text")
    s.task_main["log"].append(1)
    assert s.send("log") == {}
    s.main.update(log=[], number=1, text="a")
    assert s.send("log", "number", "text") == {"log": []}


def test_a_deleted_variable_is_deleted_on_the_task_once(side):
    s = side("n = 1\ndef f(): return n")
    s.send("f")
    del s.main["n"]
    assert s.send("f", "never_there") == {"n": pickling.Deleted}
    assert s.send("f") == {}
    s.main["n"] = 1
    assert s.send("f") == {"n": 1}


def test_a_deletion_that_was_lost_on_its_way_is_sent_again(side):
    s = side("n = 1")
    s.send("n")
    del s.main["n"]
    capture(["n"], (), s.main, s.main, {"t": s.has}, LIMIT)
    assert s.send("n") == {"n": pickling.Deleted}


def test_what_the_task_owns_wins_unless_pushed(side):
    s = side("a = 1")
    s.has.owned = frozenset({"a"})
    assert s.send("a") == {}
    assert s.send("a", push=("a",)) == {"a": 1}


def test_names_that_the_notebook_does_not_have_are_left_to_the_task(side):
    assert side("a = 1").send("a", "only_on_the_task") == {"a": 1}


def test_big_arrays_arrive_writable_and_aligned(side):
    s = side()
    s.main["x"] = np.arange(50_000.0)
    got = s.send("x")["x"]
    got[0] = 7
    assert got.ctypes.data % 64 == 0 or got.ctypes.data % 16 == 0
    assert s.main["x"][0] == 0
    np.testing.assert_array_equal(got[1:], s.main["x"][1:])


def test_all_names_that_can_travel_go_with_a_cell_that_asks_for_all(side):
    s = side(
        """import threading
class Odd:
    def __reduce__(self): raise SystemExit(3)
n, lock, odd, big, _own = 2, threading.Lock(), Odd(), bytes(2 << 20), 'o'
def holds(l=lock): return l
def calls(): return n, lock
def everything(): return sorted(globals())
"""
    )
    left_out = {}
    found = capture(["*"], (), s.main, s.main, {"t": s.has}, LIMIT, left_out=left_out)["t"]
    assert set(found.versions) == {"threading", "Odd", "n", "_own", "calls", "everything"}
    assert set(left_out) == {"lock", "odd", "big", "holds"}
    assert set(s.send("everything")) == set(found.versions)
    del s.main["n"]
    s.send("everything")
    assert "n" not in s.task_main or s.task_main["n"] is pickling.Deleted


def test_every_culprit_is_named_with_type_and_reason(side):
    s = side("ok = 1")
    s.main["gen"] = (i for i in "ab")
    s.main["frame"] = sys._getframe()
    with pytest.raises(CaptureError) as caught:
        s.send("ok", "gen", "frame")
    text = str(caught.value)
    assert "gen (generator)" in text and "frame (frame)" in text and "nothing was run" in text
    assert "  ok " not in text
    assert s.has.sent == {}


@pytest.mark.parametrize(
    ("front_end", "words", "place"),
    [
        (advice.FrontEnd.NOTEBOOK, "these notebook variables", "cell"),
        (advice.FrontEnd.PYTHON, "these variables", "function"),
    ],
)
def test_a_refusal_has_the_words_of_its_front_end(side, monkeypatch, front_end, words, place):
    monkeypatch.setattr(advice, "_front_end", front_end)
    s = side("import threading\nlock = threading.Lock()")
    with pytest.raises(CaptureError) as caught:
        s.send("lock")
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{words} cannot travel to the tasks; nothing was run:"
    assert lines[-1] == f"Create them inside the {place}, so that each task makes its own."


def test_ten_gigabytes_are_refused_before_they_are_copied(side):
    s = side()
    s.main["huge"] = np.broadcast_to(np.zeros(1), (10 << 27,))
    s.main["blob"] = bytearray(8 << 20)
    with pytest.raises(CaptureError, match=r"huge \(ndarray\): 10 GiB[\s\S]*max_capture_bytes"):
        s.send("huge", "blob", limit=1 << 20)


def test_a_list_of_large_arrays_is_refused_as_one_array_is(side):
    s = side()
    s.main["huge"] = [np.zeros(LIMIT)]
    with pytest.raises(CaptureError, match=r"huge \(list\)"):
        s.send("huge")


def test_many_small_ones_over_the_limit_are_all_named(side):
    s = side("a = 'x' * 70_000\nb = 'y' * 70_000")
    with pytest.raises(CaptureError) as caught:
        s.send("a", "b", limit=100_000)
    assert "a (str)" in str(caught.value) and "b (str)" in str(caught.value)
    assert "push" in str(caught.value)


def test_push_has_no_limit(side):
    s = side("a = 'x' * 200_000")
    assert len(s.send(push=("a",), limit=1000)["a"]) == 200_000


def test_push_of_a_missing_name_is_refused(side):
    with pytest.raises(CaptureError, match="--push names nope"):
        side().send(push=("nope",))


def test_a_call_names_the_argument_that_cannot_travel(side):
    s = side()
    with pytest.raises(CaptureError, match=r"argument 1 \(generator\)"):
        pack_call((print, (1, (i for i in "ab")), {}), s.main)


def test_an_argument_whose_pickling_ends_the_process_is_named(side):
    s = side("class Ends:\n    def __reduce__(self): raise SystemExit(3)\ndef f(a): pass")
    with pytest.raises(CaptureError, match=r"argument 0 \(Ends\) cannot travel to the tasks: SystemExit: 3"):
        pack_call((s.main["f"], (s.main["Ends"](),), {}), s.main)


def test_names_of_a_call_follow_functions_and_instances(side):
    s = side("k = 1\ndef f(x): return k\nclass A: pass")
    assert pack_call((s.main["f"], (s.main["A"](),), {}), s.main).needs == {"f", "A"}


def test_a_call_by_name_without_arguments_is_packed_once(side):
    s = side("def f(): return 1\ndef g(): return 2")
    found = pack_call((s.main["f"], (), {}), s.main)
    assert pack_call((s.main["f"], (), {}), s.main) is found
    assert pack_call((s.main["g"], (), {}), s.main).needs == {"g"}
    assert pack_call((s.main["f"], (1,), {}), s.main).packed != found.packed
    old = s.main["f"]
    exec("def f(): return 3", s.main)
    s.send("f")
    for call, value in ((s.main["f"], 3), (old, 1)):  # the old one has no name any more
        function, args, kwargs = pickling.loads(pack_call((call, (), {}), s.main).packed, s.task_main)
        assert function(*args, **kwargs) == value


def test_the_cause_of_a_refusal_shows_the_frames_of_the_users_class_alone():
    class Stubborn:
        def __reduce__(self):
            raise RuntimeError("not me")

    with pytest.raises(
        CaptureError, match="argument 0 .* cannot travel to the tasks: RuntimeError: not me"
    ) as caught:
        pack_call((print, (Stubborn(),), {}), {})
    frames = caught.value.__cause__.__traceback__
    assert frames.tb_frame.f_code.co_name == "__reduce__" and frames.tb_next is None


class Guarded:
    def __init__(self):
        self.guard = threading.Lock()
        self.kept = self

    def work(self):
        return self.guard

    def work_later(self):
        trainer = Guarded()
        return lambda: trainer.guard


@pytest.mark.parametrize(
    ("function", "args", "part"),
    [
        (Guarded().work, (), r"the function \(method\) .*: self\.guard \(lock\): a lock"),
        (Guarded().work_later(), (), r"the function \(function\) .*: trainer\.guard \(lock\): a lock"),
        (functools.partial(print, Guarded()), (), r"the function .*: \.args\[0\]\.guard \(lock\): a lock"),
        (print, (1, {"a": [Guarded()]}), r"argument 1 \(dict\) .*: \['a'\]\[0\]\.guard \(lock\): a lock"),
        (call_plain, (Setup(), Guarded().work), r"the function \(method\) .*: self\.guard"),
        (call_plain, (Setup(), print, 1, Guarded()), r"argument 1 \(Guarded\) .*: \.guard \(lock\)"),
    ],
)
def test_the_part_of_a_call_that_cannot_travel_is_named(function, args, part):
    with pytest.raises(CaptureError, match=part):
        pack_call((function, args, {}), {})


EMPTIED = """
import copyreg, itertools
numbers = itertools.count()

class Emptied:
    def __init__(self, *items):
        self.items = list(items)
    def __getstate__(self):
        state = dict(self.__dict__)
        self.items = []
        return state

class Reduced(list):
    def __reduce_ex__(self, protocol):
        found = iter(list(self))
        self.clear()
        return Reduced, (), {"number": next(numbers)}, found

class Registered:
    def __init__(self, items):
        self.items = items

def reduce_registered(obj):
    items, obj.items = obj.items, []
    return Registered, (items,)

copyreg.pickle(Registered, reduce_registered)
a, b, c = Emptied(1, 2), Reduced([3]), Registered([4])
many = [a, {"b": b}, c]
def in_default(held=Emptied(5)):
    return held.items
class Holder:
    held = Emptied(6)
"""


@pytest.mark.parametrize("pushed", [False, True])
def test_the_state_of_an_object_is_asked_for_once(side, pushed):
    made = side(EMPTIED)
    names = ("a", "b", "c", "many")
    got = made.send(*(() if pushed else names), push=names if pushed else ())
    assert (got["a"].items, list(got["b"]), got["b"].number, got["c"].items) == ([1, 2], [3], 0, [4])
    assert got["many"][0] is got["a"] and got["many"][1]["b"] is got["b"] and got["many"][2] is got["c"]
    got = made.send("in_default", "Holder")
    assert got["in_default"]() == [5] and got["Holder"].held.items == [6]


CACHED = """
import functools
kk = 1
@functools.cache
def f():
    return kk
@functools.lru_cache(maxsize=2)
def g(n):
    return n + f()
class Model:
    @functools.cache
    def size(self):
        return kk
    @staticmethod
    @functools.lru_cache
    def rate():
        return kk
model = Model()
"""


def test_a_cache_that_was_cleared_in_the_notebook_is_empty_on_the_task(side):
    made = side(CACHED)
    task = made.task_main
    made.send("g", "model", "Model", "kk")

    def values():
        return task["f"](), task["g"](0), task["model"].size(), task["Model"].rate()

    assert values() == (1, 1, 1, 1)
    first = task["f"]
    made.main["kk"] = 2
    made.send("g", "model", "Model", "kk")
    assert task["f"] is first and values() == (1, 1, 1, 1)  # as in the notebook
    made.main["f"].cache_clear()
    made.main["f"]()  # as often as before
    made.send("g", "model", "Model", "kk")
    assert values() == (2, 1, 1, 1)
    for cache in (made.main["g"], made.main["Model"].size, made.main["Model"].rate):
        cache.cache_clear()
    made.send("g", "model", "Model", "kk")
    assert values() == (2, 2, 2, 2)
    assert not made.send("g", "model", "Model", "kk")
    assert made.main["f"].cache_info().currsize == 1
