"""How differences over tasks are found and said."""

import numpy as np
import pytest

from tfmagic.features.diff.differences import (
    Difference,
    PartDifference,
    compare_parts,
    describe_parts,
    describe_rows,
)
from tfmagic.features.diff.digests import PartDigest


def test_tasks_with_equal_parts_are_one_group():
    same, other = PartDigest("int", "1", "3"), PartDigest("int", "2", "4")
    found = {"worker-0": {"a": same, "b": same}, "worker-1": {"a": same, "b": other}, "worker-2": {"a": same}}
    groups = compare_parts(found)
    assert groups == {"b": (("worker-0",), ("worker-1",), ("worker-2",))}
    assert describe_parts("b", groups["b"], found, {}) == "worker-2 has no such part"
    assert describe_parts("b", groups["b"][:2], found, {}) == "3 | 4"


def test_kinds_that_differ_are_said_before_values():
    found = {"a-0": {"": PartDigest("float32 [2]", "1")}, "a-1": {"": PartDigest("float32 [3]", "2")}}
    assert describe_parts("", (("a-0",), ("a-1",)), found, {}) == "float32 [2] | float32 [3]"


@pytest.mark.parametrize(
    ("first", "other", "says"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.5], "norm 0.5, at most 0.5, in 1 of 3 places, first at [2]: 3 | 3.5"),
        ([[1, 2], [3, 4]], [[1, 5], [3, 8]], "norm 5, at most 4, in 2 of 4 places, first at [0, 1]: 2 | 5"),
        ([0.0], [-0.0], "only the sign of zeros or the bits of NaNs"),
        (
            [float("nan"), 1.0],
            [float("nan"), 2.0],
            "norm 1, at most 1, in 1 of 2 places, first at [1]: 1 | 2",
        ),
    ],
)
def test_arrays_differ_by_a_norm_and_a_place(first, other, says):
    part = PartDigest("array", "", "", True)
    found = {"a-0": {"": part}, "a-1": {"": part}}
    arrays = {"a-0": {"": np.array(first)}, "a-1": {"": np.array(other)}}
    assert describe_parts("", (("a-0",), ("a-1",)), found, arrays) == says


def test_what_cannot_be_compared_is_not_called_the_same():
    tasks = ("a-0", "a-1")
    alone = Difference("it", tasks, 1, (), hidden=("",))
    assert repr(alone) == "it is of the same type on a-0 and a-1; its content cannot be compared"
    within = repr(Difference("it", tasks, 3, (), hidden=("f",)))
    assert "the same on a-0 and a-1, in all 3 parts" in within
    assert "compared by their type alone: f" in within


def test_rows_that_were_read_twice_and_by_nobody_are_counted():
    lines = describe_rows({"a-0": [b"1", b"2", b"2"], "a-1": [b"2", b"3"]}, [b"1", b"2", b"3", b"4", b"5"])
    assert lines == (
        "rows: a-0 3, a-1 2",
        "1 of 3 different rows were read by more than one task",
        "a-0 has read 1 rows again",
        "2 of 5 rows were read by nobody: 3, 4",
    )
    assert describe_rows({"a-0": [b"1"], "a-1": [b"2"]}, [b"1", b"2"]) == (
        "rows: a-0 1, a-1 1",
        "no row was read by more than one task",
        "each of the 2 rows was read",
    )
    assert "1 rows are not among those given" in describe_rows({"a-0": [b"9"]}, [b"9", b"1"][1:])


def test_a_difference_is_shown_as_text_and_html():
    part = PartDifference("a/<b>", (("worker-0",), ("worker-1",)), "1 | 2")
    bundle = Difference("model", ("worker-0", "worker-1"), 4, (part,), ("rows: ...",))._repr_mimebundle_()
    assert "model differs between worker-0 and worker-1: 1 of 4 parts" in bundle["text/plain"]
    assert "a/&lt;b&gt;" in bundle["text/html"] and "rows: ..." in bundle["text/html"]
    equal = Difference("x", ("worker-0", "worker-1", "worker-2"), 1, ())
    assert equal.equal and repr(equal) == "x is the same on 3 tasks"


def test_statistics_that_differ_by_design_are_told_apart():
    sides = (("a-0",), ("a-1",))
    own, weight = PartDifference("bn/mean", sides, "1 | 2", True), PartDifference("kernel", sides, "3 | 4")
    only_own, both = (
        Difference("model", ("a-0", "a-1"), 3, (own,)),
        Difference("model", ("a-0", "a-1"), 3, (own, weight)),
    )
    assert str(only_own) == "model is the same on a-0 and a-1 but for 1 statistics that differ by design"
    assert str(both).endswith("a-0 and a-1: 1 of 3 parts, and 1 statistics that differ by design")
    text = repr(both)
    assert text.index("3 | 4") < text.index("by design: 1 | 2") < text.index("synchronized=True")
