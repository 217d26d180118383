"""Stop pressed while a cluster starts: the wait ends at once, and the start goes on."""

import os
import re
import signal
import subprocess
import sys

import pexpect
import pytest
from conftest import wait_until
from kernels import text_of

CELL = "%%tfcluster --workers 2 --view text --env PYTHONPATH={folder}\nimport os\nprint('pid', os.getpid())"


CUSTOM = """
import os, time
open({began!r}, "w").close()
while not os.path.exists({go!r}):
    time.sleep(0.01)
if os.path.exists({fail!r}):
    os._exit(3)
"""


@pytest.fixture
def slow(tmp_path):
    """Return a folder for PYTHONPATH: with it, Python starts when the file `go` is there, or ends if `fail` is."""
    names = ("began", "go", "fail")
    (tmp_path / "sitecustomize.py").write_text(
        CUSTOM.format(**{name: str(tmp_path / name) for name in names})
    )
    yield tmp_path
    (tmp_path / "go").touch()


def start_and_interrupt(kernel, folder, cell=CELL):
    """Run a cell, press Stop while its cluster starts, and return the error."""
    running = kernel.start(cell.format(folder=folder))
    wait_until(lambda: (folder / "began").exists())
    kernel.manager.interrupt_kernel()
    shown = kernel.outputs(running)
    return next(content for kind, content in shown if kind == "error"), text_of(shown)


def test_stop_ends_the_wait_and_the_next_cell_uses_the_start(kernel, slow):
    error, _ = start_and_interrupt(kernel, slow)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))
    assert error["ename"] == "KeyboardInterrupt" and "the start goes on" in error["evalue"]
    assert "asyncio" not in shown and "starting.py" not in shown
    assert kernel.text("%tfcluster status --json").count('"state":"starting"') == 2
    again = kernel.start(CELL.format(folder=slow))
    (slow / "go").touch()
    shown = text_of(kernel.outputs(again))
    assert "[worker-0]:    pid" in shown and "[worker-1]:    pid" in shown


def test_the_start_of_a_cluster_for_one_cell_is_ended(kernel, slow):
    error, _ = start_and_interrupt(kernel, slow, CELL.replace("--workers 2", "--fresh --workers 2"))
    assert error["ename"] == "KeyboardInterrupt" and "no process is left" in error["evalue"]
    assert "was not running" in kernel.text("%tfcluster stop") or "no cluster" in kernel.text(
        "%tfcluster status"
    )


def test_a_line_that_starts_a_cluster_stops_waiting_too(kernel, slow):
    error, _ = start_and_interrupt(kernel, slow, "%tfcluster start --workers 2 --env PYTHONPATH={folder}")
    assert error["ename"] == "KeyboardInterrupt" and "the start goes on" in error["evalue"]
    running = kernel.start("%tfcluster start")
    (slow / "go").touch()
    assert "cluster default runs: worker-0, worker-1" in text_of(kernel.outputs(running))


def test_a_failure_of_a_start_that_went_on_is_told_by_the_next_cell(kernel, slow):
    start_and_interrupt(kernel, slow)
    (slow / "fail").touch()
    running = kernel.start("%%tfcluster --view text\n1")
    (slow / "go").touch()
    error = next(content for kind, content in kernel.outputs(running) if kind == "error")
    assert error["ename"] == "LaunchError" and "worker-0 did not start" in error["evalue"]
    assert "was not running" in kernel.text("%tfcluster stop")


def test_ctrl_c_in_a_terminal_ends_the_wait(slow, tmp_path):
    environ = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "TERM": "dumb"}
    program = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"]
    child = pexpect.spawn(program[0], program[1:], env=environ, encoding="utf-8", timeout=60)
    try:
        child.sendline("%load_ext tfmagic")
        child.sendline(f"%tfcluster start --workers 1 --env PYTHONPATH={slow}")
        wait_until(lambda: (slow / "began").exists())
        child.sendintr()
        child.expect("KeyboardInterrupt: interrupted while cluster 'default' started.*the start goes on")
        (slow / "go").touch()
        child.sendline("%tfcluster start")
        child.expect("cluster default runs: worker-0")
    finally:
        child.kill(signal.SIGKILL)
        child.close()


def test_a_script_that_is_interrupted_while_it_starts_leaves_nothing(slow, tmp_path):
    code = (
        "import tfmagic\n"
        f"with tfmagic.Cluster(workers=1, env={{'PYTHONPATH': {str(slow)!r}}}) as cluster:\n    pass\n"
    )
    (tmp_path / "script.py").write_text(code)
    process = subprocess.Popen([sys.executable, tmp_path / "script.py"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (slow / "began").exists())
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=30)
    assert process.returncode != 0 and shown.rstrip().endswith("KeyboardInterrupt")
