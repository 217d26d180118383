"""Cells in programs that run notebooks: lines as they come, and at the end one form, with no line twice."""

import re

import pytest
from kernels import text_of

CELL = """%%tfcluster --workers 2
import os, time
print('early', flush=True)
while not os.path.exists({flag!r}):
    time.sleep(0.01)
print('late')
"""


def start(kernel, code):
    """Send a cell as nbclient does: no user can answer."""
    return kernel.client.execute(code, allow_stdin=False)


@pytest.mark.parametrize("is_in_session", [False, True])
def test_lines_come_while_the_cell_runs_and_the_form_takes_their_place(kernel, tmp_path, is_in_session):
    name = "'a.ipynb'" if is_in_session else "''"
    kernel.run(f"import os\nos.environ['JPY_SESSION_NAME'] = {name}")  # as a Jupyter server does
    flag = tmp_path / "go"
    cell = start(kernel, CELL.format(flag=str(flag)))
    before = kernel.outputs(cell, until=lambda o: "[worker-1]:    early" in o[1].get("text", ""))
    assert not [kind for kind, _ in before if kind == "display_data"]
    flag.touch()
    rest = kernel.outputs(cell)
    kinds = [kind for kind, _ in rest]
    cleared = kinds.index("clear_output")
    assert rest[cleared][1] == {"wait": True}
    (form,) = [content["data"] for kind, content in rest[cleared:] if kind == "display_data"]
    if is_in_session:
        assert "update_display_data" not in kinds
    else:  # a log gets displays, and no updates
        assert re.fullmatch(r"tfmagic: cluster default: 2 of 2 done, [\d.]+ s", form["text/plain"])
        (form,) = [content["data"] for kind, content in rest[cleared:] if kind == "update_display_data"]
    assert form["text/plain"].count("early") == 2 and form["text/plain"].count("late") == 2


def test_a_quick_cell_has_its_form_only(kernel):
    start(kernel, "%%tfcluster --workers 2\n1")
    kernel.run("1")
    shown = kernel.outputs(start(kernel, "%%tfcluster\nprint('quick')"))
    assert [kind for kind, _ in shown if kind != "status"] == ["execute_input", "display_data"]


def test_what_else_a_cell_has_printed_is_never_removed(kernel, tmp_path):
    flag = tmp_path / "go"
    code = (
        f"print('mine')\nget_ipython().run_cell_magic('tfcluster', '--workers 2', {CELL.format(flag=flag)!r})"
    )
    cell = start(kernel, code.replace("%%tfcluster --workers 2\\n", ""))
    kernel.outputs(cell, until=lambda o: "mine" in o[1].get("text", ""))
    flag.touch()
    assert "clear_output" not in [kind for kind, _ in kernel.outputs(cell)]


@pytest.mark.soak
def test_the_log_of_a_flood_is_short(kernel):
    start(kernel, "%%tfcluster --workers 1\n1")
    kernel.run("1")
    cell = start(
        kernel, "%%tfcluster\nimport time\nfor _ in range(40):\n    print('x' * 100_000)\n    time.sleep(0.1)"
    )
    text = text_of([o for o in kernel.outputs(cell) if o[0] == "stream"])
    assert len(text) < 1_000_000 and "no more lines here" in text


def test_what_is_said_of_the_notebooks_names_stays_beside_the_form(kernel, tmp_path):
    """A module that has changed is named once, and so is what cannot travel."""
    module = tmp_path / "logged_module.py"
    module.write_text("number = 1\n")
    kernel.run(f"import sys, threading\nsys.path.insert(0, {str(tmp_path)!r})\nlock = threading.Lock()")
    kernel.run("%%tfcluster --workers 1\nimport logged_module")
    module.write_text("number = 2  # changed\n")
    long = "import time, logged_module\nfor n in range(15):\n    print(n, flush=True); time.sleep(0.1)"
    text = kernel.text(f"%%tfcluster\n{long}\nlen(globals())")
    assert "logged_module.py changed after worker-0 imported it" in text
    assert "lock (lock)" in text
