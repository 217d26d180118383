"""The debugger of an editor: a client of its protocol attaches to a task and stops in cells."""

import re
from pathlib import Path

import pytest
from dap_client import DapClient


@pytest.fixture
def kernel(shared_kernel):
    return shared_kernel


def attached(text):
    """Return the port and the folder of cells that were printed."""
    port = int(re.search(r"on 127\.0\.0\.1:(\d+)", text)[1])
    return port, Path(re.search(r"the source of its cells:  (.+)", text)[1])


CELL = """%%tfcluster --out found
import tfmagic
def double(x):
    local = x * 2
    return local
me = tfmagic.current_task().index
total = double(me + 20)
tfmagic.barrier()
total + 1"""


def test_a_breakpoint_in_a_cell_stops_the_task(kernel):
    kernel.run("%tfcluster start")
    kernel.run(CELL)
    port, cells = attached(kernel.text("%tfcluster debug worker-1 --editor"))
    (file,) = cells.glob("*.py")
    with DapClient(port) as editor:
        assert editor.attach({str(file): [4]}) == [True]
        cell = kernel.start(CELL)
        thread, reason, frames = editor.stop()
        assert reason == "breakpoint"
        assert frames[:2] == [(str(file), 4, "double"), (str(file), 7, "<module>")]
        assert editor.variables(thread)["x"] == "21"
        editor.request("next", threadId=thread)
        thread, _, frames = editor.stop()
        assert frames[0][1] == 5 and editor.evaluate("local", thread) == "42"
        editor.request("next", threadId=thread)
        thread, _, frames = editor.stop()
        assert frames[0] == (str(file), 8, "<module>")  # the next statement, which is code by itself
        editor.request("continue", threadId=thread)
        kernel.outputs(cell)
    assert "{'worker-0': 41, 'worker-1': 43}" in kernel.text("print(dict(found))")


def test_the_others_are_not_stalled_while_a_task_stands_at_a_breakpoint(kernel):
    kernel.run("%tfcluster start")
    kernel.run("%config TFCluster.stall_s = 1")
    kernel.run(CELL)
    port, cells = attached(kernel.text("%tfcluster debug worker-1 --editor"))
    (file,) = cells.glob("*.py")
    with DapClient(port) as editor:
        editor.attach({str(file): [4]})
        cell = kernel.start(CELL)
        thread = editor.stop()[0]
        outputs = kernel.outputs(cell, lambda output: "stands in the debugger" in str(output))
        print(outputs)
        editor.request("continue", threadId=thread)
        print(kernel.outputs(cell))
    assert 0
