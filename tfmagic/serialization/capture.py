"""Find and pack the notebook variables that a cell needs, or refuse and name each that cannot travel.

    cell ── names ──→ read by it ── minus the tasks' own ──→ pickled one by one, for size, digest
                                                             and the further names that they need
         ──→ those that a task does not have in this version ──→ pickled together ──→ Packed

Other variables of the notebook are not read, unless the cell asks for all of them (`all_names`): then those
travel that can. Sent values are remembered by digest, so a variable travels
again only after it has changed. A task that has changed its copy keeps its copy. All of this runs on the
notebook's main thread, before anything is sent.

Variables that travel together share their objects. A function or class brings the variables whose objects it
holds, and each brings the other when one of them is sent again: a class is the same object on the task then,
and an instance is a new one. Two variables that share a part are sent again one by one, and no longer share
it.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import os
import re
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from tfmagic.errors import CaptureError
from tfmagic.protocol.payload import Packed
from tfmagic.serialization import (
    culprits,
    packing,
    pickling,
    process_bound,
    reductions,
    user_modules,
    versions,
)
from tfmagic.serialization.all_names import ALL_NAMES, names_asked_by
from tfmagic.serialization.free_names import global_names
from tfmagic.serialization.task_names import NOTHING, Captured, TaskNames, Variable
from tfmagic.system import time_limits
from tfmagic.system.advice import Step, in_notebook
from tfmagic.system.memory import format_bytes

_SHELL_PATTERN = re.compile(
    r"_i+|_i\d+|_(dh|oh|ih|exit_code)"
    r"|__(annotations|builtins?|cached|doc|file|IPYTHON|loader|name|package|session|spec)__"  # of any module
)
_SMALL_BYTES = 1 << 16
_KEPT_BYTES = 1 << 20  # a version can keep alive an old list of this size


class _Identity:
    """Equal only for the same object, as long as that lives. What has no weak references is kept alive."""

    __slots__ = ("_get",)

    def __init__(self, value: object):
        try:
            self._get: Callable[[], object] = weakref.ref(value)
        except TypeError:
            self._get = lambda: value

    def __eq__(self, other: object) -> bool:
        found = self._get()
        return isinstance(other, _Identity) and found is not None and other._get() is found

    __hash__ = None  # type: ignore[assignment]  # it is only compared


@reductions.once()
def capture(
    wanted: Iterable[str],
    pushed: Iterable[str],
    namespace: Mapping[str, Any],
    main: Mapping[str, Any],
    tasks: Mapping[Any, TaskNames],
    limit_bytes: int,
    *,
    known: dict[str, Variable] | None = None,
    left_out: dict[str, Variable] | None = None,
) -> dict[Any, Captured]:
    """Pack, for each task, the variables that it needs and does not have.

    The caller passes what it has handed over to `TaskNames.note`. Until then it counts as unknown: after an
    interrupt at any moment it is sent again.

    Args:
        wanted: Names that the cell reads. The task finds those that are not in `namespace`.
        pushed: Names that travel in any case, and in any size.
        namespace: Where names are looked up.
        main: The notebook's ``__main__``, whose functions and classes are linked by name.
        tasks: What each task has. The variables that are packed count as unknown from here on.
        limit_bytes: For all captured variables together.
        known: The functions and classes that were examined before, by name.
        left_out: Gets the variables that do not travel with a cell that asks for all names.

    Raises:
        CaptureError: Names every variable that cannot travel, with its type and its size or the reason.
    """
    pushed = tuple(dict.fromkeys(pushed))
    unknown = [name for name in pushed if name not in namespace]
    if unknown:
        raise CaptureError(
            f"--push names {', '.join(unknown)}, which the notebook does not have; nothing was run. "
            "Assign it first, or check the spelling."
        )
    has = tuple(tasks.values())
    known = {} if known is None else known
    look = functools.partial(
        _examine, pushed=pushed, namespace=namespace, main=main, has=has, known=known, limit=limit_bytes
    )
    variables: dict[str, Variable] = {}
    is_new = look({*wanted, *pushed}, variables)
    if ALL_NAMES in wanted or any(ALL_NAMES in v.needs for v in variables.values()):
        every = frozenset(namespace).union(*(names.sent for names in has))
        is_new |= _add_all(every, variables, look, limit_bytes, {} if left_out is None else left_out)
    if not is_new:  # as in most calls of a function
        return dict.fromkeys(tasks, NOTHING)
    missing = {task: _missing(variables, pushed, names) for task, names in tasks.items()}
    lacking = frozenset[str]().union(*missing.values())
    if not lacking:
        return dict.fromkeys(tasks, NOTHING)
    _refuse([variable for name, variable in variables.items() if name in lacking], pushed, limit_bytes)
    return _pack_for_tasks(variables, pushed, main, tasks, missing)


def _missing(variables: Mapping[str, Variable], pushed: tuple[str, ...], has: TaskNames) -> frozenset[str]:
    """Return the names that a task must get.

    What refers to a function that is replaced there is sent again, too. An object, its other names and the
    definitions that hold it go together, so that it stays one object.
    """
    found = new = {name for name, v in variables.items() if name in pushed or has.lacks(v)}
    while new:
        replaced = _replaced(new, variables)
        held = {other for name in new for other in variables[name].held if other in variables}
        holders = {name for name, v in variables.items() if v.links & replaced or v.held & new}
        values = [variables[name].value for name in replaced]
        objects = {id(value) for value in values if not isinstance(value, pickling.CONSTANTS)}
        same = {name for name, v in variables.items() if id(v.value) in objects}
        new = {name for name in held | holders | same if not has.has_own(name)} - found
        found = found | new
    return frozenset(found)


def _replaced(names: Iterable[str], variables: Mapping[str, Variable]) -> frozenset[str]:
    """Return the names that get another object on a task: a class stays the same one."""
    return frozenset(name for name in names if not isinstance(variables[name].value, type))


def _examine(
    wanted: Iterable[str],
    found: dict[str, Variable],
    pushed: tuple[str, ...],
    namespace: Mapping[str, Any],
    main: Mapping[str, Any],
    *,
    has: tuple[TaskNames, ...],
    known: dict[str, Variable],
    limit: int,
    refuses: bool = True,
) -> bool:
    """Find every variable that must go to a task, and the variables that these need.

    Return whether one of them is not a definition that every task has. With `refuses`, raise CaptureError for
    a variable whose class raises.
    """
    is_new = False
    queue = sorted(wanted)
    while queue:
        name = queue.pop()
        is_pushed = name in pushed
        if name in found or not (name in namespace or any(name in h.sent for h in has)):
            continue
        if not is_pushed and (_is_shells(name, namespace) or all(h.has_own(name) for h in has)):
            continue
        value, before = namespace.get(name, pickling.Deleted), known.get(name)
        try:
            is_definition = not is_pushed and pickling.is_definition(value)
            version = versions.version_of(value, main, limit) if is_definition else None
            # pickling a definition takes 1 ms; one that must be sent can need other names after a change
            is_same = before is not None and before.value is value and before.version == version
            if before is not None and is_same and not any(h.lacks(before) for h in has):
                found[name] = before
            else:
                is_new = True
                found[name] = now = _examine_one(name, value, main, None if is_pushed else limit, version)
                known |= {name: now} if is_definition and not now.problem else {}
        except BaseException as error:  # a class that raises for `isinstance`, for a comparison
            time_limits.raise_if_stopped(error)
            found[name] = Variable(name, value, None, 0, problem=culprits.describe(error))
            if refuses:
                _refuse([found[name]], (), 0)
        queue += found[name].needs
    return is_new


def _add_all(
    names: Collection[str],
    variables: dict[str, Variable],
    look: Callable[..., bool],
    limit_bytes: int,
    left_out: dict[str, Variable],
) -> bool:
    """Add those of these names that can travel, the small ones first, and that refer to none that cannot.

    Return whether one of them is new.
    """
    found = dict(variables)
    is_new = look(names, found, refuses=False)
    more = sorted((found[name] for name in found.keys() - variables), key=lambda v: (v.size_bytes, v.name))
    room = limit_bytes - sum(v.size_bytes for v in variables.values())
    for variable in more:
        if variable.problem or variable.size_bytes > room:
            left_out[variable.name] = found.pop(variable.name)
        else:
            room -= variable.size_bytes
    while refers := [v for v in more if v.name in found and (v.links | v.held) & left_out.keys()]:
        left_out |= {variable.name: found.pop(variable.name) for variable in refers}
    variables.update(found)
    return is_new


def _is_shells(name: str, namespace: Mapping[str, Any]) -> bool:
    """Check whether a name is IPython's in the notebook; a task has one of its own."""
    if _SHELL_PATTERN.fullmatch(name):
        return True
    value, outputs = namespace.get(name), namespace.get("_oh", {})
    if name in ("In", "Out"):
        return value is namespace.get("_ih" if name == "In" else "_oh", namespace)
    if name in ("get_ipython", "exit", "quit", "open"):
        of = value.__self__ if isinstance(value, types.MethodType) else value
        home = getattr(of, "__globals__", {}).get("__name__") or process_bound.home_of(type(of))
        return str(home).startswith(("IPython", "ipykernel"))
    if re.fullmatch(r"_{1,3}", name):
        return (type(value) is str and not value) or any(value is output for output in outputs.values())
    return bool(re.fullmatch(r"_\d+", name)) and value is outputs.get(int(name[1:]), namespace)


