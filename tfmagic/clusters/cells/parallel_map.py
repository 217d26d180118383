"""Run one function over many items, each on one task: the engine of `Cluster.map`.

    items ── one for each free task ──→ jobs ── the first that ends ──→ its task is free for the next item

The first items go to the tasks in order, so that with as many items as tasks item i runs on task i. No item
is taken from the iterables before a task is free for it: they can be larger than memory. After the first
failure, Ctrl-C or the time limit, the running items are interrupted and waited for: nothing runs on unseen.
"""

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfmagic.clusters.cells import waiting
from tfmagic.clusters.cells.job import CtrlC, Job
from tfmagic.clusters.cells.results import require_values
from tfmagic.errors import TaskTimeoutError
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.serialization import exceptions


class ParallelMap:
    """One call of `map`, in the thread that waits for it.

    Args:
        begin: Starts the call of one item on one task.
        tasks: Where items run.
        items: The arguments of each call.
        timeout_s: Limit for all items together.
        stacks: Returns the stacks of the named tasks, as text.
    """

    def __init__(
        self,
        begin: Callable[[TaskId, Any], Job],
        tasks: Sequence[TaskId],
        items: Iterator[Any],
        timeout_s: float | None,
        stacks: Callable[..., str],
    ):
        self._begin, self._items, self._stacks = begin, enumerate(items), stacks
        self._free = deque(tasks)
        self._running: dict[Job, int] = {}
        self._interrupted: set[Job] = set()
        self._ended: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._results: dict[int, Any] = {}
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._is_taking = self._is_pressed = False

    def run(self) -> list[Any]:
        """Return the results in the order of the items. An exception gets a note that names its item."""
        with CtrlC(self._press):
            try:
                while self._begin_more():
                    self._settle(self._wait())
            except BaseException:
                # a press meanwhile interrupts again, which kills what is left
                for job in self._running:
                    if job not in self._interrupted:
                        job.give_up()
                for job in self._running:
                    waiting.wait(job)
                raise
        return [self._results[index] for index in range(len(self._results))]

    def _begin_more(self) -> bool:
        """Give each free task an item. Return False when no job is left to wait for."""
        while self._free:
            self._is_taking = True  # Ctrl-C ends the user's iterables, whatever they do
            try:
                found = next(self._items, None)
            finally:
                self._is_taking = False
            if found is None:
                break
            index, arguments = found
            try:
                job = self._begin(self._free[0], arguments)
            except Exception as error:
                exceptions.add_note(error, f"item {index} of map()")
                raise
            self._free.popleft()
            self._running[job] = index
            job.on_done(lambda job=job: self._ended.put(job))  # type: ignore[misc]  # of this iteration
            if self._is_pressed:  # before this job was known
                raise KeyboardInterrupt
        return bool(self._running)

    def _wait(self) -> Job:
        """Return the next job that ends; meanwhile show the others."""
        while True:
            interval_s = min(job.view.interval_s for job in self._running)
            left_s = interval_s if self._deadline is None else self._deadline - time.monotonic()
            if left_s <= 0:
                raise self._timeout_error()
            try:
                job = self._ended.get(timeout=min(interval_s, left_s))
            except queue.Empty:
                for job in self._running:
                    waiting.look(job)
                continue
            if job in self._running:  # `on_done` can call twice
                return job

    def _settle(self, job: Job) -> None:
        index = self._running.pop(job)
        self._free.append(*job.tasks)
        job.show_end()
        try:
            results = job.settle().results
            require_values(results)
        except BaseException as error:
            exceptions.add_note(error, f"item {index} of map()")
            raise
        (self._results[index],) = results.values()

    def _press(self) -> None:
        self._is_pressed = True
        self._interrupted.update(self._running)
        for job in list(self._running):
            job.interrupt()
        if self._is_taking:
            raise KeyboardInterrupt

    def _timeout_error(self) -> TaskTimeoutError:
        where = ", ".join(f"item {index} on {job.tasks[0]}" for job, index in self._running.items())
        stacks = self._stacks(*(job.tasks[0].name for job in self._running))
        return TaskTimeoutError(
            f"map() was not done within {self._timeout_s:g} s; it was stopped in {where}; "
            f"{len(self._results)} items had been done.\nWhere they were:\n{stacks}"
        )
