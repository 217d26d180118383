"""Run the steps of a cell: block for each job, or await it where the notebook's event loop can go on."""

from collections.abc import Generator
from typing import Any, Protocol

from tfmagic.clusters.cells import waiting
from tfmagic.clusters.cells.job import Job


class CellStep(Protocol):
    """What a cell waits for besides a job: a start, or itself in the notebook."""

    def run(self) -> object: ...
    async def run_async(self) -> object: ...


Steps = Generator[Job | CellStep, Any, None]  # a job is answered with its `CellResult`


def drive(steps: Steps) -> None:
    """Run the steps of a cell; block for each job."""
    job = next(steps, None)
    while job is not None:
        result = (
            waiting.finish(job) if isinstance(job, Job) else job.run()
        )  # a cell may raise StopIteration: that is not the end of the steps
        try:
            job = steps.send(result)
        except StopIteration:
            return


async def drive_async(steps: Steps) -> None:
    """Run the steps of a cell; await each job."""
    job = next(steps, None)
    while job is not None:
        result = await (waiting.finish_async(job) if isinstance(job, Job) else job.run_async())
        try:
            job = steps.send(result)
        except StopIteration:
            return
