"""The plan of a cell: what runs, where and how, before anything of it is packed.

a notebook cell, a call, a push ... ──→ CellPlan ── TaskVariables.commands_for ──→ RunCell for each task
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import msgspec

from tfmagic.protocol.cluster_spec import Selector, TaskId
from tfmagic.protocol.commands import CellKind
from tfmagic.views.protocol import View, ViewContext

Call = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
"""A function, its positional arguments and its keyword arguments."""
ViewName = Literal["text", "quiet"]
ViewChoice = Callable[[ViewContext], View] | ViewName


class Options(msgspec.Struct, frozen=True):
    """Where a cell or call runs, for how long, and how it is shown: options of ``%%tfcluster``.

    Attributes:
        out: The name to which the notebook binds the results, or "".
        chosen: What features were given as options, by the option's name.
        copies: Whether large arrays that are pulled can be written, which copies what is written.
        hides: Whether a `view` of the front end's own shows no output.
    """

    on: Selector = None
    timeout_s: float | None = None
    keep_going: bool = False
    out: str = ""
    view: ViewChoice = "text"
    chosen: Mapping[str, Any] = {}
    copies: bool = True
    hides: bool = False

    @property
    def is_quiet(self) -> bool:
        """Whether the view shows no output."""
        return self.hides or self.view == "quiet"


class CellPlan(msgspec.Struct, frozen=True):
    """A cell, a call, or a question of tfmagic's own. Fields that are not explained are those of `RunCell`.

    Attributes:
        call: What is called, instead of `source`.
        reads: Names of variables that it might need from the notebook.
        push: Names of variables that travel in any case.
        values: Replaces the notebook's variables.
        is_divided: Whether each task gets its part of the value that is pushed.
        tf_configs: The `Rejoin.tf_config` of each task, instead of a kind.
        extras: What one feature sends itself, instead of what all of them send with such a cell. In a cell
            without code its half in the task can do that as the cell's code.
        meets: The tasks that meet at barriers; by default those that run it.
    """

    source: str = ""
    filename: str = ""
    prompt: int = 0
    show_value: bool = True
    call: Call | None = None
    reads: Collection[str] = ()
    push: tuple[str, ...] = ()
    values: Mapping[str, Any] | None = None
    is_divided: bool = False
    pull: tuple[str, ...] = ()
    want_value: bool = False
    kind: CellKind = CellKind.USUAL
    group: int = 0
    meets: tuple[TaskId, ...] = ()
    tf_configs: Mapping[TaskId, str] = {}
    extras: Mapping[str, bytes] = {}
    options: Options = Options()
