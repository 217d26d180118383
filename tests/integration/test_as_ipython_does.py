"""The same cells in a plain IPython kernel and in ``%%tfcluster --workers 1``: what is told is the same."""

import re

import pytest
from kernels import Kernel, plain

RAISING = """class Raises:
    def __repr__(self):
        raise ValueError("no text")
"""
KEPT = "@memory.cache\ndef slow(x):\n    print('computed')\n    return 2 * x\nslow(5)"
PROGRAMS = {
    "a repr that raises": [RAISING + "Raises()"],
    "a repr that is no text": ["class Odd:\n    def __repr__(self):\n        return 5\nOdd()"],
    "a sum of 700 terms": ["x = " + " + ".join(["1"] * 700) + "\nx"],
    "an elif chain of 900": [
        "n = 899\nif n < 0: pass\n" + "".join(f"elif n == {i}: r = {i}\n" for i in range(900)) + "r"
    ],
    "800 times not": ["x = " + "not " * 800 + "1\nx"],
    "return": ["return 5"],
    "yield": ["x = 1\n\nyield x"],
    "a bracket": ["x = (1 +"],
    "an indentation": ["def f():\n    return 5\n  x"],
    "blank lines first": ["\n   \n\nx = = 5"],
    "no chance": ["from __future__ import braces"],
    "a SyntaxError of its own": ["raise SyntaxError('mine')"],
    "code that is none": ["exec('1 +')"],
    "__future__": ["from __future__ import annotations", "def f(x: Undefined): pass\nf.__annotations__"],
    "history": [
        "5",
        "1 + 41",
        "print(_)\n_ + 1",
        "_, __, ___",
        "print(In[-1], '|', In[-2])\n'last'",
        "sorted(Out)[-3:]",
    ],
    "history by number": ["6 * 7", "list(Out)[-1] == get_ipython().execution_count - 2"],
    "an underscore of its own": ["_ = 5\n7", "_", "del _"],
    "no value": ["1;", "None", "x = 5"],
    "a warning": ["import warnings\nwarnings.warn('careful')"],
    "a log line": [
        "import logging\nlogging.basicConfig(format='%(filename)s %(lineno)d', force=True)\nlogging.error('')"
    ],
    "a printed traceback": [
        "import traceback\ndef f():\n    1 / 0\ntry:\n    f()\nexcept Exception:\n    traceback.print_exc()"
    ],
    "source": ["def f():\n    return 1\nimport inspect\nprint(inspect.getsource(f))"],
    "an earlier cell": ["def f():\n    1 / 0", "f()"],
    "awaited": ["async def f():\n    1 / 0\nawait f()"],
    "a timed failure": ["x = 1\nget_ipython().run_line_magic('time', '1/0')"],
    "a figure, then a failure": ["import matplotlib.pyplot as plt\nplt.plot([1, 2])\n1 / 0"],
    "one statement after the other": ["a = 257\nb = 257\nprint(a is b)\nx = 1\nglobal x\nx"],
    "every value": [
        "get_ipython().ast_node_interactivity = 'all'",
        "1\nx = 2\nx\nNone",
        "get_ipython().ast_node_interactivity = 'last_expr_or_assign'",
        "x = 3",
        "x += 4",
        "x: int = 5\nx;",
        "get_ipython().ast_node_interactivity = 'none'",
        "5",
        "get_ipython().ast_node_interactivity = 'last_expr'",
    ],
    "automagic": [
        "cd /",
        "pwd",
        "pwd = 5",
        "pwd",
        "del pwd",
        "from fractions import Fraction\nhalf = Fraction(1, 2)",
        "who_ls Fraction",
        "cat /proc/sys/kernel/ostype",
        "cd nowhere",
    ],
    "annotations": ["x: int = 3\n__annotations__['x']"],
    "the display hook": ["import sys\nsys.displayhook(5)"],
    "callbacks": [
        "def f(info):\n    print('before')\nget_ipython().events.register('pre_run_cell', f)",
        "2",
        "get_ipython().events.unregister('pre_run_cell', f)",
    ],
    "magics of every notebook": ["get_ipython().find_line_magic('store') is not None"],
    "a traceback of rich": [
        "import io, rich.console",
        "def f():\n    1 / 0\nc = rich.console.Console(file=io.StringIO(), width=90, force_jupyter=False, color_system=None)\n"
        "try:\n    f()\nexcept ZeroDivisionError:\n    c.print_exception(extra_lines=0)\n"
        "print(c.file.getvalue())",
    ],
    "the width and the colours of rich": [
        "import io, rich.console\nc = rich.console.Console()\n"
        "print(c.width, rich.console.Console(file=io.StringIO()).width, rich.console.Console(width=70).width)",
        "print(rich.console.Console(color_system='256').color_system, c.color_system)",
        "print(rich.console.Console(force_jupyter=False).width)",
    ],
    "results that joblib has kept": [
        "import joblib, tempfile\nmemory = joblib.Memory(tempfile.mkdtemp(), verbose=0)",
        KEPT,
        KEPT,
        KEPT.replace("2 * x", "3 * x"),
        "slow(5)",
    ],
    "an event loop": ["import asyncio\nawait asyncio.sleep(0)\n'slept'"],
    "base exceptions": ["class Mine(BaseException): pass\nraise Mine('x')"],
    "an exception with a lock": [
        "import threading\nclass Held(Exception): pass\ne = Held('m')\ne.lock, e.n = threading.Lock(), 1\nraise e"
    ],
}


