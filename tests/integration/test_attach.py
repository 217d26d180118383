"""A past cell, shown again from disk by the same kernel, by another one, and during its run."""

import os
import signal

import pytest
from kernels import Kernel, text_of


def html_of(outputs):
    return next(c["data"]["text/html"] for kind, c in outputs if "text/html" in c.get("data", {}))


@pytest.fixture(scope="module")
def shown():
    """What a kernel has shown of its past cell; then it is killed while a cell runs, and another kernel looks."""
    kernel, other = Kernel(), None
    try:
        kernel.run("%load_ext tfmagic")
        kernel.run(
            "%%tfcluster --workers 2\nimport matplotlib.pyplot as plt\nprint('a line')\nplt.plot([1, 2]); plt.show()\n"
            "raise ValueError('bad')"
        )
        kernel.run("%%tfcluster\nprint('another cell')\n42")
        again = kernel.run("%tfcluster attach")
        cell = kernel.start(
            "%%tfcluster --on worker-0\nimport time\nprint('so far')\nwhile True: time.sleep(0.01)",
            stdin=True,
        )
        kernel.outputs(cell, until=lambda o: "widget-view" in str(o[1].get("data", "")))
        os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
        other = Kernel("--TFCluster.warm=False")  # it starts no cluster
        other.run("%load_ext tfmagic")
        yield again, other
    finally:
        kernel.close()
        if other:
            other.close()


def test_a_cell_is_shown_again_also_by_another_kernel(shown):
    again, other = shown
    assert "[worker-0]:    another cell" in text_of(again) and "[worker-1]:    42" in text_of(again)
    assert "worker-0, worker-1" in html_of(again)
    first = other.run("%tfcluster attach --cell 2")
    assert "[worker-1]:    a line" in text_of(first)
    assert "data:image/png" in html_of(first) and "ValueError" in html_of(first)
    assert "another cell" in text_of(other.run("%tfcluster attach --cell 3"))
    assert "[2] failed, [3] done" in other.text("%tfcluster attach --all")
    assert "[worker-1]:    another cell" in other.text("%tfcluster logs worker-1 --tail 1")
    assert "has no record of cell 99" in other.text("%tfcluster attach --cell 99")


def test_a_cell_whose_kernel_died_during_its_run_is_shown_as_far_as_it_got(shown):
    text = text_of(shown[1].run("%tfcluster attach"))
    assert "had not ended when its kernel was last seen" in text and "[worker-0]:    so far" in text
