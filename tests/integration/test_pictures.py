"""The pictures of real clusters: the map in a shell and in a kernel."""

import re

import pytest
from conftest import wait_until
from IPython.core.error import UsageError

from tfmagic import Cluster

STRATEGY = "%%tfcluster\nimport tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()"


def test_the_map_of_a_cluster_in_a_terminal(notebook):
    notebook.run("%tfcluster start --workers 2 --evaluator")
    before = notebook.run("%tfcluster map")
    assert "No task has reported a strategy yet" in before
    addresses = notebook.cluster().spec.addresses
    pids = {row["task"]: row["pid"] for row in notebook.cluster().status()}
    for task, address in addresses.items():
        assert re.search(rf"^{task} .*\b{pids[task.name]}\b.* {re.escape(address)}$", before, re.MULTILINE)
    notebook.run(STRATEGY)
    assert "In use: a collective strategy over worker-0, worker-1." in notebook.run("%tfcluster map")
    one = notebook.run("%tfcluster map worker-1")
    assert "this task listens here" in one
    assert "task.index = 1" in one
    with pytest.raises(UsageError, match="there is no task 'worker-7'"):
        notebook.run("%tfcluster map worker-7")
    with pytest.raises(UsageError, match="a map explains one task"):
        notebook.run("%tfcluster map worker")
    notebook.run("%tfcluster kill worker-1")
    wait_until(lambda: "the process of worker-1 ended since" in notebook.run("%tfcluster map"))
    assert notebook.cluster().draw_map().text.count("\n") > 5


def test_a_map_is_live_while_a_cell_runs(shared_kernel, tmp_path):
    """It is shown while a detached cell waits for a file, and follows the task until the cell has ended."""
    kernel, flag = shared_kernel, tmp_path / "go"
    kernel.run(
        f"%%tfcluster --detach\nimport os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.02)"
    )
    shown = kernel.run("%tfcluster map")
    (first,) = [content for kind, content in shown if kind == "display_data"]
    identity = first["transient"]["display_id"]
    assert "running" in first["data"]["text/plain"]
    flag.touch()

    def ends(kind, content):
        is_ours = kind == "update_display_data" and content["transient"]["display_id"] == identity
        return is_ours and "running" not in content["data"]["text/plain"]

    kernel.hear(ends)
    kernel.run("%tfcluster wait")


def test_a_map_does_not_start_a_cluster():
    from tfmagic.errors import TfmagicError

    with pytest.raises(TfmagicError, match="has never been started"):
        Cluster(workers=1).draw_map()
