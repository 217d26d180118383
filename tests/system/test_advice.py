"""The next step that a message names, in a notebook, in Python and in a shell."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfmagic
from tfmagic.failures import hints
from tfmagic.protocol.payload import PackedError
from tfmagic.system import advice
from tfmagic.system.advice import FrontEnd, Step

WORDS = (  # a step, in a notebook, in Python, in a shell
    (Step("revive"), "%tfcluster revive", "cluster.revive()", "another run"),
    (
        Step("restart", "worker-1", "ps-0"),
        "%tfcluster restart worker-1 ps-0",
        "cluster.restart('worker-1', 'ps-0')",
        "another run",
    ),
    (Step("resume", "worker-0"), "%tfcluster resume worker-0", "cluster.faults.resume('worker-0')", None),
    (Step("heal"), "%tfcluster heal", "cluster.faults.heal()", None),
    (
        Step("stop, then start"),
        "%tfcluster stop, then start",
        "cluster.stop(), then cluster.start()",
        "another run",
    ),
    (Step("start it"), "%tfcluster start or Cluster.start()", "cluster.start()", None),
    (
        Step("reshape", workers=2, ps=1),
        "%tfcluster restart --workers 2 --ps 1",
        "tfmagic.Cluster(workers=2, ps=1)",
        "python -m tfmagic run --workers 2 --ps 1 SCRIPT",
    ),
    (Step("push", a="a", b="b"), "--push a,b", "cluster.push(a=a, b=b)", None),
    (Step("pull", "NAME"), "%tfcluster pull NAME", "cluster.pull(NAME)", None),
    (Step("tensorboard", "/a b"), "%tfcluster tensorboard /a b", "cluster.tensorboard('/a b')", None),
    (Step("configure", x=3), "%config TFCluster.x = 3", "tfmagic.Cluster(x=3)", None),
    (Step("adjust", "x"), "%config TFCluster.x", "tfmagic.Cluster(x=...)", None),
    (Step("give time"), "--timeout", "timeout=", "--timeout"),
    (Step("show all"), "--all", "whole=True", "--all"),
    (Step("wait"), "%tfcluster wait", "future.result()", None),
    (Step("interrupt"), "%tfcluster interrupt", "cluster.interrupt()", None),
    (
        Step("attach", "run-1"),
        "%tfcluster attach run-1",
        "tfmagic.attach('run-1')",
        "python -m tfmagic logs run-1",
    ),
    (Step("set", A="/x"), "%env A=/x", 'os.environ["A"] = "/x"', "export A=/x"),
    (
        Step("assign", A="x"),
        'import os; os.environ["A"] = "x"',
        'import os; os.environ["A"] = "x"',
        "export A=x",
    ),
    (Step("unset", "A"), 'import os; del os.environ["A"]', 'import os; del os.environ["A"]', "unset A"),
    (
        Step("limit open files", 300, 4096),
        *["import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 4096))"] * 2,
        "ulimit -n 300",
    ),
    (Step("type", "mv '/a' '/b'"), "!mv '/a' '/b'", "mv '/a' '/b'", None),
    (Step("install", "x"), "%pip install x", "pip install x", None),
)


@pytest.fixture
def speak(monkeypatch):
    """Let this process speak as one of another front end."""
    yield advice.set_front_end
    advice.set_front_end(None)


@pytest.mark.parametrize("step, line, call, command", WORDS, ids=lambda given: str(given)[:30])
def test_a_step_has_the_words_of_its_front_end(monkeypatch, speak, step, line, call, command):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    for front_end, words in zip(FrontEnd, (line, call, command or call), strict=True):
        speak(front_end)
        assert f"with {step}" == f"with {words}"


def test_a_step_of_a_task_names_its_cluster_unless_that_is_the_default_one(speak):
    advice.set_front_end(FrontEnd.NOTEBOOK, "second")
    assert str(Step("restart", "worker-0")) == "%tfcluster restart worker-0 --cluster second"
    assert str(Step("explain", "a-name")) == "%tfcluster explain a-name"
    assert str(Step("stop").of("default")) == "%tfcluster stop"
    speak(FrontEnd.NOTEBOOK)
    assert str(Step("stop").of("second")) == "%tfcluster stop --cluster second"


def test_under_pytest_it_is_a_call_of_the_fixture(speak):
    speak(FrontEnd.PYTHON)
    assert str(Step("revive")) == "tfcluster.revive()"


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


def test_no_hint_names_a_magic_outside_of_a_notebook(speak):
    error = PackedError("TBNotInstalledError", "", "", None, "", chain=(("TBNotInstalledError", ""),))
    for front_end, words in zip(
        FrontEnd,
        (
            "%pip install tensorboard , then %tfcluster restart.",
            "pip install tensorboard , then tfcluster.restart().",
            "pip install tensorboard , then another run.",
        ),
        strict=True,
    ):
        speak(front_end)
        assert hints.find_hint(error).advice.endswith(words)
    for _, _, hint in hints.HINTS:
        assert not re.search(r"%\w", hint), hint


def test_only_what_notebooks_alone_show_spells_a_magic():
    """The rest builds a `Step`, which has other words in scripts, tests and shells."""
    package = Path(tfmagic.__file__).parent
    in_notebooks = ("views/", "frontends/notebook/", "features/course/", "frontends/cli/")
    name_both = {"advice", "__init__", "task_context", "ipython_tracebacks", "reading"}
    commands = {"lines", "words", "pages", "shell"}  # of a feature
    for path in package.rglob("*.py"):
        if path.relative_to(package).as_posix().startswith(in_notebooks) or path.stem in name_both:
            continue
        if path.stem in commands and path.parent.parent.name == "features":
            continue
        for text in texts_of(path):
            assert not re.search(r"%(tfcluster \w|config TF|env [A-Z]|pip )|del os\.environ", text), (
                path,
                text,
            )
