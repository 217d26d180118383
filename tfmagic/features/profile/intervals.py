"""Arithmetic of time intervals: union, difference, intersection, length.

An interval is a pair (start, end) of numbers. The lists that these functions return are sorted, and their
intervals do not overlap. `trace_reader` reads traces with them, and `shares` compares tasks.
"""

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals."""
    found: list[Interval] = []
    last_start = last_end = 0
    for start, end in sorted(intervals):
        if found and start <= last_end:
            if end > last_end:
                last_end = end
                found[-1] = (last_start, end)
        elif end > start:
            last_start, last_end = start, end
            found.append((start, end))
    return found


def subtract(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Return the parts of `intervals` outside of `others`; both as from `union`."""
    found: list[Interval] = []
    first = 0
    for start, end in intervals:
        while first < len(others) and others[first][1] <= start:
            first += 1
        at = first
        while at < len(others) and others[at][0] < end:
            if others[at][0] > start:
                found.append((start, others[at][0]))
            start = max(start, others[at][1])
            at += 1
        if start < end:
            found.append((start, end))
    return found


def intersect(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Return the intersection of both; both as from `union`."""
    found: list[Interval] = []
    i = j = 0
    while i < len(intervals) and j < len(others):
        start, end = max(intervals[i][0], others[j][0]), min(intervals[i][1], others[j][1])
        if start < end:
            found.append((start, end))
        if intervals[i][1] <= others[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(intervals: Iterable[Interval]) -> int:
    """Return the total length of intervals that do not overlap."""
    return sum(end - start for start, end in intervals)