@pytest.fixture(scope="module")
def kernels():
    """One plain, one with a cluster; the numbers of their cells go together."""
    both = Kernel(), Kernel()
    try:
        for kernel in both:
            kernel.run("1")
            kernel.run("__import__('os').environ['TF_CPP_MIN_LOG_LEVEL'] = '3'")
        both[0].run("pass")
        both[1].run("%load_ext tfmagic\n%tfcluster start --workers 1")
        yield both
    finally:
        for kernel in both:
            kernel.close()


def number_of(outputs):
    return next(content["execution_count"] for kind, content in outputs if kind == "execute_input")


def told(outputs):
    """What a cell has printed and shown, and its error as the notebook shows it."""
    shown, error = {}, ""
    text = "".join(content["text"] for kind, content in outputs if kind == "stream")
    for kind, content in outputs:
        if kind == "execute_result":
            text += content["data"]["text/plain"] + "\n"
        elif kind in ("display_data", "update_display_data") and "text/plain" in content["data"]:
            name = content.get("transient", {}).get("display_id", len(shown))
            shown[name] = content["data"]["text/plain"]
        elif kind == "error":
            error = plain("\n".join(content["traceback"])) + "\n"
    lines = "".join(f"{line}\n" for display in shown.values() for line in display.splitlines())
    return re.sub(r"(?m)^\[worker-0\]:( {4}|$)", "", text + lines), error


def without_differences(text, number):
    """Leave out what must differ.

    - a plain kernel's cells have names of files that are not there: ours are called as they are shown;
    - its SyntaxErrors have the frame that runs cells; a task's error has a note that says where it was raised;
    - of the lines around the one that raised, a different number is shown;
    - a traceback of tasks shows functions without their parameters, whose values it has as copies;
    - IPython's own errors of formatting are printed, since the error of a cell is another thing.
    """
    text = re.sub(r"/tmp/ipykernel_\d+/\d+\.py|\b\d{8,}\.py", f"Cell In[{number}]", text)
    text = re.sub(r"(?m)(^|\| )#\n", r"\1", re.sub(r"(-> \d+) +", r"\1 ", text))
    text = re.sub(r"<(?:tokenize|string)>:(\d+)", rf"Cell In[{number}], line \1", text).replace(
        "File Cell", "Cell"
    )
    text = re.sub(r"\n +File \S+interactiveshell.py:\d+ in run_code\n.*\n", "", text)
    text = re.sub(r"stayed on the task, .*\n|raised on worker-0 \(.*\)\n", "", text)
    text = re.sub(r"(?m)^(.*, in \w+)\(.*\)$", r"\1()", text)
    text = re.sub(r"(?m)^(CPU times|Wall time): .*\n|^ +\d+( .*)?\n", "", text)
    return text.replace("\n\n", "\n").rstrip()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_cell_tells_what_it_tells_in_a_plain_kernel(kernels, name):
    for cell in PROGRAMS[name]:
        first = (
            "" if name == "automagic" else "#\n"
        )  # so that lines have the same numbers; it is for single ones
        outputs = kernels[0].run(f"{first}{cell}"), kernels[1].run(f"%%tfcluster\n{cell}")
        number, theirs = (number_of(each) for each in outputs)
        assert number == theirs
        expected, found = (told(each) for each in outputs)
        if name.startswith("a repr"):  # the difference named last above
            expected, found = ("", "".join(expected)), ("", "".join(found))
        assert [without_differences(t, number) for t in found] == [
            without_differences(t, number) for t in expected
        ]


def test_a_syntax_warning_is_told_once(kernels):
    outputs = kernels[1].run("%%tfcluster\nx = 5 is 5\nx")
    text, _ = told(outputs)
    assert text.count("SyntaxWarning") == 1 and f"Cell In[{number_of(outputs)}]:2: SyntaxWarning" in text
    kernels[0].run("1")