def _examine_one(
    name: str, value: Any, main: Mapping[str, Any], limit_bytes: int | None, version: object
) -> Variable:
    if isinstance(value, types.ModuleType):
        return Variable(name, value, ("module", value.__name__), 0)
    if value is pickling.Deleted:  # the tasks have it from an earlier cell
        return Variable(name, value, "deleted", 0)
    if type(value) in pickling.IMMUTABLES and sys.getsizeof(value) <= _SMALL_BYTES:
        return Variable(name, value, (type(value), value), sys.getsizeof(value))
    links: set[str] = set()

    def link(other: str) -> bool:
        if other == name:
            return False
        links.add(other)
        return True

    try:
        pickled = pickling.dumps(value, main, link, limit_bytes=limit_bytes)
    except pickling.TooLarge:
        return Variable(
            name, value, None, max(_estimate_bytes(value), (limit_bytes or 0) + 1), problem="size"
        )
    except BaseException as error:  # the user's own __reduce__ can raise anything
        time_limits.raise_if_stopped(error)
        return Variable(name, value, None, 0, problem=culprits.explain(value, culprits.describe(error), main))
    if version is None and limit_bytes is not None:  # what is pushed is sent in any case
        digest = hashlib.sha256(pickled.stream)
        for buffer in pickled.buffers:
            digest.update(buffer)
        # a cell that binds an equal object again wants it as it is here, also if a task has changed its own
        is_kept = type(value) not in pickling.IMMUTABLES and pickled.size_bytes <= _KEPT_BYTES
        version = (_Identity(type(value)), digest.digest(), _Identity(value) if is_kept else None)
    names, files = used_by(pickled.by_value.functions)
    needs = names | links | pickled.held
    return Variable(
        name, value, version, pickled.size_bytes, needs, frozenset(links), pickled.held, files=files
    )


