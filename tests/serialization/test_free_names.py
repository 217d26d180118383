"""The names that a cell reads before it assigns them."""

import ast

import pytest

from tfmagic.serialization.free_names import global_names, names_read


def reads(source):
    return names_read(ast.parse(source), source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x + 1", {"x"}),
        ("x = 1\nx + 1", set()),
        ("x = x + 1", {"x"}),
        ("x += 1", {"x"}),
        ("for i in items:\n    i", {"items"}),
        ("if flag:\n    y = 1\ny", {"flag", "y"}),
        ("if flag:\n    y = 1\nelse:\n    y = 2\ny", {"flag"}),
        ("try:\n    import a\nexcept ImportError:\n    a = None\na", {"ImportError"}),
        ("import numpy as np\nnp.ones(n)", {"n"}),
        ("[i * k for i in range(3)]", {"k", "range"}),
        ("def f(a, b=default):\n    return a + glob\nf(1)", {"default", "glob"}),
        ("def f():\n    return later\nlater = 1\nf()", set()),
        ("class A(Base):\n    def m(self):\n        return helper", {"Base", "helper"}),
        ("g = lambda v: v + offset", {"offset"}),
        ("with opener() as f:\n    f.read()", {"opener"}),
        ("match v:\n    case {'a': q}:\n        q", {"v"}),
        ("f'{name}'", {"name"}),
        ("del x", {"x"}),
        ("(n := 3) + n", set()),
        ("await coro", {"coro"}),
        ("while more:\n    z = 1\nz", {"more", "z"}),
        ("def f():\n    global counter\n    counter += 1", {"counter"}),
        ("df.query('a > @limit and b == @other.x')", {"df", "limit", "other"}),
        ("limit = 3\ndf.query('a > @limit')", {"df"}),
        ("def f(df):\n    return df.query(f'a > @limit')", {"limit"}),
        ("df.eval('a + @k')", {"df", "k"}),
        ("df.other('a + @k', 'me@home')", {"df"}),
        ("eval('a + b')", {"eval", "a", "b"}),
        ("pd.eval('a + b')", {"pd", "a", "b"}),
        ("exec('a = b')", {"exec", "a", "b"}),
        ("eval('a +')", {"eval"}),
    ],
)
def test_names_that_a_cell_reads(source, expected):
    assert reads(source) == expected


def test_globals_of_a_function_include_those_of_inner_functions():
    namespace = {}
    exec("def f():\n    def g():\n        return deep\n    return g, shallow", namespace)
    assert {"deep", "shallow"} <= global_names(namespace["f"].__code__)


def test_functions_name_variables_in_texts_too():
    def select(frame):
        return frame.query("a > @limit"), eval("b + 1")

    assert {"limit", "b"} <= global_names(select.__code__)
