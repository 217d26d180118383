"""What ruff says of a notebook with cluster cells, with the configuration of docs/linters.md and without it.

The recipes for nbqa, black and jupytext were tried by hand: these tools are in no environment of ours.
"""

import subprocess
import sys
import tomllib

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from snippets import snippets


@pytest.fixture
def check(tmp_path):
    """Return what ruff says of a notebook with these cells."""
    blocks = [snippet.code for snippet in snippets("docs/linters.md", "text")]
    (config,) = [code for code in blocks if "per-file-ignores" in code]

    def check(*cells, configured):
        made = new_notebook(cells=[new_code_cell(cell) for cell in cells])
        nbformat.write(made, tmp_path / "notebook.ipynb")
        (tmp_path / "ruff.toml").write_text(config if configured else "")
        words = [sys.executable, "-m", "ruff", "check", "--output-format=concise", "--no-cache"]
        done = subprocess.run([*words, "notebook.ipynb"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    return check


CELLS = ("import os", "%%tfcluster --pull rate\nrate = os.getpid()\nundefined", "print(rate)")


def test_without_the_recipe_an_import_and_a_pulled_name_are_reported_wrongly(check):
    said = check(*CELLS, configured=False)
    assert "F401" in said and "F821 Undefined name `rate`" in said


def test_with_the_recipe_they_are_not_but_other_rules_hold(check):
    assert "All checks passed" in check(*CELLS, configured=True)
    assert "F841" in check(*CELLS, "def f():\n    x = 1", configured=True)


def test_plain_cells_on_the_cluster_are_checked_as_any_other(check):
    said = check("%tfcluster all on", "import os", "print(os.getpid(), undefined)", configured=False)
    assert "F401" not in said and "F821 Undefined name `undefined`" in said


def test_the_blocks_for_nbqa_are_toml():
    blocks = [snippet.code for snippet in snippets("docs/linters.md", "text")]
    (config,) = [tomllib.loads(code) for code in blocks if "[tool.nbqa" in code]
    assert config["tool"]["nbqa"]["process_cells"] == {"ruff": ["tfcluster"], "black": ["tfcluster"]}
