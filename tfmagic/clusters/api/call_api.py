"""Call a function on the tasks: `Cluster.run` waits, `submit` does not, `arun` awaits, `map` spreads items.

Each method is written three times. The first form
is for type checkers: the result of a coroutine function is what its coroutine returns, since the task awaits
it. The second form checks the options of all other functions.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar, overload

from msgspec.structs import replace

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.cells import features, waiting
from tfmagic.clusters.cells.cell_plan import Call, CellPlan, Options, ViewName
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.cells.parallel_map import ParallelMap
from tfmagic.clusters.cells.results import CellResult, TaskResults, require_values
from tfmagic.clusters.cells.task_times import CallFuture, TaskTimes, task_times
from tfmagic.clusters.launch.checks import check
from tfmagic.errors import TfmagicError
from tfmagic.failures.ipython_tracebacks import hide_our_frames
from tfmagic.protocol.cluster_spec import Selector, TaskId

T = TypeVar("T")
_LOOK_S = 0.01
_DEFAULTS = {view: Options(view=view) for view in ("text", "quiet")}


class Calls(ClusterBase):
    """The methods that call functions on the tasks."""

    @abstractmethod
    def grouped_stacks(self, *tasks: str) -> str:
        """Return the stacks of the user's code as text: what a call that does not end waits for."""

    @property
    def resumed(self) -> list[Job]:
        """The cells and calls of a former kernel, since `tfmagic.attach`."""
        return self._running_cluster().resumed

    @property
    def unsent(self) -> tuple[int, ...]:
        """The notebook's numbers of cells that a former kernel has not sent, as they had to wait."""
        return self._running_cluster().kept_record.unsent

    def collect(self) -> list[TaskResults[Any]]:
        """Wait for the cells and calls of a former kernel; return their results in the order of their start.

        Raises:
            BaseException: What a task raised. Another call goes on with the next cell.
        """
        found, jobs = [], self.resumed
        while jobs:
            job = jobs.pop(0)
            job.ctrl_c.take()
            found.append(waiting.finish(job).results)
        return found

    @overload
    def run(self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> TaskResults[T]: ...

    @overload
    def run(
        self,
        fn: Callable[..., T],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "text",
        profile: bool | float = False,
        **kwargs: Any,
    ) -> TaskResults[T]: ...

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "text",
        profile: bool | float = False,
        **kwargs: Any,
    ) -> TaskResults[Any]:
        """Call ``fn(*args, **kwargs)`` on the tasks and return what each returned.

        Args:
            fn: Any function. One of ``__main__`` takes along the globals that it uses.
            on: Selector of tasks; by default those that run a cell.
            timeout: Seconds after which the call is stopped.
            keep_going: Let the other tasks finish when one fails.
            view: ``text`` prints the tasks' output, prefixed; ``quiet`` prints nothing.
            profile: Trace the tasks with TensorFlow's profiler, for 60 s or the seconds given; the results'
                `profile` tells where their time went.
            **kwargs: Arguments of `fn`. Use `functools.partial` for those that have a name from above.

        Raises:
            BaseException: The root failure of the tasks, with its own type.
            CaptureError: Something cannot travel; nothing was run.
            TaskTimeoutError: `timeout` has passed.
            TypeError, ValueError: `fn` cannot be called, or an option makes no sense.
        """
        options = _options(on, timeout, keep_going, view, profile=profile)
        job = self._begin_call((fn, args, kwargs), options, detached=False)
        return _values_of(waiting.finish(job))

    @overload
    def submit(
        self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any
    ) -> CallFuture[TaskResults[T]]: ...

    @overload
    def submit(
        self,
        fn: Callable[..., T],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "quiet",
        profile: bool | float = False,
        **kwargs: Any,
    ) -> CallFuture[TaskResults[T]]: ...

    def submit(
        self,
        fn: Callable[..., Any],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "quiet",
        profile: bool | float = False,
        **kwargs: Any,
    ) -> CallFuture[TaskResults[Any]]:
        """Do as `run`, in the background: return a future of the results.

        What travels is packed now. Each task runs calls and cells in the order in which they were submitted;
        calls on different tasks run at the same time. ``future.cancel()`` takes back a call that has not
        begun. `Cluster.interrupt` ends a call that runs, and those that are queued. `Cluster.stop` fails all.
        The future has `started`, `ended` and `seconds` by task, as results have, also while the call runs.
        """
        background = _BackgroundCall()
        try:
            options = _options(on, timeout, keep_going, view, profile=profile)
            background.follow(self._begin_call((fn, args, kwargs), options, may_begin=background.begin))
        except BaseException as error:  # the future raises it
            background.fail(error)
            if not isinstance(error, Exception):
                raise
        return background.future

    @overload
    async def arun(
        self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any
    ) -> TaskResults[T]: ...

    @overload
    async def arun(
        self,
        fn: Callable[..., T],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "text",
        profile: bool | float = False,
        **kwargs: Any,
    ) -> TaskResults[T]: ...

    async def arun(
        self,
        fn: Callable[..., Any],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "text",
        profile: bool | float = False,
        **kwargs: Any,
    ) -> TaskResults[Any]:
        """Do as `run`, in a coroutine: the event loop goes on meanwhile.

        Cancelling it interrupts the tasks, and waits until they have ended. Several calls at once are queued,
        or run at the same time on different tasks.
        """
        options = _options(on, timeout, keep_going, view, profile=profile)
        await self._lock_when_running()
        try:
            job = self._begin_call((fn, args, kwargs), options)
        finally:
            self._lock.release()
        return _values_of(await waiting.finish_awaited(job))

    @overload
    def map(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        *iterables: Iterable[Any],
        on: Selector = None,
        timeout: float | None = None,
        view: ViewName = "text",
    ) -> list[T]: ...

    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        on: Selector = None,
        timeout: float | None = None,
        view: ViewName = "text",
    ) -> list[T]: ...

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        on: Selector = None,
        timeout: float | None = None,
        view: ViewName = "text",
    ) -> list[Any]:
        """Return ``[fn(*items) for items in zip(*iterables)]``; each call runs on one task.

        With as many items as tasks, item i runs on task i. Otherwise each free task takes the next item, and
        no item is taken from the iterables before. The first failure, `timeout` (seconds for all items) and
        Ctrl-C stop the rest. For keyword arguments use `functools.partial`.

        Raises:
            BaseException: The exception of an item's call; notes name the item and the task.
            TaskTimeoutError, CaptureError, ValueError: As `run`.
        """
        if not iterables:
            raise hide_our_frames(TypeError("map() needs a function and at least one iterable"))
        options, timeout = _options(on, None, view=view), check("timeout", timeout)
        items = zip(*(check("iterable", items, "an argument of map()") for items in iterables), strict=False)
        check("fn", fn)

        def begin(task: TaskId, arguments: Any) -> Job:
            return self._begin_call((fn, arguments, {}), replace(options, on=task.name))

        with self._lock:
            self.start()
            tasks = tuple(self._running_cluster().cells.targets(on))
        return ParallelMap(begin, tasks, items, timeout, self.grouped_stacks).run()

    def _begin_call(
        self,
        call: Call,
        options: Options,
        detached: bool = True,
        may_begin: Callable[[], bool] | None = None,
    ) -> Job:
        """Start the call on the tasks of a cluster that is started if it does not run."""
        check("fn", call[0])
        return self.begin_cell(CellPlan(call=call, options=options), detached, may_begin)

    async def _lock_when_running(self) -> None:
        """Start the cluster if it does not run, and take its lock; the event loop goes on meanwhile."""
        import asyncio

        while True:
            if not self.running:
                starting = asyncio.ensure_future(asyncio.to_thread(self.start))
                try:
                    await asyncio.shield(starting)
                except asyncio.CancelledError:
                    await asyncio.wait([starting])  # a `stop` that follows must find a whole cluster
                    raise
            if not self._lock.acquire(blocking=False):  # another thread restarts tasks, or packs a call
                await asyncio.sleep(_LOOK_S)
            elif self.running:
                return
            else:
                self._lock.release()


