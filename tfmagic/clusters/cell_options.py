"""A cell and how it runs, as plain data between the magic and the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tfmagic.protocol.cluster_spec import Selector
from tfmagic.views.protocol import View, ViewContext

ViewName = Literal["text", "quiet"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell, ready to run: Python source whose line numbers are the notebook's.

    `reads` are the names that it may need from the notebook; `show` whether the value of its last
    expression is displayed; `prompt` the notebook's number of the cell, or 0.
    """

    source: str
    filename: str = ""
    reads: frozenset[str] = frozenset()
    show: bool = True
    prompt: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """How one cell or call runs; the fields are the options of ``%%tfcluster``.

    `view` may be a function that makes a view of a cell under way.
    """

    on: Selector = None
    push: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()
    capture: bool = True
    timeout_s: float | None = None
    keep_going: bool = False
    want_value: bool = False
    view: Callable[[ViewContext], View] | ViewName = "text"

    def __post_init__(self) -> None:
        limit = self.timeout_s
        if limit is not None and not 0 < limit < float("inf"):
            raise ValueError(f"a time limit is a number of seconds above 0, not {limit!r}")
