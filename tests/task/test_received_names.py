"""Which names a cell has assigned, also if it assigns the object that the notebook has sent."""

import ast
import builtins
import contextlib

import pytest

from tfmagic.serialization.pickling import Deleted
from tfmagic.task.received_names import ReceivedNames

FUNCTIONS = """
def reset():
    global x
    x = None
def reset_if(flag):
    global x
    if flag: x = None
def outer(): reset()
async def later():
    global x
    x = None
class Net: pass
"""


@pytest.fixture(autouse=True)
def nothing_is_marked_later(monkeypatch):
    monkeypatch.setattr(builtins, "__tfmagic_assigned__", None, raising=False)


def after(source, value=None):
    """Return whether `x`, sent by the notebook, is the task's own after a cell, and what the cell raised."""
    namespace = {"__name__": "__main__"}
    exec(FUNCTIONS, namespace)
    received = ReceivedNames(namespace)
    received.bind({"x": value, "y": value})
    error = None
    try:
        exec(compile(received.marked(ast.parse(source)), "<cell>", "exec"), namespace)
    except Exception as raised:
        error = type(raised)
    received.settle()
    assert received.has("y")
    return not received.has("x"), error


@pytest.mark.parametrize(
    "source",
    [
        "x = None",
        "x = y",
        "a = x = y",
        "(x, *a) = [y]",
        "x: object = None",
        "x = 3\nx = y",
        "del x\nx = y",
        "for x in [y]: pass",
        "for a, x in [(1, y)]:\n    pass",
        "while True:\n    x = y\n    break",
        "import contextlib\nwith contextlib.nullcontext(y) as x: pass",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    x = y",
        "if y is None: x = None",
        "match [y]:\n    case [x]: pass",
        "match {'a': 1}:\n    case {'a': 2 as x}: pass\n    case {}: x = y",
        "(x := y)",
        "print(x := y)",
        "[(x := y) for _ in range(1)]",
        "if (x := y) is None: pass",
        "reset()",
        "outer()",
        "def own():\n    global x\n    x = y\nown()",
        "x = y\n1 / 0",
        "x",
        "if y is not None: x = None",
        "[x for x in [y]]",
        "lambda: (x := y)",
        "def f(x=None):\n    x = None\nf()",
        "class A:\n    x = None",
        "for x in []: pass",
        "1 / 0\nx = y",
        "y and (x := y)",
        "x: object",
        "reset_if(False)",
        "x == None",
        "n = 1\nn += 1",
    ],
)
def test_a_name_is_the_tasks_own_only_if_the_cell_has_assigned_it(source):
    plain = {"x": "sent", "y": None, "print": lambda value: None}
    exec(FUNCTIONS, plain)
    with contextlib.suppress(ZeroDivisionError):
        exec(source, plain)
    assert after(source)[0] == (plain.get("x") != "sent")


@pytest.mark.parametrize("value", [None, True, 7, (), int, "abc", [1], 0.5])
def test_any_object_that_the_notebook_has_sent_can_be_assigned(value):
    assert after("x = y", value) == (True, None)
    assert after("x = x or x", value) == (True, None)
    assert after("x += y", [1])[0]


def test_an_import_and_definitions_are_assignments():
    assert after("import ast as x", ast) == (True, None)
    assert after("from ast import parse as x", ast.parse) == (True, None)


def test_what_the_task_has_assigned_stays_when_the_notebook_deletes_its_own():
    namespace = {}
    received = ReceivedNames(namespace)
    received.bind({"x": None})
    exec(compile(received.marked(ast.parse("x = None")), "<cell>", "exec"), namespace)
    received.settle()
    received.bind({"x": Deleted})
    assert "x" in namespace


def test_a_call_of_a_function_that_assigns_a_name_makes_it_the_tasks_own():
    namespace = {}
    exec(FUNCTIONS, namespace)
    received = ReceivedNames(namespace)
    for function, is_own in (("reset_if", False), ("reset", True)):
        received.bind({"x": None})
        received.note_call(namespace[function])
        received.settle()
        assert received.has("x") is not is_own
