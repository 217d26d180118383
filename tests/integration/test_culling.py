"""A server ends idle kernels: not while a detached cell runs, in any view, and soon after it."""

import asyncio

import pytest
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
