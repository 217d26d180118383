"""What is compared of a value: its parts, and digests that are equal where the values are."""

import argparse
import dataclasses
import sys

import numpy as np
import pytest

from tfmagic.features.diff import digests


@pytest.fixture
def bind(monkeypatch):
    def bind(value):
        monkeypatch.setitem(sys.modules["__main__"].__dict__, "subject", value)
        return digests.parts_of("subject")

    return bind


@dataclasses.dataclass
class Config:
    rate: float = 0.1
    sizes: tuple = (1, "a")


class Plain:
    """An object without a repr of its own."""


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (3, [""]),
        ({"a": 1, "b": {"c": "x"}}, ["a", "b/c"]),
        ([1, "x"], ["0", "1"]),
        ([1.0, 2.0], [""]),
        (Config(), ["rate", "sizes/0", "sizes/1"]),
        (argparse.Namespace(rate=1, name="x"), ["rate", "name"]),
        (np.ones((2, 3), "float32"), [""]),
        ({}, []),
        (Plain(), [""]),
    ],
)
def test_a_value_has_parts(bind, value, paths):
    assert list(bind(value)) == paths


def test_equal_values_have_equal_digests_and_others_have_not(bind):
    one = {"a": np.arange(3), "b": [1.5, 2.5], "c": "text", "d": Plain()}
    same = {"a": np.arange(3), "b": [1.5, 2.5], "c": "text", "d": Plain()}
    first = bind(one)
    assert first == bind(same)
    assert first["a"].kind == "int64 [3]" and first["a"].is_array
    for name, other in (("a", np.arange(3.0)), ("a", np.arange(4)), ("b", [1.5, 2.0]), ("c", "Text")):
        assert bind({**same, name: other})[name].digest != first[name].digest


class Holder:
    """An object that has no repr of its own, but attributes."""

    __slots__ = ("__dict__", "slot")

    def __init__(self, value):
        self.value = self.slot = value


def test_an_object_without_a_repr_is_compared_by_its_attributes(bind):
    assert bind(Holder(1)) == bind(Holder(1)) != bind(Holder(2))
    assert list(bind({"a": [Holder(1)]})) == ["a/0/value", "a/0/slot"]


@pytest.mark.parametrize("value", [lambda: 1, (n for n in "ab"), Plain()])
def test_what_shows_nothing_but_its_type_is_said_to_be_hidden(bind, value):
    assert bind(value)[""].is_hidden and "0x" not in bind(value)[""].text


def test_a_value_that_contains_itself_has_an_end(bind):
    loop = {}
    loop["me"] = loop
    assert len(bind(loop)) == 1
    assert len(bind([str(n) for n in range(10_000)])) <= 2_000


def test_rows_of_batches_have_digests(bind):
    bind([np.arange(6.0).reshape(3, 2), np.arange(4.0).reshape(2, 2)])
    rows = digests.row_digests("subject")
    assert len(rows) == 5 and rows[:2] == rows[3:], "the first two rows are those of the second batch"


def test_attributes_can_be_named_and_missing_names_are_an_error(bind):
    bind(Config())
    assert list(digests.parts_of("subject.rate")) == [""]
    with pytest.raises(NameError, match="name 'absent' is not defined"):
        digests.parts_of("absent")
