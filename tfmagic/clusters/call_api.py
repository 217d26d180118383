"""Calling a function on the tasks, in the four ways of Python: and wait, later, awaited, and over items.

A base class of `Cluster`, apart from it since each way is written three times: the first form is for type
checkers, to whom a coroutine function would return a coroutine; on the task it is awaited.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar, overload

from tfmagic.clusters import outcomes, waiting
from tfmagic.clusters.background_calls import BackgroundCall
from tfmagic.clusters.cell_options import Options, ViewName
from tfmagic.clusters.job import Job
from tfmagic.clusters.parallel_map import Spread
from tfmagic.clusters.results import TaskResults
from tfmagic.protocol.cluster_spec import Selector, TaskId

T = TypeVar("T")
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, its arguments, and those with a name."""


class Calls:
    """See the module."""

    @abstractmethod
    def _begin_call(
        self,
        call: Call,
        options: Options,
        detached: bool = True,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> Job:
        """Start (function, args, kwargs) on the tasks of a cluster that is started if need be."""

    @abstractmethod
    async def _begin_awaited(self, call: Call, options: Options) -> Job:
        """As `_begin_call`; the event loop goes on meanwhile."""

    @abstractmethod
    def _targets(self, on: Selector) -> tuple[TaskId, ...]:
        """The tasks that are meant, of a cluster that is started if need be."""

    @abstractmethod
    def grouped_stacks(self, *tasks: str) -> str:
        """Where these tasks are."""

    @overload
    def run(  # type: ignore[overload-overlap]
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "text",
        **kwargs: Any,
    ) -> TaskResults[T]: ...

    @overload
    def run(
        self,
        fn: Callable[..., T],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "text",
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
        **kwargs: Any,
    ) -> TaskResults[Any]:
        """Call ``fn(*args, **kwargs)`` on the tasks and return what each returned.

        Args:
            fn: Any function; one of ``__main__`` takes the globals that it uses along.
            on: Selector of tasks; by default those that run a cell.
            timeout: Seconds after which the call is stopped.
            keep_going: Let the others finish when one fails.
            view: ``text`` prints the tasks' output, prefixed; ``quiet`` prints nothing.
            **kwargs: Arguments of `fn`; those that are called as one of the above go by `functools.partial`.

        Raises:
            BaseException: The root failure of the tasks, as what it was.
            CaptureError: Something cannot travel; nothing was run.
            TaskTimeoutError: After `timeout`.
            ValueError: `timeout` is not above 0.
        """
        __tracebackhide__ = True
        options = _options(on, timeout, keep_going, view)
        result = waiting.finish(self._begin_call((fn, args, kwargs), options, detached=False))
        outcomes.require_values(result.results)
        return result.results

    @overload
    def submit(  # type: ignore[overload-overlap]
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "quiet",
        **kwargs: Any,
    ) -> Future[TaskResults[T]]: ...

    @overload
    def submit(
        self,
        fn: Callable[..., T],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "quiet",
        **kwargs: Any,
    ) -> Future[TaskResults[T]]: ...

    def submit(
        self,
        fn: Callable[..., Any],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "quiet",
        **kwargs: Any,
    ) -> Future[TaskResults[Any]]:
        """`run` in the background: it is queued, and its results or its failure are the future's.

        What travels is packed now. Each task runs calls and cells in the order in which they were asked for,
        so that calls on different tasks run at the same time. ``future.cancel()`` takes back one that has not
        begun; `Cluster.interrupt` ends one that runs, and what is queued; `Cluster.stop` fails all of them.
        """
        call = BackgroundCall()
        try:
            options = _options(on, timeout, keep_going, view)
            call.follow(self._begin_call((fn, args, kwargs), options, may_begin=call.begin))
        except BaseException as error:  # it belongs to whoever asks the future
            call.fail(error)
            if not isinstance(error, Exception):
                raise
        return call.future

    @overload
    async def arun(  # type: ignore[overload-overlap]
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "text",
        **kwargs: Any,
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
        **kwargs: Any,
    ) -> TaskResults[Any]:
        """`run` for coroutines: the event loop goes on meanwhile.

        To cancel it interrupts the tasks, and waits until they have ended. Several at once are queued, or run
        at the same time on different tasks.
        """
        __tracebackhide__ = True
        options = _options(on, timeout, keep_going, view)
        job = await self._begin_awaited((fn, args, kwargs), options)
        result = await waiting.finish_awaited(job)
        outcomes.require_values(result.results)
        return result.results

    @overload
    def map(  # type: ignore[overload-overlap]
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
        """``[fn(*items) for items in zip(*iterables)]``, each call on one task, as many at once as tasks.

        With as many items as tasks, item i runs on the i-th; else whoever is free takes the next one, and
        none is taken from the iterables before. The first failure, `timeout` (seconds for all of them) and
        Ctrl-C stop the rest. For keyword arguments use `functools.partial`.

        Raises:
            BaseException: What the call of an item raised; notes say which item, and on which task.
            TaskTimeoutError, CaptureError, ValueError: As `run`.
        """
        __tracebackhide__ = True
        if not iterables:
            raise TypeError("map() needs a function and at least one iterable")
        options = _options(None, timeout, False, view)
        each = replace(options, timeout_s=None)

        def begin(task: TaskId, arguments: Any) -> Job:
            return self._begin_call((fn, arguments, {}), replace(each, on=task.name))

        items = zip(*iterables, strict=False)
        return Spread[Any](begin, self._targets(on), items, timeout, self.grouped_stacks).run()


def _options(on: Selector, timeout: float | None, keep_going: bool, view: ViewName) -> Options:
    return Options(on=on, timeout_s=timeout, keep_going=keep_going, want_value=True, view=view)
