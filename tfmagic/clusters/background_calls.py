"""Calls that no thread of the user's waits for: `Cluster.submit` and its futures, and `Cluster.arun`.

    submit: packed, and queued by the supervisor ── sent ──→ the future runs ──→ thread "tfmagic-call"
                   future.cancel() before that ─────┘                            waits, shows, settles it

The order of submission is that of the supervisor's queue. A call that is cancelled keeps its place there:
its variables still travel, since later calls count on them, but it does nothing. A thread is there only
while a call runs, and ends with it; so a thousand calls that wait cost none, and what the user hangs on a
future may itself wait for another one.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Protocol

from tfmagic.clusters import outcomes, waiting
from tfmagic.clusters.job import Job
from tfmagic.errors import TfmagicError

_LOOK_S = 0.01


class Startable(Protocol):
    """What `lock_running` needs of a cluster."""

    @property
    def running(self) -> bool: ...

    def start(self) -> object: ...


async def lock_running(lock: threading.RLock, cluster: Startable) -> None:
    """Hold the lock of a cluster that runs; until then the event loop goes on."""
    import asyncio

    while True:
        if not cluster.running:
            await _start(cluster)
        if not lock.acquire(blocking=False):  # another thread restarts tasks, or packs a call
            await asyncio.sleep(_LOOK_S)
        elif cluster.running:
            return
        else:
            lock.release()


async def _start(cluster: Startable) -> None:
    """Start it in a thread. To cancel it waits for that: whoever stops the cluster then finds it whole."""
    import asyncio

    starting = asyncio.ensure_future(asyncio.to_thread(cluster.start))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        raise


class BackgroundCall:
    """One call and its `future`. `begin` may be called by any thread, and any number of times."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()
        self._lock = threading.Lock()
        self._goes: bool | None = None
        self._job: Job | None = None
        self._is_handed_over = threading.Event()

    def follow(self, job: Job) -> None:
        """It has been given to the supervisor: see it to its end, whatever that is."""
        self._job = job
        self._is_handed_over.set()
        job.on_done(self.begin)

    def fail(self, error: BaseException) -> None:
        """It could not be given to the supervisor."""
        with self._lock:
            has_begun = self._goes is not None
            self._goes = self._goes or False
        if has_begun or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
        self._is_handed_over.set()

    def begin(self) -> bool:
        """Whether it may run, and no longer be cancelled. By the supervisor, as it is sent or has ended."""
        with self._lock:
            if self._goes is not None:
                return self._goes
            self._goes = self.future.set_running_or_notify_cancel()
        if self._goes:
            try:
                threading.Thread(target=self._settle, name="tfmagic-call", daemon=True).start()
            except RuntimeError as error:  # the interpreter ends, and with it the cluster
                self.future.set_exception(TfmagicError(f"the call was given up: {error}"))
        return self._goes

    def _settle(self) -> None:
        self._is_handed_over.wait()
        if self._job is None:  # it has failed
            return
        try:
            waiting.watch(self._job)
            result = self._job.settle()
            outcomes.require_values(result.results)
        except BaseException as error:  # it belongs to whoever asks the future
            self.future.set_exception(error)
        else:
            self.future.set_result(result.results)
