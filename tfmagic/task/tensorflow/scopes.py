"""Restore TensorFlow's scopes of the main thread after an interrupt.

A KeyboardInterrupt inside an ``__enter__`` or ``__exit__`` leaves a device, a graph or a strategy entered for
good: later cells then ran on an "unknown device" (once in twenty interrupts of code that makes tensors).
Scopes that were entered before the cell stay entered.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

_SETTINGS = ("is_eager", "scope_name", "device_name", "device_spec")


@dataclass(frozen=True, slots=True)
class Scopes:
    """The scopes that a thread has entered, and the context's settings."""

    graphs: list[Any]
    strategies: list[Any]
    switches: list[Any] | None
    settings: tuple[Any, ...]


def take_scopes() -> Scopes:
    """Return the scopes that are entered now. Takes microseconds."""
    ops, context = _ops(), _context()
    graphs, strategies = ops._default_graph_stack.stack, ops.get_default_graph()._distribution_strategy_stack
    if context is None:  # TensorFlow has not been used: its first values
        return Scopes(list(graphs), list(strategies), None, (True, "", "", None))
    settings = tuple(getattr(context._thread_local_data, name) for name in _SETTINGS)
    return Scopes(list(graphs), list(strategies), list(context.context_switches.stack), settings)


def put_back(scopes: Scopes) -> None:
    """Enter exactly these scopes."""
    ops, context = _ops(), _context()
    ops._default_graph_stack.stack[:] = scopes.graphs
    ops.get_default_graph()._distribution_strategy_stack[:] = scopes.strategies
    if context is None:
        return
    switches = context.context_switches.stack
    switches[:] = switches[:1] if scopes.switches is None else scopes.switches
    for name, value in zip(_SETTINGS, scopes.settings, strict=True):
        if name == "device_spec" and value is None:
            value = sys.modules["tensorflow.python.framework.device"].DeviceSpec.from_string("")
        setattr(context._thread_local_data, name, value)


def _ops() -> Any:
    return sys.modules["tensorflow.python.framework.ops"]


def _context() -> Any:
    return sys.modules["tensorflow.python.eager.context"]._context
