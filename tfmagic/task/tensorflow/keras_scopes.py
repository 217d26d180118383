"""The scopes that Keras 3 keeps in its global state, as they were before a cell that failed.

Keras leaves them with ``with`` statements, or at the end of a function, so an interrupt can come between. It
also initializes the variables of a model in a loop that an error of a collective ends half-way: the others
stay in a list of its own, and in that process every later `fit` of any model raised "Variable ... is already
initialized", or its tasks were out of step (once in forty interrupts, Keras 3.15).
"""

import sys
from collections.abc import Mapping
from typing import Any

from tfmagic.protocol.commands import RunCell
from tfmagic.task.cell_parts import Attempt, CellPart
from tfmagic.task.tensorflow import patches

_SCOPES = (
    "autocast_scope",
    "current_call_ctx",
    "custom_objects_scope_dict",
    "in_tf_graph_scope",
    "name_scope_stack",
    "remat_scope_stack",
    "stateless_scope",
    "symbolic_scope",
    "tracking_on",
    "uninitialized_variables",
)


class KerasScopes(CellPart):
    """Brings the scopes back that were entered before a cell that failed."""

    _entered: Mapping[str, Any] = {}

    def begin(self, cell: RunCell) -> None:
        """Note the scopes."""
        self._entered = take_scopes()

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """Enter exactly these again, after a failure."""
        if attempt.error is not None:
            put_back(self._entered)


def take_scopes() -> Mapping[str, Any]:
    """Return the scopes that this thread has entered. Takes microseconds."""
    state = _state()
    return {
        name: value.copy() if type(value := state[name]) in (list, dict) else value
        for name in _SCOPES
        if name in state
    }


def put_back(scopes: Mapping[str, Any]) -> None:
    """Enter exactly these scopes."""
    state = _state()
    for name in _SCOPES:
        state.pop(name, None)
    state.update(scopes)


def forget_generator() -> None:
    """Let Keras make its generator of unseeded random numbers again.

    Its variable is of the strategy in which it was made. A new process makes one in the next strategy, whose
    tasks agree on its first value: each of them must make one there.
    """
    _state().pop("global_seed_generator", None)


def _state() -> dict[str, Any]:
    module: Any = sys.modules.get("keras.src.backend.common.global_state")
    return vars(module.GLOBAL_STATE_TRACKER) if module and patches.TABLE.fits(patches.KERAS_SCOPES) else {}
