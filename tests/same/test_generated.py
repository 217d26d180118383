"""Generated programs and values behave the same in a plain kernel and on a task.

`make test` tries the same few examples each time, `make chaos` (SAME=all) many new ones.
"""

from __future__ import annotations

import contextlib
import warnings

import pytest
from comparing import find_differences
from corpus import ALL, Cell, Program
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

BOUNDS = settings(
    max_examples=500 if ALL else 3,
    derandomize=not ALL,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, *([Phase.shrink] if ALL else [])],  # to find a smaller program takes minutes
)

DEFINITIONS = """
import datetime, decimal, enum, fractions, functools, pathlib, re, collections, dataclasses, typing
import numpy as np
import pandas as pd
level = 3
class Colour(enum.Enum):
    RED = 1
    BLUE = "b"
class Rank(enum.IntEnum):
    LOW = 1
T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    def __init__(self, item): self.item = item
    def __repr__(self): return f"Box({self.item!r})"
@dataclasses.dataclass(frozen=True)
class Point:
    x: object
    y: object = Colour.RED
Pair = collections.namedtuple("Pair", "a b")
class Names(list): pass
def scale(x): return x * level
def make(n):
    def inner(x): return (x, n, level)
    return inner
class Call:
    def __init__(self, fn): self.fn = fn
    def __repr__(self): return f"Call({self.fn(2)!r})"
"""
KNOWN = """
None
True
...
Colour.RED
Rank.LOW
Colour
Box
Point
int
2.5j
range(3)
slice(1, 2)
np.float32(2.5)
np.arange(6).reshape(2, 3)
np.zeros((0, 2))
np.array(['a', None], dtype=object)
np.arange(9)[::2]
np.asfortranarray(np.eye(2))
np.array([1, 2], dtype='>i2')
np.bool_(True)
datetime.date(2026, 1, 2)
datetime.timedelta(1)
decimal.Decimal('1.10')
fractions.Fraction(1, 3)
pathlib.Path('a/b')
re.compile('a+')
pd.Timestamp('2026-01-01')
pd.Series([1, 2], name='s')
pd.DataFrame({'a': [1, 2], 'b': ['x', None]})
pd.Categorical(['u', 'v'])
np.dtype('f4')
Call(scale)
Call(make(4))
Call(lambda x: x + level)
Call(functools.partial(scale))
""".strip().splitlines()
ATOMS = st.one_of(
    st.integers(-(10**20), 10**20).map(repr),
    st.floats(allow_nan=False).map(lambda x: f"float({str(x)!r})"),
    st.text(max_size=6).map(repr),
    st.binary(max_size=6).map(repr),
    st.sampled_from(KNOWN),
)
KEYS = st.one_of(st.integers(-5, 5).map(repr), st.text("ab", max_size=3).map(repr), st.just("Colour.BLUE"))


