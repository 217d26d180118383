"""Pack a call of a function for the tasks; an error names the part that cannot travel."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tfmagic.errors import CaptureError
from tfmagic.protocol.payload import Packed
from tfmagic.serialization import culprits, packing, pickling
from tfmagic.serialization.capture import used_by
from tfmagic.system import time_limits


@dataclass(frozen=True, slots=True)
class PackedCall:
    """A pickled call."""

    packed: Packed
    needs: frozenset[str]  # names on the task
    files: frozenset[str]  # of its functions


_linked_calls: dict[str, PackedCall] = {}  # without arguments, by the name of what is called


def pack_call(call: Any, main: Mapping[str, Any]) -> PackedCall:
    """Pack (function, args, kwargs).

    What is called travels by its name if `main` has it. Without arguments the pickle is always the same then.

    Raises:
        CaptureError: Names the part that cannot be pickled.
    """
    function, args, kwargs = call
    name = "" if args or kwargs else pickling.name_in(function, main)
    if not name:
        return _pack_call(call, main)
    if name not in _linked_calls:
        _linked_calls[name] = _pack_call(call, main)
    return _linked_calls[name]


def _pack_call(call: Any, main: Mapping[str, Any]) -> PackedCall:
    needs: set[str] = set()

    def link(name: str) -> bool:
        needs.add(name)
        return True

    try:
        pickled = pickling.dumps(call, main, link)
        packed = packing.pack(pickled)
    except BaseException as error:  # the user's own __reduce__ can raise anything
        time_limits.raise_if_stopped(error)
        error.__traceback__ = pickling.frames_below(error.__traceback__)
        for label, part in _parts_of(call):
            if problem := culprits.problem_of(part, main):
                why = culprits.explain(part, problem, main)
                raise CaptureError(
                    f"{label} ({type(part).__qualname__}) cannot travel to the tasks: {why}; "
                    "nothing was run. Create it inside the function, so that each task makes its own."
                ) from error
        raise CaptureError(f"the call cannot travel to the tasks: {error}; nothing was run") from error
    names, files = used_by(pickled.by_value.functions)
    return PackedCall(packed, names.union(needs), files)


def _parts_of(call: Any) -> Iterator[tuple[str, Any]]:
    """Yield function and arguments with their names; those of the user's function if one of ours calls it."""
    function, args, kwargs = call
    if str(getattr(function, "__module__", "")).startswith("tfmagic."):
        number = next((number for number, arg in enumerate(args) if callable(arg)), None)
        function, *args = (function, *args) if number is None else args[number:]
    yield "the function", function
    yield from ((f"argument {number}", arg) for number, arg in enumerate(args))
    yield from kwargs.items()
