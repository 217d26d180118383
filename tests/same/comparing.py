"""Find the differences between two behaviours of a program, by aspect."""

from __future__ import annotations

import builtins
import re
from typing import Any

from differences import REFUSED, REFUSED_FOR
from sides import Behaviour, Observation

_NEEDS_TENSORFLOW = re.compile("stays on its task: it needs .*, and this process has not imported TensorFlow")
_NOT_PICKLED = re.compile(r"stays on its task: (\w+) cannot be pickled")
_FOREIGN = re.compile(r"^(tensorflow|keras|tf_keras)\..*\.|^tfmagic\.errors\.(?=\w+Error$)")
ASPECTS = ("printed", "displayed", "value", "error", "rendered", "calls", "names")


def find_differences(bare: Behaviour, ours: Behaviour) -> dict[str, str]:
    """Return the differences by aspect; empty if there are none."""
    found: dict[str, str] = {}
    for number, (one, other) in enumerate(zip(bare.cells, ours.cells, strict=True), 1):
        for aspect in ASPECTS[:-1]:
            if aspect == "rendered":  # a plain IPython can name a later line of the cell, that of its frame
                left, right = [], _part_rendered(other, one)
            else:
                left, right = _part(one, other, aspect), _part(other, one, aspect)
            if left != right and aspect not in found:
                found[aspect] = f"cell {number}:\n{_show(left, right)}"
    if bare.names != ours.names:
        shared = {n for n, v in bare.names.items() if ours.names.get(n) == v}
        left_names = {n: v for n, v in bare.names.items() if n not in shared}
        found["names"] = _show(left_names, {n: v for n, v in ours.names.items() if n not in shared})
    return found


def is_refused(ours: Behaviour) -> bool:
    """Return whether cells were refused, and only for variables that belong to one process."""
    refusals = [
        error for cell in ours.cells for error in cell.error if error["type"].endswith("CaptureError")
    ]
    refused = [
        found for e in refusals for found in re.findall(r"^  \w+ \((\w+)\): (.*)", e["message"], re.MULTILINE)
    ]
    return bool(refused) and all(
        kind in REFUSED or any(reason in why for reason in REFUSED_FOR) for kind, why in refused
    )


def _error_as_raised(error: dict[str, Any]) -> dict[str, Any]:
    """Return the error as far as it must be equal.

    An error of TensorFlow's has a substitute of its name where TensorFlow is not imported. Where the limit of
    recursion is reached, and so its exact message, depends on the frames below.
    """
    kind = error["type"]
    if kind == "builtins.RecursionError":
        message = error["message"].partition(" while ")[0]
        return {
            **error,
            "message": message,
            "lines": sorted(map(list, {tuple(line) for line in error["lines"]})),
        }
    stands_in = kind.startswith("tfmagic.errors.") and not hasattr(builtins, kind.rpartition(".")[2])
    return {**error, "type": _FOREIGN.sub("", kind) if stands_in or "tfmagic" not in kind else kind}


def _part_rendered(ours: Observation, bare: Observation) -> Any:
    """Return the lines of the error that its rendered form omits, if the other side's form names any."""
    lines = {str(line) for error in ours.error for line, _ in error["lines"]}
    return sorted(lines - set(ours.cell_lines)) if bare.cell_lines else []


def _part(observation: Observation, other: Observation, aspect: str) -> Any:
    if aspect == "printed" and (observation.errors_too or other.errors_too):
        return sorted(set(observation.printed.splitlines()))  # a kernel sends its two streams in any order
    if aspect == "value" and _NEEDS_TENSORFLOW.search(observation.value + other.value):
        return ""
    if aspect == "value" and (stays := _NOT_PICKLED.search(observation.value + other.value)):
        return "" if stays[1] in REFUSED else getattr(observation, aspect)
    if aspect == "error":
        return [_error_as_raised(error) for error in observation.error]
    return getattr(observation, aspect)


def _show(bare: Any, ours: Any) -> str:
    return f"  without tfmagic: {_cut(bare)}\n  on a task:       {_cut(ours)}"


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 1500 else f"{text[:1500]}… ({len(text)} characters)"
