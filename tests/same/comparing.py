"""What differs between two behaviours of a program, by aspect."""

from __future__ import annotations

import builtins
import re
from typing import Any

from sides import Behaviour, Observation

_NEEDS_TENSORFLOW = re.compile("stays on its task: it needs .*, and this process has not imported TensorFlow")
_FOREIGN = re.compile(r"^(tensorflow|keras|tf_keras)\..*\.|^tfmagic\.errors\.(?=\w+Error$)")
ASPECTS = ("printed", "displayed", "value", "error", "rendered", "names")


def find_differences(bare: Behaviour, ours: Behaviour) -> dict[str, str]:
    """Return, by aspect, what differs; empty where nothing does."""
    found: dict[str, str] = {}
    for number, (one, other) in enumerate(zip(bare.cells, ours.cells, strict=True), 1):
        for aspect in ASPECTS[:-1]:
            left, right = _part(one, other, aspect), _part(other, one, aspect)
            if left != right and aspect not in found:
                found[aspect] = f"cell {number}:\n{_show(left, right)}"
    if bare.names != ours.names:
        shared = {n for n, v in bare.names.items() if ours.names.get(n) == v}
        left_names = {n: v for n, v in bare.names.items() if n not in shared}
        found["names"] = _show(left_names, {n: v for n, v in ours.names.items() if n not in shared})
    return found


def _error_as_raised(error: dict[str, Any]) -> dict[str, Any]:
    """The error; one of TensorFlow's has a stand-in of the same name where TensorFlow is not imported."""
    kind = error["type"]
    stands_in = kind.startswith("tfmagic.errors.") and not hasattr(builtins, kind.rpartition(".")[2])
    return {**error, "type": _FOREIGN.sub("", kind) if stands_in or "tfmagic" not in kind else kind}


def _part_rendered(observation: Observation, other: Observation) -> Any:
    """The lines of the error that its rendered form leaves out, where that names any at all."""
    lines = {str(line) for error in observation.error for line, _ in error["lines"]}
    return sorted(lines - set(observation.cell_lines)) if other.cell_lines else []


def _part(observation: Observation, other: Observation, aspect: str) -> Any:
    if aspect == "printed" and (observation.errors_too or other.errors_too):
        return sorted(set(observation.printed.splitlines()))  # a kernel sends its streams in no certain order
    if aspect == "value" and _NEEDS_TENSORFLOW.search(observation.value + other.value):
        return ""
    if aspect == "error":
        return [_error_as_raised(error) for error in observation.error]
    if aspect == "rendered":  # a plain IPython may name a later line: that of its frame, not of the traceback
        return _part_rendered(observation, other) if len(other.error) == 1 else []
    return getattr(observation, aspect)


def _show(bare: Any, ours: Any) -> str:
    return f"  without tfmagic: {_cut(bare)}\n  on a task:       {_cut(ours)}"


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 1500 else f"{text[:1500]}… ({len(text)} characters)"
