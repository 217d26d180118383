"""``@tfmagic.cluster(workers=2)``: a function each call of which runs on a cluster of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from tfmagic.clusters.cell_options import ViewName
from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.results import TaskResults
from tfmagic.protocol.cluster_spec import Selector
from tfmagic.protocol.task_context import is_task

T = TypeVar("T")
P = ParamSpec("P")


class ClusterDecorator:
    """What ``@tfmagic.cluster(...)`` puts around a function; see `cluster`."""

    def __init__(self, shape: dict[str, Any], options: dict[str, Any]):
        self._shape, self._options = shape, options

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, TaskResults[T]]]: ...

    @overload
    def __call__(self, fn: Callable[P, T], /) -> Callable[P, TaskResults[T]]: ...

    def __call__(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        @functools.wraps(fn)
        def run_on_cluster(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if is_task():
                return fn(*args, **kwargs)
            with Cluster(**self._shape) as started:
                return started.run(functools.partial(fn, *args, **kwargs), **self._options)

        @functools.wraps(fn)
        async def await_on_cluster(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if is_task():
                return await fn(*args, **kwargs)
            cluster = Cluster(**self._shape)
            try:
                return await cluster.arun(functools.partial(fn, *args, **kwargs), **self._options)
            finally:
                cluster.stop()

        return await_on_cluster if inspect.iscoroutinefunction(fn) else run_on_cluster


@overload
def cluster(  # type: ignore[overload-overlap]
    fn: Callable[P, Coroutine[Any, Any, T]], /
) -> Callable[P, Coroutine[Any, Any, TaskResults[T]]]: ...


@overload
def cluster(fn: Callable[P, T], /) -> Callable[P, TaskResults[T]]: ...


@overload
def cluster(
    *,
    on: Selector = None,
    timeout: float | None = None,
    keep_going: bool = False,
    view: ViewName = "text",
    **shape: Any,
) -> ClusterDecorator: ...


def cluster(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    on: Selector = None,
    timeout: float | None = None,
    keep_going: bool = False,
    view: ViewName = "text",
    **shape: Any,
) -> Any:
    """Decorate a function so that each call runs it on a cluster of its own, started and ended.

    ``@tfmagic.cluster`` alone takes the default shape. The function keeps its signature: a coroutine
    function is one still, whose call is awaited; of a method, the object travels along. On a task it is the
    plain function, so that it may call itself.

    Args:
        on, timeout, keep_going, view: Of each call, as for `Cluster.run`; all arguments of a call are the
            function's own.
        **shape: The arguments of `Cluster`.
    """
    options = {"on": on, "timeout": timeout, "keep_going": keep_going, "view": view}
    decorate = ClusterDecorator(shape, options)
    return decorate if fn is None else decorate(fn)
