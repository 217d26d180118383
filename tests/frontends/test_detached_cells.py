"""Detached cells in a notebook: the follower and a wait see the end of a cell in either order."""

import asyncio
from types import SimpleNamespace

import pytest

from tfmagic.clusters.cells import waiting as waiting_module
from tfmagic.frontends.notebook import awaited_cells, detached_cells


@pytest.mark.parametrize("waits_first", [False, True])
def test_a_wait_ends_well_also_where_the_follower_is_notified_first(monkeypatch, waits_first):
    async def notebook():
        ended = asyncio.Event()

        async def wait_async(job, timeout_s=None, answers=True):
            await ended.wait()
            for _ in range(5 if answers and not waits_first else 0):
                await asyncio.sleep(0)
            return True

        monkeypatch.setattr(awaited_cells, "can_await", lambda shell: True)
        monkeypatch.setattr(waiting_module, "wait_async", wait_async)
        cluster = SimpleNamespace(name="default", run_folder="a run")
        jobs = detached_cells.DetachedJobs(SimpleNamespace(user_ns={}))
        for number in (1, 2):
            result = SimpleNamespace(pulled={}, results=number)
            job = SimpleNamespace(
                number=number,
                settle=lambda result=result: result,
                show_now=lambda: None,
                view=None,
                outcome=None,
                command=SimpleNamespace(prompt=number, pull=()),
                tasks=(),
                run="a run",
            )
            jobs.add(cluster, job, f"out{number}")
        waiting = asyncio.create_task(jobs.wait_async(cluster, None))
        await asyncio.sleep(0)
        ended.set()
        await waiting
        return jobs._shell.user_ns

    assert asyncio.run(notebook()) == {"out1": 1, "out2": 2}
