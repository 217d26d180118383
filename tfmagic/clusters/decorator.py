"""The decorator ``@tfmagic.cluster(workers=2)``: each call of the function runs on a cluster of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TypeVar, overload

from tfmagic.clusters.cells.cell_plan import ViewName
from tfmagic.clusters.cells.results import TaskResults
from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.launch.checks import check
from tfmagic.protocol.cluster_spec import Selector
from tfmagic.protocol.task_context import is_task

T = TypeVar("T")
P = ParamSpec("P")


class ClusterDecorator:
    """Decorate a function so that each call starts a cluster, runs the function on it, and stops it.

    ``@tfmagic.cluster`` without arguments takes the default shape. The function keeps its signature: a
    coroutine function stays one, and the object of a method travels along. On a task the function is not
    decorated, so that it can call itself.

    Args:
        on, timeout, keep_going, view: As for `Cluster.run`; for each call.
        **shape: The arguments of `Cluster`.
    """

    def __init__(self, shape: Mapping[str, Any], **options: Any):
        self._shape, self._options = shape, options

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, TaskResults[T]]]: ...

    @overload
    def __call__(self, fn: Callable[P, T], /) -> Callable[P, TaskResults[T]]: ...

    @overload
    def __call__(
        self,
        /,
        *,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "text",
        **shape: Any,
    ) -> ClusterDecorator: ...

    def __call__(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        on: Selector = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "text",
        **shape: Any,
    ) -> Any:
        if fn is None:
            return ClusterDecorator(shape, on=on, timeout=timeout, keep_going=keep_going, view=view)

        check("fn", fn, "what tfmagic.cluster decorates")

        @functools.wraps(fn)
        def run_on_cluster(*args: Any, **kwargs: Any) -> Any:
            if is_task():
                return fn(*args, **kwargs)
            with Cluster(**self._shape) as started:
                return started.run(functools.partial(fn, *args, **kwargs), **self._options)

        @functools.wraps(fn)
        async def await_on_cluster(*args: Any, **kwargs: Any) -> Any:
            if is_task():
                return await fn(*args, **kwargs)
            started = Cluster(**self._shape)
            try:
                return await started.arun(functools.partial(fn, *args, **kwargs), **self._options)
            finally:
                started.stop()

        return await_on_cluster if inspect.iscoroutinefunction(fn) else run_on_cluster


cluster: ClusterDecorator = ClusterDecorator({})
