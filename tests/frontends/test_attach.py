"""A past cell, shown again from disk by the same kernel, by another one, and during its run."""

import os
import re
import signal
import time

import pytest
from kernels import Kernel, text_of

from tfmagic.runs.cell_records import read_records


def html_of(outputs):
    return next(c["data"]["text/html"] for kind, c in outputs if "text/html" in c.get("data", {}))


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What a kernel has shown of its past cell; then it is killed while a cell runs, and another kernel looks."""
    own = {"TFMAGIC_STATE_DIR": str(tmp_path_factory.mktemp("own"))}  # its newest run is this kernel's
    kernel, other = Kernel(**own), None
    try:
        kernel.run("%load_ext tfmagic")
        kernel.run(
            "%%tfcluster --workers 2\nimport matplotlib.pyplot as plt\nprint('a line')\nplt.plot([1, 2]); plt.show()\n"
            "raise ValueError('bad')"
        )
        kernel.run("%%tfcluster\nprint('another cell')\n42")
        again = kernel.run("%tfcluster attach")
        began = time.monotonic()
        cell = kernel.start(
            "%%tfcluster --on worker-0\nimport time\nprint('so far')\nwhile True: time.sleep(0.01)",
            stdin=True,
        )
        kernel.outputs(cell, until=lambda o: "widget-view" in str(o[1].get("data", "")))
        os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
        seconds = time.monotonic() - began
        other = Kernel("--TFCluster.warm=False", **own)  # it starts no cluster
        other.run("%load_ext tfmagic")
        yield again, other, seconds
    finally:
        kernel.close()
        if other:
            other.close()


def test_a_cell_is_shown_again_also_by_another_kernel(shown):
    again, other, _ = shown
    assert "[worker-0]:    another cell" in text_of(again) and "[worker-1]:    42" in text_of(again)
    assert "worker-0, worker-1" in html_of(again)
    first = other.run("%tfcluster attach --cell 2")
    assert "[worker-1]:    a line" in text_of(first)
    assert "data:image/png" in html_of(first) and "ValueError" in html_of(first)
    assert "another cell" in text_of(other.run("%tfcluster attach --cell 3"))
    shown = next(c["data"]["text/plain"] for _, c in other.run("%tfcluster attach --all") if "data" in c)
    head, *rows = shown.splitlines()
    assert head.split() == ["notebook", "run", "cluster", "shape", "cell", "started", "state", "duration"]
    assert any(row.startswith(f"{os.getcwd()}/ ") for row in rows)  # the runs of this folder stand below
    first, second, third = rows[-3:]
    assert re.search(r"-default-\d+  +default  +2 workers  +\[2\] .* failed +[\d.]+ s$", first)
    assert second.split()[:3] == ["2", "workers", "[3]"] and " done " in second
    assert re.search(r"\[\d\] .* ended", third)
    assert "[worker-1]:    another cell" in other.text("%tfcluster logs worker-1 --tail 1")
    assert "has no record of cell 99" in other.text("%tfcluster attach --cell 99")


def test_a_cell_whose_kernel_died_during_its_run_is_shown_as_far_as_it_got(shown):
    _, other, most_s = shown
    outputs = other.run("%tfcluster attach")
    text = text_of(outputs)
    assert (
        "[worker-0]:    so far\ntfmagic: the kernel ended while the cell ran, and the tasks with it" in text
    )
    assert "1 stopped" in html_of(outputs) and "running" not in html_of(outputs)
    (seconds,) = re.findall(r">· ([\d.]+) s<", html_of(outputs))
    assert 0 < float(seconds) < most_s + 0.5, "the time that has passed since is no part of it"
    assert re.search(r"\[5\] .* ended with its kernel", other.text("%tfcluster attach --all"))


def test_a_cell_of_a_terminal_is_shown_again(notebook):
    notebook.run("%%tfcluster --workers 1\nprint('first')\n40 + 2")
    assert "[worker-0]:    first\n[worker-0]:    42" in notebook.run("%tfcluster attach")
    with pytest.raises(ZeroDivisionError):
        notebook.run("%%tfcluster\nprint('second')\n1 / 0")
    shown = notebook.run("%tfcluster attach")
    assert "second" in shown and "first" not in shown


def test_a_quiet_cell_is_shown_again(notebook):
    notebook.run("%tfcluster start --workers 1")
    assert notebook.run("%%tfcluster --view quiet\nprint('unseen')") == ""
    assert "[worker-0]:    unseen" in notebook.run("%tfcluster attach")


def test_a_quick_cell_that_left_nothing_has_no_record(notebook):
    notebook.run("%%tfcluster --workers 1\nprint('seen')")
    notebook.run("%%tfcluster\npass")
    notebook.run("%%tfcluster --view quiet\npass")
    run = notebook.shell.magics_manager.registry["TFClusterMagics"].notebook.clusters["default"].run_folder
    assert [record.source.strip() for record in read_records(run)] == ["print('seen')"]
