"""The debugger in a task: on its last failure, and at a breakpoint."""

import re

import pytest
from kernels import text_of


@pytest.fixture
def kernel(shared_kernel):
    return shared_kernel


def test_debug_in_the_task_has_the_live_frames(kernel):
    kernel.run("%%tfcluster\npass")
    kernel.run(
        "%%tfcluster --on worker-1\nclass Model:\n    weights = 3\nmodel = Model()\n"
        "def fit(model):\n    batch = object()\n    return 1 / (model.weights - 3)\nfit(model)"
    )
    shown = kernel.converse(
        "%tfcluster debug worker-1", "p model.weights, type(batch)", "up", "p model.weights * 2", "q"
    )
    text = text_of(shown)
    assert "(3, <class 'object'>)" in text and "6" in text
    cell = r"> Cell In\[\d+\](?: \(\d+\))?"  # (2): a number that the kernel has used twice
    assert re.search(cell + r"\(7\)fit\(\)\n.*\n.*\n.*\n\[worker-1\]:    ----> 7     return 1 / ", text)
    assert re.search(cell + r"\(8\)<module>\(\)\n.*\n.*\n.*\n.*\n\[worker-1\]:    ----> 8 fit\(", text)
    assert all(prompt.startswith("[worker-1] (Pdb)") for prompt in kernel.prompts)
    assert "program.py" not in text
    name, text = kernel.error("%tfcluster debug worker-0")
    assert name == "TfmagicError" and "worker-0 has no failure to look at" in text


def test_a_breakpoint_opens_the_debugger_in_the_input_box(kernel):
    shown = kernel.converse(
        "%%tfcluster --on worker-0\nx = 20\ndef f():\n    local = 22\n    breakpoint()\n    return x + local\nprint('sum', f())",
        "p x + local",
        "w",
        "local = 30",
        "c",
    )
    text = text_of(shown)
    assert "[worker-0]:    42" in text and "sum 50" in text
    assert "program.py" not in text and "shell.py" not in text
    assert set(kernel.prompts) == {"[worker-0] (Pdb) "}


def test_a_pull_and_the_debugger_itself_leave_the_frames_and_the_next_cell_takes_them(kernel):
    kernel.run("%%tfcluster\nn = 3")
    kernel.run("%%tfcluster --on worker-1\n1 / 0")
    kernel.run("%tfcluster pull n")
    for _ in range(2):
        shown = kernel.converse("%tfcluster debug worker-1", "p n * 17", "q")
        assert "[worker-1]:    51" in text_of(shown)
    kernel.run("%%tfcluster\npass")
    assert "worker-1 has no failure to look at" in kernel.error("%tfcluster debug worker-1")[1]