def test_a_syntax_error_has_the_name_of_its_cell_and_no_frames_of_ours(kernels):
    for cell in ("return 5", "exec('1 +')"):
        outputs = kernels[1].run(f"%%tfcluster\n{cell}")
        (error,) = (content for kind, content in outputs if kind == "error")
        text = plain("\n".join(error["traceback"]))
        assert "tfmagic" not in text and "interactiveshell" not in text and cell in text
        kernels[0].run("1")
    assert re.fullmatch(
        r"'return' outside function \(Cell In\[\d+\], line 2\)",
        kernels[1].run("%%tfcluster\nreturn 5")[-1][1]["evalue"],
    )
    kernels[0].run("1")


@pytest.mark.parametrize(
    "lines",
    [
        ["files = !echo a \\", "  b", "1 / 0"],
        ["! echo a \\", "  b", "1 / 0"],
        ["x = %sx echo a \\", "  b \\", "  c", "1 / 0"],
        ["if True:", "    ! echo a \\", "      b", "    y = !echo a \\", "      b", "    1 / 0"],
        ["text = '''", "! echo a \\", "  b", "'''", "1 / 0"],
    ],
)
def test_lines_below_a_continued_one_have_their_numbers(kernels, lines):
    _, text = kernels[1].error("%%tfcluster\n" + "\n".join(lines))
    kernels[0].run("1")
    assert re.search(rf"-> +{len(lines) + 1} +1 / 0", text)


def test_rich_shows_the_frame_of_the_cell_itself(kernels):
    kernels[1].run(
        "import rich.traceback\nhooks = ('showtraceback', '_showtraceback', 'showsyntaxerror')\n"
        "saved = {name: vars(get_ipython()).get(name) for name in hooks}\nrich.traceback.install()"
    )
    text = plain(kernels[1].text("%%tfcluster\ndef deep(): 1 / 0\n\ndeep()"))
    kernels[1].run(
        "for name, former in saved.items():\n"
        "    delattr(get_ipython(), name) if former is None else setattr(get_ipython(), name, former)"
    )
    for _ in range(2):
        kernels[0].run("1")
    kernels[0].run("1")
    assert "in <module>:4" in text and "in deep:2" in text and "run_code" not in text


def test_two_cells_of_one_number_have_two_names(kernels):
    text = kernels[1].text(
        "for i in range(2):\n    get_ipython().run_cell_magic('tfcluster', '', f'def f{i}(): return {i}')\n"
        "get_ipython().run_cell_magic('tfcluster', '', 'import inspect\\nprint(inspect.getsource(f0), inspect.getsource(f1))')"
    )
    assert "def f0(): return 0" in text and "def f1(): return 1" in text
    kernels[0].run("1")


def test_an_exception_group_is_the_error_of_its_cell(kernels):
    for cell in (
        "raise ExceptionGroup('g', [ValueError('inner')])",
        "try:\n    raise ExceptionGroup('g', [ValueError('inner')])\nexcept ExceptionGroup:\n    1 / 0",
    ):
        name, text = kernels[1].error(f"%%tfcluster\n{cell}")
        assert name in ("ExceptionGroup", "ZeroDivisionError") and "ValueError: inner" in text
        assert "magic.py" not in text and "raised on worker-0" in text
        kernels[0].run("1")


def test_a_message_of_a_hundred_megabytes_is_shown_by_its_ends(kernels):
    name, text = kernels[1].error("%%tfcluster\nraise ValueError('x' * 100_000_000 + 'end')")
    assert name == "ValueError" and len(text) < 200_000 and "xend" in text
    path = re.search(r"the whole text is in (\S+)", text)[1]
    with open(path) as file:
        assert file.read().endswith("xend\n")
    kernels[0].run("1")


@pytest.mark.parametrize("hook", ["__getattr__", "__getattribute__"])
def test_a_class_whose_attributes_raise_is_shown(kernels, hook):
    """A plain kernel shows nothing of it."""
    cell = f"class Odd(Exception):\n    def {hook}(self, name):\n        raise KeyError(name)\nraise Odd('the text')"
    name, text = kernels[1].error(f"%%tfcluster\n{cell}")
    assert name == "Odd" and "----> 5 raise Odd" in text and "Odd: the text" in text
    kernels[0].run("1")


def test_a_cell_without_a_body_is_told_by_the_name_of_its_magic(kernels):
    text = kernels[1].text("%%tfcluster --workers 1")
    assert "%%tfcluster is a cell magic, but the cell body is empty" in text
    assert "line magic %tfcluster" in text
    kernels[0].run("1")


def test_each_cell_shows_its_warnings_also_equal_ones(notebook):
    notebook.run("%tfcluster start --workers 1")
    for _ in range(2):
        shown = notebook.run("%%tfcluster\nimport warnings\nwarnings.warn('the same')")
        assert "UserWarning: the same" in shown
