"""How one cell or call runs, as plain data between the front ends and the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tfmagic.protocol.cluster_spec import Selector
from tfmagic.views.protocol import View, ViewContext

ViewName = Literal["text", "quiet"]


@dataclass(frozen=True, slots=True)
class Options:
    """How one cell or call runs. The fields are the options of ``%%tfcluster``; `view` can be a factory."""

    on: Selector = None
    push: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()
    timeout_s: float | None = None
    keep_going: bool = False
    want_value: bool = False
    view: Callable[[ViewContext], View] | ViewName = "text"

    def __post_init__(self) -> None:
        limit = self.timeout_s
        if limit is not None and not 0 < limit < float("inf"):
            raise ValueError(f"a time limit is a number of seconds above 0, not {limit!r}")