def _options(
    on: Selector,
    timeout: float | None,
    keep_going: bool = False,
    view: ViewName = "text",
    **of_features: Any,
) -> Options:
    is_default = on is None and timeout is None and keep_going is False
    chosen = features.chosen(of_features)
    if is_default and not chosen and type(view) is str and view in _DEFAULTS:  # as in most calls
        return _DEFAULTS[view]
    return Options(
        on=on,
        timeout_s=check("timeout", timeout),
        keep_going=check("keep_going", keep_going),
        view=check("view", view),
        chosen=chosen,
    )


def _values_of(result: CellResult) -> TaskResults[Any]:
    """Return the values of a call that has ended."""
    require_values(result.results)
    return result.results


class _BackgroundCall:
    """One call of `submit` and its future.

        submit: packed, queued by the supervisor ── sent ──→ the future runs ──→ thread "tfmagic-call"
                   future.cancel() before that ─────┘                            waits, and sets the result

    Calls run in the order of the supervisor's queue. A cancelled call keeps its place there: its variables
    still travel, since later calls count on them, but it does nothing. The thread lives only while the call
    runs, so queued calls cost no thread, and a callback of a future can wait for another future.
    """

    def __init__(self) -> None:
        self.future: CallFuture[Any] = CallFuture(self.times)
        self._lock = threading.Lock()
        self._may_run: bool | None = None  # None before the decision
        self._job: Job | None = None
        self._is_decided = threading.Event()  # a job was started, or starting it has failed

    def follow(self, job: Job) -> None:
        """Fulfil the future with the outcome of `job`, which was given to the supervisor."""
        self._job = job
        self._is_decided.set()
        job.on_done(self.begin)

    def times(self) -> TaskTimes:
        """Return the times of the call so far."""
        if (job := self._job) is None:
            return task_times(None)
        return task_times(job.outcome or job.supervisor.state.cells.get(job.number))

    def fail(self, error: BaseException) -> None:
        """Let the future raise `error`: no job could be started."""
        with self._lock:
            has_begun = self._may_run is not None
            self._may_run = self._may_run or False
        if has_begun or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
        self._is_decided.set()

    def begin(self) -> bool:
        """Return whether the call may run; from then on it cannot be cancelled.

        Called by the supervisor when the call is sent or has ended; from any thread, any number of times.
        """
        with self._lock:
            if self._may_run is not None:
                return self._may_run
            self._may_run = self.future.set_running_or_notify_cancel()
        if self._may_run:
            try:
                threading.Thread(target=self._settle, name="tfmagic-call", daemon=True).start()
            except RuntimeError as error:  # the interpreter ends, and with it the cluster
                self.future.set_exception(TfmagicError(f"the call was given up: {error}"))
        return self._may_run

    def _settle(self) -> None:
        self._is_decided.wait()
        if self._job is None:  # `fail` has set the exception
            return
        try:
            waiting.watch(self._job)
            result = self._job.settle()
            require_values(result.results)
        except BaseException as error:  # the future raises it
            self.future.set_exception(error)
        else:
            self.future.set_result(result.results)
