"""A real ipykernel, driven as a front end drives it."""

import os
import re
import signal

import psutil
import pytest
from conftest import ENDED_S, alive, wait_until
from jupyter_client.manager import KernelManager


def test_a_line_is_on_screen_while_the_cell_still_runs(kernel, tmp_path):
    kernel.run("%load_ext tfmagic")
    kernel.run("%tfcluster start --workers 2")
    flag = tmp_path / "go"
    cell = kernel.start(
        "%%tfcluster --view text\nimport os, time, tfmagic\nprint('early', flush=False)\n"
        f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.005)\nprint('late')"
    )
    seen = kernel.outputs(cell, until=lambda o: "early" in o[1].get("text", ""))
    assert not any("late" in c["text"] for kind, c in seen if kind == "stream")
    flag.touch()
    rest = "".join(c["text"] for kind, c in kernel.outputs(cell) if kind == "stream")
    assert {"[worker-0]:    late", "[worker-1]:    late"} <= set(rest.splitlines())


def test_figures_and_tables_of_tasks_are_shown_as_such(kernel):
    kernel.run("%load_ext tfmagic")
    shown = kernel.run(
        "%%tfcluster --workers 1 --view text\nimport matplotlib.pyplot as plt\nprint('before')\n"
        "plt.plot([1, 2]); plt.show()\nprint('after')"
    )
    place = next(i for i, (kind, c) in enumerate(shown) if "image/png" in c.get("data", {}))
    text_before = "".join(c["text"] for kind, c in shown[:place] if kind == "stream")
    assert "before" in text_before and "after" not in text_before


def test_the_rendered_error_is_the_users_own(kernel):
    kernel.run("%load_ext tfmagic")
    kernel.run("class MyError(Exception):\n    pass")
    shown = kernel.run("%%tfcluster --workers 2\ndef f(x):\n    raise MyError(f'bad {x}')\nf(1)")
    error = next(c for kind, c in shown if kind == "error")
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))
    assert error["ename"] == "MyError"
    assert "----> 3     raise MyError(f'bad {x}')" in text
    assert text.count("Cell In[3]") == 2 and "clusters.py" not in text
    assert "raised on worker-" in text


def test_an_interrupt_of_the_kernel_ends_the_cell_and_keeps_the_tasks(kernel):
    kernel.run("%load_ext tfmagic")
    kernel.run("%%tfcluster --workers 2\nkept = 1")
    cell = kernel.start(
        "%%tfcluster --view text\nimport time\nprint('spinning')\nwhile True:\n    time.sleep(0.01)"
    )
    kernel.outputs(cell, until=lambda o: "spinning" in o[1].get("text", ""))
    kernel.manager.interrupt_kernel()
    error = next(c for kind, c in kernel.outputs(cell) if kind == "error")
    assert error["ename"] == "KeyboardInterrupt"
    assert "kept is 1" in kernel.text("%%tfcluster\nprint('kept is', kept)")


# test_cleanup kills and restarts kernels whose tasks have started processes
@pytest.mark.parametrize(
    "way",
    [
        "shutdown",
        pytest.param("restart", marks=pytest.mark.soak),
        pytest.param("kill", marks=pytest.mark.soak),
    ],
)
def test_no_process_outlives_its_kernel(kernel, way):
    kernel.run("%load_ext tfmagic")
    kernel.run("%tfcluster start --workers 2")
    pid = int(kernel.text("import os; print(os.getpid())"))
    (keeper,) = [p for p in psutil.Process(pid).children() if "keeper" in " ".join(p.cmdline())]
    everyone = [keeper.pid, *(c.pid for c in keeper.children(recursive=True))]
    assert len(everyone) == 4, "keeper, launcher and two tasks"
    if way == "restart":
        kernel.manager.restart_kernel(now=False)
    elif way == "kill":
        os.kill(pid, signal.SIGKILL)
    else:
        kernel.manager.shutdown_kernel(now=False)
    wait_until(lambda: not alive(everyone), ENDED_S)


def test_tab_completes_in_a_kernel(kernel):
    kernel.run("%load_ext tfmagic")
    kernel.client.complete("%tfcluster sta", 14)
    reply = kernel.client.get_shell_msg(timeout=20)
    while reply["msg_type"] != "complete_reply":
        reply = kernel.client.get_shell_msg(timeout=20)
    assert {"start", "status"} <= set(reply["content"]["matches"])


def test_the_kernel_that_jupyter_picks_up_has_the_extension_loaded():
    manager = KernelManager(kernel_name="tfmagic")
    manager.start_kernel(extra_arguments=["--IPKernelApp.log_level=40", "--TFCluster.warm=False"])
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        reply = client.execute_interactive("%tfcluster --help", timeout=60, output_hook=lambda m: None)
        assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