def _grow(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(values, max_size=3)
    return st.one_of(
        several.map(lambda items: f"[{', '.join(items)}]"),
        several.map(lambda items: f"({''.join(item + ', ' for item in items)})"),
        several.map(lambda items: f"Names([{', '.join(items)}])"),
        st.dictionaries(KEYS, values, max_size=3).map(
            lambda d: "{" + ", ".join(f"{k}: {v}" for k, v in d.items()) + "}"
        ),
        st.tuples(values, values).map(lambda two: f"Pair({two[0]}, {two[1]})"),
        values.map(lambda value: f"Point({value})"),
        values.map(lambda value: f"Box({value})"),
        values.map(lambda value: f"collections.OrderedDict(k={value})"),
        values.map(lambda value: f"collections.deque([{value}], maxlen=2)"),
        values.map(lambda value: f"Call(lambda x: (x, {value}))"),
    )


VALUES = st.recursive(ATOMS, _grow, max_leaves=6)

# ---- programs: few names, so that statements share them; an invalid program fails on both sides

NAMES = st.sampled_from("abc")
EXPRESSIONS = st.recursive(
    st.one_of(st.integers(-3, 9).map(str), st.sampled_from(["'s'", "[1, 2]", "{}", "None", "2.5"]), NAMES),
    lambda inner: st.one_of(
        st.tuples(
            inner, st.sampled_from(["+", "-", "*", "//", "%", "==", "<", "in", "and", "or"]), inner
        ).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, inner).map(lambda two: f"[{two[0]}, {two[1]}]"),
        st.tuples(NAMES, inner).map(lambda two: f"[{two[0]} for {two[0]} in ({two[1]}, 1)]"),
        st.tuples(NAMES, inner, inner).map(lambda three: f"(lambda {three[0]}: {three[1]})({three[2]})"),
        inner.map(lambda value: f"f({value})"),
        inner.map(lambda value: f"str({value})"),
        inner.map(lambda value: f"len({value})"),
        st.tuples(inner, inner).map(lambda two: f"{two[0]}[{two[1]}]"),
    ),
    max_leaves=5,
)
SIMPLE = st.one_of(
    st.tuples(NAMES, EXPRESSIONS).map(lambda two: [f"{two[0]} = {two[1]}"]),
    EXPRESSIONS.map(lambda value: [f"print({value})"]),
    EXPRESSIONS.map(lambda value: [value]),
    st.tuples(NAMES, EXPRESSIONS).map(lambda two: [f"{two[0]} += {two[1]}"]),
    NAMES.map(lambda name: [f"del {name}"]),
    EXPRESSIONS.map(lambda value: [f"assert {value}, {value}"]),
    EXPRESSIONS.map(lambda value: [f"raise ValueError({value})"]),
)


def _indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _compound(body: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    return st.one_of(
        st.tuples(EXPRESSIONS, body, body).map(
            lambda p: [f"if {p[0]}:", *_indent(p[1]), "else:", *_indent(p[2])]
        ),
        st.tuples(NAMES, body).map(lambda p: [f"for {p[0]} in range(3):", *_indent(p[1])]),
        st.tuples(body, body, body).map(
            lambda p: [
                "try:",
                *_indent(p[0]),
                "except Exception:",
                *_indent(p[1]),
                "finally:",
                *_indent(p[2]),
            ]
        ),
        st.tuples(NAMES, body, EXPRESSIONS).map(
            lambda p: [f"def f({p[0]}):", *_indent(p[1]), f"    return {p[2]}"]
        ),
        st.tuples(body, body).map(lambda p: p[0] + p[1]),
        body.map(lambda lines: ["class C:", *_indent(lines)]),
    )


PROGRAMS = st.lists(st.recursive(SIMPLE, _compound, max_leaves=4), min_size=1, max_size=4).map(
    lambda parts: "\n".join(line for part in parts for line in part)
)


@pytest.mark.timeout(0 if ALL else 240)
def test_values_of_the_notebook_arrive_unchanged_on_the_task(pair):
    numbers = iter(range(10**6))

    @BOUNDS
    @given(st.lists(VALUES, min_size=1, max_size=4))
    def hold(values):
        name = f"value_{next(numbers)}"
        notebook = Cell(f"{DEFINITIONS}\n{name} = [{', '.join(values)}]", in_notebook=True)
        compare(pair, Program("generated", name, (notebook, Cell(f"print({name})\n{name}"))))

    hold()


@pytest.mark.soak  # tests/same/test_programs.py has written ones
@pytest.mark.timeout(0 if ALL else 240)
def test_programs_run_on_a_task_as_they_do_in_a_notebook(pair):
    @BOUNDS
    @given(PROGRAMS, EXPRESSIONS)
    def hold(program, last):
        assume(not warns(program) and not warns(last))  # IPython prints such a warning up to three times
        first = "def f(x):\n    return [x]\na, b, c = 1, [2, 'k'], {'k': 3}"
        compare(pair, Program("generated", "a program", (Cell(first), Cell(program), Cell(last))))

    hold()


def warns(source):
    """Return whether Python's compiler warns of the source."""
    with warnings.catch_warnings(record=True) as caught, contextlib.suppress(SyntaxError):
        warnings.simplefilter("always")
        compile(source, "<cell>", "exec")
    return bool(caught)


def compare(pair, program):
    bare, ours = pair.run(program)
    found = find_differences(bare, ours)
    assert not found, "\n\n".join(cell.source for cell in program.cells[-2:]) + f"\n{found}"
