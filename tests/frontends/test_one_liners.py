"""``%tfcluster run CODE``: the options of a cell, then its code, as typed."""

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from tfmagic.frontends.notebook.one_liners import rewrite_lines, split


@pytest.mark.parametrize(
    ("line", "options", "code"),
    [
        ("a = 5", "", "a = 5"),
        (" --on worker-0 a = 5", "--on worker-0", "a = 5"),
        ("--workers=3 --keep-going print(1)", "--workers=3 --keep-going", "print(1)"),
        ("--env 'A=b c' !echo $A", "--env 'A=b c'", "!echo $A"),
        ("--x", "", "--x"),
        ("--on worker-0", "--on worker-0", ""),
        ("-5 + 3", "", "-5 + 3"),
    ],
)
def test_the_options_end_where_the_code_begins(line, options, code):
    assert split(f"run {line}") == (options, code and f"{code}\n")


def transform(cell):
    return "".join(rewrite_lines(TransformerManager().transform_cell(cell).splitlines(keepends=True)))


def test_a_line_becomes_a_cell_whose_braces_are_its_own():
    assert transform("%tfcluster run --on ps f'{x}'; y = 1\nz = 2") == (
        "get_ipython().run_cell_magic('tfcluster', '--line 1 --on ps', \"f'{x}'; y = 1\\n\")\nz = 2\n"
    )
    assert transform("if 1:\n    %tfcluster run a = 5").endswith(
        "    get_ipython().run_cell_magic('tfcluster', '--line 2', 'a = 5\\n')\n"
    )


@pytest.mark.parametrize("line", ["%tfcluster run", "%tfcluster run --help", "%tfcluster runs x", "x = 1"])
def test_other_lines_stay_as_they_are(line):
    assert "run_cell_magic" not in transform(line)
