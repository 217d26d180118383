"""What the user sees and can do after a failure: in a kernel, in a terminal, under nbclient."""

import os
import re
import signal
import sys
import time

import nbformat
import pexpect
import pytest
from conftest import ENDED_S
from kernels import plain, text_of
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FAILING = "%%tfcluster\ndef scale(x):\n    y = x * 2\n    return helper(y)\nscale(21)"


@pytest.fixture
def kernel(shared_kernel):
    shared_kernel.run("%xmode Context")
    shared_kernel.run(
        "class MyError(Exception):\n    pass\n\ndef helper(y):\n    items = [1, y]\n    raise MyError(f'bad {y}')"
    )
    return shared_kernel


@pytest.mark.parametrize("place", ["'f', None, 5, 7", "5, 'x', [], 7"])
def test_a_syntax_error_whose_place_is_none_arrives_as_it_was_raised(kernel, place):
    name, text = kernel.error(f"%%tfcluster\nraise SyntaxError('odd', ({place}))")
    assert name == "SyntaxError" and "SyntaxError: odd" in text and "raised on worker-" in text
    assert "/tfmagic/" not in text


def test_a_pull_of_what_no_task_has_shows_the_line_of_the_notebook_alone(kernel):
    name, text = kernel.error("%tfcluster pull nothing_of_that_name")
    assert name == "NameError" and "nothing_of_that_name: there is no such variable" in text
    assert "/tfmagic/" not in text


@pytest.mark.parametrize("mistake", ["Cluster(works=3)", "Cluster(workers=1).map(print)", "Cluster(env=5)"])
def test_a_wrong_argument_shows_the_line_of_the_notebook_alone(kernel, mistake):
    kernel.run("import tfmagic")
    name, text = kernel.error(f"tfmagic.{mistake}")
    assert name == "TypeError" and f"----> 1 tfmagic.{mistake}" in text
    assert "/tfmagic/" not in text


def test_after_an_error_of_tfmagic_the_debugger_begins_at_the_line_of_the_notebook(kernel):
    kernel.run("import tfmagic")
    name, _ = kernel.error("tfmagic.Cluster(workers='many')")
    text = plain(text_of(kernel.converse("%debug", "w", "q")))
    assert name == "ClusterSpecError" and text.count("----> 1 tfmagic.Cluster(workers='many')") == 2
    assert "/tfmagic/" not in text


def test_the_traceback_is_the_users_own_and_nothing_else(kernel):
    number = next(c["execution_count"] for kind, c in kernel.run(FAILING) if kind == "execute_input")
    name, text = kernel.error(FAILING)
    number += 1
    text = re.sub(r"\(pid \d+, .*?\)", "(pid)", text)
    text = re.sub(r"worker-[01]", "worker-N", text)
    helper = number - 2
    assert name == "MyError"
    assert text == (
        "---------------------------------------------------------------------------\n"
        "MyError                                   Traceback (most recent call last)\n"
        f"Cell In[{number}], line 5\n"
        "      3     y = x * 2\n"
        "      4     return helper(y)\n"
        "----> 5 scale(21)\n"
        "\n"
        f"Cell In[{number}], line 4, in scale(x)\n"
        "      2 def scale(x):\n"
        "      3     y = x * 2\n"
        "----> 4     return helper(y)\n"
        "\n"
        f"Cell In[{helper}], line 6, in helper(y)\n"
        "      4 def helper(y):\n"
        "      5     items = [1, y]\n"
        "----> 6     raise MyError(f'bad {y}')\n"
        "\n"
        "MyError: bad 42\n"
        "raised on worker-N (pid)\n"
        "also on worker-N"
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("Plain", ["Cell In[N], line 5", "scale(21)", "in helper", "raise MyError(f'bad {y}')"]),
        ("Context", ["----> 5 scale(21)", "----> 6     raise MyError"]),
        ("Verbose", ["----> 6     raise MyError", "y = 42"]),
        ("Minimal", ["MyError: bad 42"]),
        ("Docs", ["scale(21)", "2 skipped frames"]),
    ],
)
def test_every_mode_of_xmode_shows_it(kernel, mode, expected):
    kernel.run(f"%xmode {mode}")
    _, text = kernel.error(FAILING)
    text = re.sub(r"Cell In\[\d+\]", "Cell In[N]", text)
    for part in [*expected, "MyError: bad 42", "raised on worker-"]:
        assert part in text
    for ours in ("tfmagic/", "run_cell_magic", "interactiveshell.py"):
        assert ours not in text
    assert kernel.error("%tb")[1].replace(" ", "") != ""


def test_an_exception_that_cannot_travel_is_shown_with_its_frames_all_the_same(kernel):
    kernel.run("%xmode Context")
    name, text = kernel.error(
        "%%tfcluster\nimport threading\nclass Held(ValueError):\n    def __init__(self):\n"
        "        self.lock = threading.Lock()\nraise Held()"
    )
    assert name == "Held" and "Cell In[" in text and "----> 6 raise Held()" in text


