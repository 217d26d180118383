"""``@tfmagic.cluster(workers=2)``: a function each call of which runs on a cluster of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tfmagic.clusters import Cluster
from tfmagic.results import TaskResults

T = TypeVar("T")
P = ParamSpec("P")


def cluster(**shape: Any) -> Callable[[Callable[P, T]], Callable[P, TaskResults[T]]]:
    """Decorate a function so that each call runs it on a cluster of this shape, started and ended.

    Args:
        **shape: The arguments of `Cluster`.
    """

    def decorate(fn: Callable[P, T]) -> Callable[P, TaskResults[T]]:
        @functools.wraps(fn)
        def run_on_cluster(*args: P.args, **kwargs: P.kwargs) -> TaskResults[T]:
            with Cluster(**shape) as started:
                return started.run(functools.partial(fn, *args, **kwargs))

        return run_on_cluster

    return decorate
