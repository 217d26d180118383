"""A server ends idle kernels: not while a detached cell runs, in any view, and soon after it."""

import asyncio

import pytest
from conftest import alive, wait_until
from IPython.core.error import UsageError
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

IDLE_S = 5
CELLS = """%load_ext tfmagic
---
%%tfcluster --workers 1 --detach --view {view}
import os, time
while not os.path.exists({flag!r}):
    time.sleep(0.05)
"""


async def run_and_watch(view, flag):
    """Return whether the kernel lives while its cell runs, and whether it has ended after that."""
    manager = AsyncMappingKernelManager(cull_idle_timeout=IDLE_S, cull_interval=1, cull_connected=True)
    name = await manager.start_kernel()
    client = manager.get_kernel(name).client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    try:
        for cell in CELLS.format(view=view, flag=str(flag)).split("---\n"):
            reply = await client.execute_interactive(
                cell, allow_stdin=False, output_hook=lambda message: None
            )
            assert reply["content"]["status"] == "ok", reply
        client.stop_channels()
        await asyncio.sleep(3 * IDLE_S)
        lives = name in manager
        flag.touch()
        for _ in range(100 * IDLE_S):
            if name not in manager:
                break
            await asyncio.sleep(0.1)
        return lives, name not in manager
    finally:
        if name in manager:
            await manager.shutdown_kernel(name, now=True)


@pytest.mark.soak
@pytest.mark.parametrize("view", ["text", "quiet", "html"])
def test_a_kernel_with_a_silent_detached_cell_is_kept_until_its_end(view, tmp_path):
    assert asyncio.run(run_and_watch(view, tmp_path / "go")) == (True, True)


def test_a_cluster_that_no_cell_uses_ends_and_the_next_cell_starts_it_again(notebook, capsys):
    notebook.run("%config TFCluster.idle_stop_s = 1")
    try:
        notebook.run("%%tfcluster --workers 3 --view quiet\nkept = 1")
        cluster = notebook.magics.clusters["default"]
        pids = [row["pid"] for row in cluster.status()]
        wait_until(lambda: not cluster.running)
        wait_until(lambda: not alive(pids))
        notebook.run("%%tfcluster --out found --view quiet\n'kept' in globals()")
        told = capsys.readouterr().err
        assert "no cell ran for 1 s" in told and "without the variables" in told
        assert notebook.ns["found"] == dict.fromkeys(("worker-0", "worker-1", "worker-2"), False)
    finally:
        notebook.run("%config TFCluster.idle_stop_s = 0")


def test_start_brings_back_a_cluster_that_ended_by_itself_as_it_was(notebook):
    notebook.run("%config TFCluster.idle_stop_s = 0.5")
    try:
        notebook.run("%tfcluster start --workers 1 --chief --env A=5 --cluster mine")
        wait_until(lambda: not notebook.magics.clusters["mine"].running)
        line = "%tfcluster start --workers 1 --chief --env A=5 --cluster mine"
        with pytest.raises(UsageError, match=f"no cell ran for 0.5 s .*start it again with {line}$"):
            notebook.run("%tfcluster status --cluster mine")
        notebook.run("%config TFCluster.idle_stop_s = 0")
        assert "mine runs: chief-0, worker-0" in notebook.run("%tfcluster start --cluster mine")
    finally:
        notebook.run("%config TFCluster.idle_stop_s = 0")


def test_a_cluster_whose_cell_runs_does_not_end(notebook):
    notebook.run("%config TFCluster.idle_stop_s = 0.5")
    try:
        notebook.run("%%tfcluster --workers 1 --out found --view quiet\nimport time\ntime.sleep(3)\n7")
        assert notebook.ns["found"] == {"worker-0": 7}
    finally:
        notebook.run("%config TFCluster.idle_stop_s = 0")