def test_a_syntax_error_is_shown_at_its_line_of_the_cell(kernel):
    kernel.run("%xmode Context")
    name, text = kernel.error("%%tfcluster\nx = (1")
    assert name in ("SyntaxError", "_IncompleteInputError") and "x = (1" in text  # Python 3.13 names its own
    assert re.search(r"Cell In\[\d+\], line 2", text)
    assert "sources.py" not in text and "clusters.py" not in text


def test_an_error_with_a_cause_is_shown_in_every_mode(kernel):
    for mode in ("Plain", "Context", "Verbose", "Minimal", "Docs"):
        kernel.run(f"%xmode {mode}")
        name, text = kernel.error(
            "%%tfcluster\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise MyError('x') from e"
        )
        assert name == "MyError" and "MyError: x" in text
        assert mode == "Minimal" or "ZeroDivisionError: division by zero" in text


def test_it_can_be_caught_by_its_class(kernel):
    text = kernel.text(
        "try:\n    get_ipython().run_cell_magic('tfcluster', '', 'helper(1)')\n"
        "except MyError as error:\n    print('caught', error, sorted(error.failures))"
    )
    assert "caught bad 1 ['worker-0', 'worker-1']" in text


def test_debug_walks_the_remote_frames_and_prints_their_variables(kernel):
    kernel.run(FAILING)
    shown = kernel.converse("%debug", "p items, y", "up", "p x, y, len(str(x))", "up", "w", "q")
    text = plain(text_of(shown))
    assert "([1, 42], 42)" in text
    assert "(21, 42, 2)" in text
    number = re.search(r"> <(Cell In\[\d+\](?: \(\d+\))?)>\(4\)scale\(\)\n", text)[1]  # (2): used twice
    entering, up, end = (
        "----> 6     raise MyError(f'bad {y}')\n",
        "      2 def scale(x):\n      3     y = x * 2\n----> 4     return helper(y)\n      5 scale(21)\n",
        "      4     return helper(y)\n----> 5 scale(21)\n",
    )
    assert text.index(entering) < text.index(up) < text.index(f"> <{number}>(5)<module>()\n")
    assert text.count(up) == 2 and text.count(end) == 2  # going up, and in the list of all frames
    assert "run_cell_magic" not in text and os.getcwd() not in text


def test_debug_has_the_variables_of_the_cells_other_statements(kernel):
    kernel.run("%%tfcluster\nrate = {'of': 7}\nif 1:\n    helper(2)")
    text = plain(text_of(kernel.converse("%debug", "up", "p rate, 'there'", "q")))
    assert "({'of': 7}, 'there')" in text


def test_two_tasks_that_ask_at_once_are_served_in_turn(kernel):
    shown = kernel.converse("%%tfcluster --out names\nname = input('name? ')\nname", "first", "second")
    assert not [c for kind, c in shown if kind == "error"]
    assert sorted(kernel.prompts) == ["[worker-0] name? ", "[worker-1] name? "]
    answers = dict(zip((p[1:9] for p in kernel.prompts), ("first", "second"), strict=True))
    assert str(answers["worker-0"]) in kernel.text("print(dict(names))")
    assert kernel.text("print(dict(names))").strip() == str(dict(sorted(answers.items())))


def test_a_password_is_not_shown(kernel):
    request = kernel.start(
        "%%tfcluster --on worker-0 --out r\nimport getpass\nlen(getpass.getpass('secret: '))", stdin=True
    )
    asked = kernel.client.get_stdin_msg(timeout=60)["content"]
    assert asked == {"prompt": "[worker-0] secret: ", "password": True}
    kernel.client.input("hush")
    kernel.outputs(request)
    assert kernel.text("print(dict(r))").strip() == "{'worker-0': 4}"


@pytest.mark.parametrize("call", ["input('name? ')", "breakpoint()"])
def test_a_front_end_without_input_gets_a_message_and_no_hang(kernel, call):
    # in a function: at the end of a statement the debugger leaves __return__ in the variables, as in IPython
    name, text = kernel.error(f"%%tfcluster --on worker-1\ndef ask():\n    {call}\nask()")
    assert name == "StdinNotImplementedError"
    assert "input() on worker-1, but this front end cannot ask" in text


def test_a_task_that_dies_while_it_asks_takes_its_input_box_along(kernel):
    kernel.run("%%tfcluster --on worker-1 --out pids\nimport os\nos.getpid()")
    pid = int(kernel.text("print(pids['worker-1'])"))
    cell = kernel.start("%%tfcluster --on worker-1\ninput('name? ')", stdin=True)
    kernel.client.get_stdin_msg(timeout=60)
    os.kill(pid, signal.SIGKILL)
    error = next(c for kind, c in kernel.outputs(cell) if kind == "error")
    assert error["ename"] == "TaskDied" and "worker-1 was ended by SIGKILL" in error["evalue"]
    kernel.run("%tfcluster restart worker-1")


