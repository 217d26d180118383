"""Functions, classes and enums are the same in a process that has never imported them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tfmagic.serialization import pickling

DEFINITIONS = Path(__file__).parents[1] / "support" / "definitions_to_send.py"
CHECKS = {
    "Planet": "Planet.EARTH.g, Planet((3.3e23, 2.4e6)), list(Planet), Planet['EARTH'] is Planet.EARTH",
    "Coord": "Coord.PY.label, bytes(Coord.PY), Coord(1), Coord.PY == b'\\x01'",
    "Color": "Color.CRIMSON is Color.RED, list(Color), Color(2), Color.__members__",
    "Perm": "Perm.R | Perm.W, Perm(3), list(Perm.RWX), Perm.R in Perm.RWX, ~Perm.R, Perm(0)",
    "Num": "Num.A + 1, Num(2), sorted(Num), isinstance(Num.A, int), f'{Num.A}', Num.B",
    "Name": "Name.A == 'a', Name('b'), Name.A.upper(), f'{Name.A}', str(Name.A)",
    "Text": "Text.A == 'a', Text('b'), f'{Text.A}', str(Text.B)",
    "Missing": "Missing(77)",
    "Auto": "list(Auto), Auto('x')",
    "Operator": "Operator.ADD(1, 2), Operator.OTHER, list(Operator.__members__)",
    "Stack": "Stack(1).top, type(Stack(1)).__name__, Stack[int], Stack.__parameters__, Stack[int](1).__orig_class__",
    "Readable": "Readable._is_protocol",
    "Pair": "Pair(1), Pair._fields, Pair(1)._replace(a=3)",
    "Options": "Options(a=1), Options.__annotations__",
    "Point": (
        "Point(1), Point(1) < Point(2), [f.name for f in dataclasses.fields(Point)], "
        "dataclasses.replace(Point(1), a=3), dataclasses.asdict(Point(1)), hash(Point(1, ())), "
        "dataclasses.make_dataclass('Other', ['c'], bases=(Point,), frozen=True, kw_only=True)(1, c=2).c"
    ),
    "Slotted": "Slotted(), Slotted.__slots__, hasattr(Slotted(), '__dict__')",
    "Tagged": "Tagged.meta, type(Tagged).__name__",
    "Registered": "Registered.known",
    "Concrete": "Concrete().f(), Concrete.__mro__[1].__abstractmethods__, issubclass(int, Concrete.__mro__[1])",
    "Slots": "hasattr(Slots(), '__dict__'), (lambda s: setattr(s, 'a', 1) or s.a)(Slots())",
    "Described": "Described.d",
    "Decorated": "Decorated().x, Decorated().y(), Decorated().z(1), Decorated().z(''), Decorated().p",
    "NamedProperty": "NamedProperty().fail()",
    "dispatched": "dispatched(1), dispatched('')",
    "Ordered": "Ordered(1) <= Ordered(2), Ordered(2) > Ordered(1)",
    "UserId": "UserId(3), UserId.__supertype__",
    "P": "P, P.args",
    "T": "T",
    "Old": "Old(1), Old._field_defaults",
    "fib": "fib(30), fib.cache_info().maxsize",
    "counter": "counter(), counter()",
    "wrapped": "wrapped(1), wrapped.__name__",
    "coded": "str(coded), coded.code, coded.args, type(coded).__name__",
    "managed": "managed().__enter__()",
    "table": "table['double'](4), table['both'][1](5)",
}


@pytest.fixture(scope="module")
def namespace():
    found = {"__name__": "__main__"}
    exec(compile(DEFINITIONS.read_text(), DEFINITIONS, "exec"), found)
    return found


def without_addresses(text):
    return re.sub(r"0x[0-9a-f]+", "", text)


CHILD = """
import dataclasses, pickle, sys
from tfmagic.serialization import pickling
from tfmagic.protocol.payload import Packed

import __main__
sent = pickle.load(sys.stdin.buffer)
vars(__main__).update(pickling.loads(Packed(data=sent["stream"]), vars(__main__)))
for check in sent["checks"]:
    try:
        print(repr(eval(check)))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_each_is_what_it_was_in_another_process(namespace, monkeypatch):
    import pickle

    module = type(sys)("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    vars(module).update(namespace)
    sent = {name: namespace[name] for name in [*CHECKS, "k"]}  # what functions read, capture sends with them
    stream = pickling.dumps(sent, namespace).stream
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=pickle.dumps({"stream": stream, "checks": list(CHECKS.values())}),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    wanted = [without_addresses(repr(eval(check, namespace))) for check in CHECKS.values()]
    got = without_addresses(done.stdout.decode()).splitlines()
    assert dict(zip(CHECKS, got, strict=True)) == dict(zip(CHECKS, wanted, strict=True))


def test_what_comes_back_is_the_class_that_is_here(namespace):
    cls = type("Local", (), {"seen": [1]})
    cls.__module__ = "__main__"
    pickled = pickling.dumps([cls, cls()], {})
    again, instance = pickling.loads(pickling.Packed(data=pickled.stream), {})
    assert again is cls and type(instance) is cls and pickled.by_value.functions == []


def test_functions_of_the_notebook_are_found_wherever_they_are(namespace):
    for name in ("table", "fib", "Stack", "wrapped"):
        found = pickling.dumps(namespace[name], namespace).by_value.functions
        assert found and all(f.__globals__ is namespace for f in found), name
