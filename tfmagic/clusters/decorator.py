"""The decorator ``@tfmagic.cluster(workers=2)``: each call of the function runs on a cluster of its own."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.job import ViewName
from tfmagic.clusters.results import TaskResults
from tfmagic.protocol.cluster_spec import Selector
from tfmagic.protocol.task_context import is_task

T = TypeVar("T")
P = ParamSpec("P")


class ClusterDecorator:
    """The decorator that `cluster` returns."""

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
    """Decorate a function so that each call starts a cluster, runs the function on it, and stops it.

    ``@tfmagic.cluster`` without arguments takes the default shape. The function keeps its signature: a
    coroutine function stays one, and the object of a method travels along. On a task the function is not
    decorated, so that it can call itself.

    Args:
        on, timeout, keep_going, view: As for `Cluster.run`; for each call.
        **shape: The arguments of `Cluster`.
    """
    options = {"on": on, "timeout": timeout, "keep_going": keep_going, "view": view}
    decorate = ClusterDecorator(shape, options)
    return decorate if fn is None else decorate(fn)
