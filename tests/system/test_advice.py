"""The next step that a message names, in a notebook and in Python."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfmagic
from tfmagic.errors import TaskDied, TfmagicError
from tfmagic.failures import hints
from tfmagic.frontends.cli.doctor import in_a_shell
from tfmagic.system import advice

WORDS = {
    "%tfcluster revive   (or %tfcluster restart worker-1)": "cluster.revive()   (or cluster.restart('worker-1'))",
    "%tfcluster resume worker-0 worker-1 lets it": "cluster.faults.resume('worker-0', 'worker-1') lets it",
    "%tfcluster stop, then start, begins": "cluster.stop(), then cluster.start(), begins",
    "with %tfcluster start or Cluster.start()": "with cluster.start()",
    "%tfcluster restart --workers 2 --ps 1": "tfmagic.Cluster(workers=2, ps=1)",
    "send it with --push a,b, or %config TFCluster.x = 3": "send it with cluster.push(a=a, b=b), or tfmagic.Cluster(x=3)",
    "more time with --timeout, or": "more time with timeout=, or",
    "%tfcluster wait , or %tfcluster interrupt": "future.result() , or cluster.interrupt()",
    "100 % of --nothing": "100 % of --nothing",
}


@pytest.mark.parametrize("text", WORDS)
def test_in_python_the_next_step_is_a_call(monkeypatch, text):
    monkeypatch.setattr(advice, "is_notebook", lambda: False)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert advice.here(text) == WORDS[text]
    assert str(TfmagicError(text)) == WORDS[text] and str(TaskDied(text)) == WORDS[text]
    monkeypatch.setattr(advice, "is_notebook", lambda: True)
    assert advice.here(text) == str(TfmagicError(text)) == text


def test_under_pytest_it_is_a_call_of_the_fixture(monkeypatch):
    monkeypatch.setattr(advice, "is_notebook", lambda: False)
    assert advice.here("with %tfcluster revive") == "with tfcluster.revive()"


@pytest.mark.soak  # whether there is a notebook: the tests above
def test_a_script_gets_steps_that_work_in_scripts():
    code = (
        "import tfmagic\n"
        "def die():\n    import os; os._exit(3)\n"
        "if __name__ == '__main__':\n"
        "    with tfmagic.Cluster(workers=1) as cluster:\n"
        "        for call in (die, int):\n"
        "            try:\n                cluster.run(call)\n"
        "            except tfmagic.TaskDied as error:\n                print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        "%" not in done.stdout
        and "cluster.revive()" in done.stdout
        and "cluster.restart('worker-0')" in done.stdout
    )


def texts_of(path):
    """Return the strings of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    documents = {
        id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
    }
    return [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and type(n.value) is str and id(n) not in documents
    ]


def test_no_hint_names_a_magic_outside_of_a_notebook(monkeypatch):
    monkeypatch.setattr(advice, "is_notebook", lambda: False)
    for _, hint in hints.HINTS:
        assert not re.search(r"%\w", advice.here(hint)), hint
        assert not re.search(r"%\w", in_a_shell(hint)), hint


def test_no_message_of_what_scripts_use_is_left_untranslated(monkeypatch):
    """Except those that only notebooks show: of panels, the notebook's doctor, and the magics."""
    monkeypatch.setattr(advice, "is_notebook", lambda: False)
    package = Path(tfmagic.__file__).parent
    in_notebooks = (
        "views/",
        "frontends/notebook/",
        "frontends/course/",
        "frontends/doctor/",
        "frontends/cli/",
        "task/",
    )
    name_both = {"advice", "__init__", "task_context", "ipython_tracebacks"}
    for path in package.rglob("*.py"):
        if path.relative_to(package).as_posix().startswith(in_notebooks) or path.stem in name_both:
            continue
        for text in texts_of(path):
            assert "%tfcluster" not in advice.here(text) or text.rstrip().endswith("%tfcluster"), (path, text)
