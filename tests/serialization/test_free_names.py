"""The names that a cell reads before it assigns them."""

import ast

import pytest

from tfmagic.serialization.all_names import ALL_NAMES, names_asked, names_asked_by
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


@pytest.mark.parametrize(
    "source",
    [
        "import unittest\nunittest.main(argv=['x'], exit=False)",
        "import unittest as ut\nut.main()",
        "ut.main(argv=['x'], exit=False)",
        "from unittest import main as go\ngo(argv=[''])",
        "tf.test.main()",
        "doctest.testmod(verbose=True)",
        "from doctest import testmod\ntestmod()",
        "timeit.timeit('fn(1)', globals=globals())",
        "print('{a}'.format(**vars()))",
        "sorted(locals())",
        "for name in names: globals()[name]",
        "import __main__ as here\ngetattr(here, name)",
        "from __main__ import *",
        "inspect.getmembers(sys.modules['__main__'])",
        "inspect.getmembers(sys.modules[__name__])",
        "loader.loadTestsFromName('__main__.TestLoss')",
        "get_ipython().run_line_magic('run', '-i script.py')",
        "def run():\n    return globals()",
    ],
)
def test_code_that_asks_for_all_names(source):
    assert ALL_NAMES in names_asked(ast.parse(source))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("globals()['kept'] = 1\ndel vars()['kept']\nglobals().update(k=1)", set()),
        ("globals()['x'] + globals().get('y', 0)", {"x", "y"}),
        ("if 'x' not in dir() and 'y' in globals(): pass", {"x", "y"}),
        ("import __main__\n__main__.fn(getattr(__main__, 'k', 0))\n__main__.z = 1", {"fn", "k"}),
        ("from __main__ import a, b as c", {"a", "b"}),
        ("if __name__ == '__main__':\n    main()", set()),
        ("def f(a):\n    return locals(), vars(a), dir()\nlogging.getLogger(__name__)\nvars(f)", set()),
        ("app.main()\nmain()\ncluster.run(f)\ndoctest.testmod(module)", set()),
    ],
)
def test_names_that_code_asks_for_by_text(source, expected):
    assert names_asked(ast.parse(source)) == expected


def test_functions_ask_for_names_too():
    def test_all():
        return dict(globals())

    def keep(value):
        globals()["kept"] = value, globals()["last"]

    assert names_asked_by(test_all.__code__) == {ALL_NAMES}
    assert names_asked_by(keep.__code__) == {"last"}
    assert names_asked_by(compile("globals()", "<nowhere>", "eval")) == {ALL_NAMES}
