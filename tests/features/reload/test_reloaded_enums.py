"""Members of enums that a process holds are those of the class, also after a reload of their module."""

import importlib
import pickle
import sys

import pytest

from tfmagic.features.reload.on_tasks import reload_modules

MODULE = """
import enum
class Kind(enum.Enum):
    A = "a"
    B = {b!r}
    SAME = "a"
    {more}
    def text(self): return "{text}" + self.name
class Number(enum.IntEnum):
    ONE = 1
    TWO = {two}
class Right(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
class Named(enum.Enum):
    name_of = 1
    value = 2
    def __init__(self, n): self.twice = {factor} * n
class Shape:
    class Side(enum.StrEnum):
        LEFT = "left"
"""


@pytest.fixture
def enums(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "enums_to_reload.py"

    def edit(**texts):
        file.write_text(
            MODULE.format(**({"b": "b", "more": "", "text": "old ", "two": 2, "factor": 2} | texts))
        )

    def reload(**texts):
        edit(**texts)
        reload_modules(("enums_to_reload",), {})

    edit()
    yield importlib.import_module("enums_to_reload"), reload
    del sys.modules["enums_to_reload"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_member_that_is_held_anywhere_is_the_class_member(enums, times):
    shapes, reload = enums
    held = [shapes.Kind.A, shapes.Number.ONE, shapes.Right.READ, shapes.Shape.Side.LEFT, shapes.Named.value]
    both, keys = shapes.Right.READ | shapes.Right.WRITE, {shapes.Kind.B: 1}
    for number in range(times):
        reload(text=f"new {number} ", more="C = 'c'", b="other", factor=3)
    new = [shapes.Kind.A, shapes.Number.ONE, shapes.Right.READ, shapes.Shape.Side.LEFT, shapes.Named.value]
    assert all(a is b for a, b in zip(held, new, strict=True))
    assert [shapes.Kind("a"), shapes.Kind["A"], shapes.Kind.SAME] == [held[0]] * 3
    assert both is shapes.Right.READ | shapes.Right.WRITE and held[2] in both
    assert keys[shapes.Kind.B] == 1 and shapes.Kind("other") is shapes.Kind.B
    assert list(shapes.Kind) == [held[0], shapes.Kind.B, shapes.Kind.C]
    assert held[0].text() == f"new {times - 1} A" and shapes.Named.value.twice == 6
    assert held[4].value == 2 and held[4].name == "value"
    assert pickle.loads(pickle.dumps(held)) == held and pickle.loads(pickle.dumps(both)) is both


def test_a_number_that_has_another_value_now_is_another_member(enums):
    shapes, reload = enums
    held = shapes.Number.TWO
    reload(two=5)
    assert held == 2 and shapes.Number.TWO == 5 and shapes.Number(5) is shapes.Number.TWO