def used_by(functions: Iterable[types.FunctionType]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that functions of the notebook read there, and the files of their code."""
    functions = tuple(functions)
    codes = [function.__code__ for function in functions]
    asked = [names_asked_by(f.__code__) for f in functions if f.__globals__.get("__name__") == "__main__"]
    names = frozenset[str]().union(*map(global_names, codes), *asked)
    return names, frozenset(code.co_filename for code in codes)


def _refuse(variables: Iterable[Variable], pushed: tuple[str, ...], limit_bytes: int) -> None:
    """Raise CaptureError if a variable cannot travel, or all are too large."""
    broken = [v for v in variables if v.problem and v.problem != "size"]
    uncounted = frozenset(pushed).union(*(v.held for v in variables))  # counted where they are held
    counted = [v for v in variables if v.name not in uncounted and (not v.problem or v.problem == "size")]
    total = sum(v.size_bytes for v in counted)
    large = sorted((v for v in counted if v.size_bytes), key=lambda v: -v.size_bytes)
    large = large if total > limit_bytes else []
    if not broken and not large:
        return
    lines = [f"these {in_notebook('notebook ')}variables cannot travel to the tasks; nothing was run:"]
    inside = f"inside the {in_notebook('cell') or 'function'}"
    lines += [f"  {v.name} ({type(v.value).__qualname__}): {v.problem}" for v in broken]
    if large:
        sign = "more than " if any(v.problem == "size" for v in large) else ""
        lines += [
            f"  {v.name} ({type(v.value).__qualname__}): {format_bytes(v.size_bytes)}" for v in large[:20]
        ]
        lines.append(
            f"  in all {sign}{format_bytes(total)}, above max_capture_bytes ({format_bytes(limit_bytes)})"
        )
    if broken:
        lines.append(f"Create them {inside}, so that each task makes its own.")
    if large:
        push = Step("push", **{v.name: v.name for v in large[:3]})
        lines.append(
            f"Load the data {inside}, or send it on purpose with {push}, or raise the limit with "
            f"{Step('adjust', 'max_capture_bytes')}."
        )
    raise CaptureError("\n".join(lines))


def _pack_for_tasks(
    variables: Mapping[str, Variable],
    pushed: tuple[str, ...],
    main: Mapping[str, Any],
    tasks: Mapping[Any, TaskNames],
    missing: Mapping[Any, frozenset[str]],
) -> dict[Any, Captured]:
    """Make one pickle for each different set of missing names, so that their shared objects stay shared."""
    packs = {names: _pack(names, variables, main) for names in set(missing.values())}
    captured = {}
    for task, names in missing.items():
        tasks[task].forget(names, _replaced(names, variables))
        files = {file for name in names for file in variables[name].files} - tasks[task].sources
        sent = {name: variables[name].version for name in names}
        modules = frozenset(user_modules.module_of(variables[name].value) for name in names)
        links = {name: variables[name].links for name in names}
        captured[task] = Captured(packs[names], sources_of(files), sent, links, pushed, modules)
    return captured


_on_disk: set[str] = set()  # files that were found there, to look only once


def sources_of(files: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return the text of the files that exist only in this process' memory, as notebook cells do."""
    if not files:
        return ()
    _on_disk.update(file for file in files if file not in _on_disk and os.path.exists(file))
    texts = ((file, "".join(linecache.getlines(file))) for file in sorted(set(files) - _on_disk))
    return tuple((file, text) for file, text in texts if text)


def _pack(
    names: frozenset[str], variables: Mapping[str, Variable], main: Mapping[str, Any]
) -> tuple[Packed, ...]:
    if not names:
        return ()
    values = {name: variables[name].value for name in sorted(names)}
    # the task has the others by then
    pickled = pickling.dump_names(values, main, lambda name: name in variables and name not in names)
    return (packing.pack(pickled),)


def _estimate_bytes(value: Any) -> int:
    """Estimate the size of a value from its own attributes."""
    for attribute in ("nbytes", "memory_usage"):
        size = getattr(value, attribute, None)
        if isinstance(size, int):
            return size
    return sys.getsizeof(value)