def test_an_interrupt_ends_the_input_box_and_the_cells_that_wait_behind_it(kernel):
    kernel.run("%%tfcluster\nkept = 1")
    waiting = kernel.start("%%tfcluster --on worker-0\ninput('name? ')", stdin=True)
    queued = kernel.start("print('must not run')")
    kernel.client.get_stdin_msg(timeout=60)
    began = time.monotonic()
    kernel.manager.interrupt_kernel()
    error = next(c for kind, c in kernel.outputs(waiting) if kind == "error")
    assert error["ename"] == "KeyboardInterrupt"
    assert time.monotonic() - began < ENDED_S
    assert kernel.reply(queued)["status"] == "aborted"
    assert kernel.text("%%tfcluster --on worker-0\nprint('kept is', kept)") == "[worker-0]:    kept is 1\n"


def test_an_interrupted_cell_shows_its_place_and_the_queue_is_dropped(kernel):
    cell = kernel.start(
        "%%tfcluster --view text\nimport time\nprint('spinning')\nwhile True:\n    time.sleep(0.01)"
    )
    queued = kernel.start("print('must not run')")
    kernel.outputs(cell, until=lambda o: "spinning" in o[1].get("text", ""))
    kernel.manager.interrupt_kernel()
    error = next(c for kind, c in kernel.outputs(cell) if kind == "error")
    text = plain("\n".join(error["traceback"]))
    assert error["ename"] == "KeyboardInterrupt"
    assert re.search(r"worker-0, worker-1: at line [45] of the cell", text)
    assert kernel.reply(queued)["status"] == "aborted"


WITHOUT_TENSORFLOW = """
import sys, tfmagic
def reshape():
    import tensorflow as tf
    tf.reshape(tf.ones([3]), [2])
with tfmagic.Cluster(workers=1, name="plain") as cluster:
    try:
        cluster.run(reshape, view="quiet")
    except tfmagic.RemoteError as error:
        print("tensorflow" in sys.modules, type(error).__name__, "tf.reshape" in error.text)
"""


def test_an_error_of_tensorflow_arrives_by_name_where_the_notebook_has_no_tensorflow(kernel):
    assert kernel.text(WITHOUT_TENSORFLOW) == "False InvalidArgumentError True\n"


@pytest.mark.soak  # tests/notebooks/test_quickstart.py has an error in nbclient too
def test_nbclient_records_the_users_error():
    cells = [
        "%load_ext tfmagic\nclass MyError(Exception): pass",
        "%%tfcluster --workers 1\nraise MyError('bad')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    with pytest.raises(CellExecutionError, match="MyError"):
        NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (error,) = [o for o in notebook.cells[1].outputs if o.output_type == "error"]
    assert error.ename == "MyError" and error.evalue.startswith("bad")
    assert "raised on worker-0" in "\n".join(error.traceback)


def test_in_a_terminal_the_error_the_debugger_and_the_keyboard_work(tmp_path):
    environ = {**os.environ, "IPYTHONDIR": str(tmp_path), "TERM": "dumb"}
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor"]
    with pexpect.spawn(
        command[0], command[1:], env=environ, encoding="utf-8", timeout=60, echo=False
    ) as shell:

        def cell(text, expected):
            shell.sendline(f"get_ipython().run_cell_magic('tfcluster', {text[0]!r}, {text[1]!r})")
            return shell.expect(expected)

        shell.expect(r"In \[1\]: ")
        shell.sendline("%load_ext tfmagic")
        shell.expect(r"In \[2\]: ")
        cell(
            ("--workers 1", "def f(x):\n    return 1 / x\nf(0)"),
            r"(?s)in f\(.*ZeroDivisionError: division by zero",
        )
        shell.expect(r"raised on worker-0")
        shell.expect(r"In \[3\]: ")
        shell.sendline("%debug")
        shell.expect(r"ipdb> ")
        shell.sendline("p x")
        shell.expect(r"0\r?\n")
        shell.sendline("q")
        shell.expect(r"In \[4\]: ")
        cell(("", "name = input('who? ')\nprint('hello', name)"), r"\[worker-0\] who\? ")
        shell.sendline("Ada")
        shell.expect(r"\[worker-0\]:    hello Ada")
        shell.expect(r"In \[5\]: ")
        cell(
            ("", "import time\nprint('spinning')\nwhile True: time.sleep(0.01)"), r"\[worker-0\]:    spinning"
        )
        shell.sendintr()
        shell.expect("KeyboardInterrupt: the cell was interrupted")
        shell.expect(r"In \[6\]: ")
        shell.sendline("%tfcluster all on")
        shell.expect(r"default In \[7\]: ")
        shell.sendline("name * 2")
        shell.expect(r"\[worker-0\]:    'AdaAda'")
        shell.expect(r"default In \[8\]: ")
        shell.sendline("exit()")
        shell.expect(pexpect.EOF)
