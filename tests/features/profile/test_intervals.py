"""Arithmetic of intervals, compared with sets of numbers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfmagic.features.profile import intervals

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: tuple(sorted(pair))))


def points(found):
    return {n for start, end in found for n in range(start, end)}


@given(PAIRS, PAIRS)
def test_they_cover_what_sets_of_numbers_do(first, second):
    a, b = intervals.union(first), intervals.union(second)
    assert points(a) == points(first)
    assert points(intervals.subtract(a, b)) == points(first) - points(second)
    assert points(intervals.intersect(a, b)) == points(first) & points(second)
    assert intervals.length(a) == len(points(first))


@given(PAIRS, PAIRS)
def test_they_are_sorted_and_do_not_touch(first, second):
    a, b = intervals.union(first), intervals.union(second)
    for found in (a, intervals.subtract(a, b), intervals.intersect(a, b)):
        assert all(start < end for start, end in found)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(found))
    assert all(one[1] < other[0] for one, other in itertools.pairwise(a))


@pytest.mark.parametrize("empty", [[], [(3, 3)]])
def test_nothing_has_no_length(empty):
    assert intervals.union(empty) == []
    assert intervals.subtract([], [(1, 2)]) == intervals.intersect([(1, 2)], []) == []
