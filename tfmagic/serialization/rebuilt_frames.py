"""Describe the frames of a traceback on a task with tblib, and make equal ones in the notebook.

    task       frame → tblib.Traceback → dict, and what tblib leaves out: module variables, parameters, lines
    notebook   dict → tblib.Traceback → a stub that raises: Python's own frame

tblib's own stub marks the first characters of each line, whatever has failed there, and has no parameters.
Ours has the name, lines, parameters and variables of the real code, so Python, IPython and debuggers show the
frame as the real one: ``C.method(self, a, *args)``, and no source where there is none.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, TracebackType
from typing import Any

import tblib

from tfmagic.protocol.module_origins import original_path
from tfmagic.serialization.exception_attributes import of_class
from tfmagic.serialization.frame_variables import RemoteLocal
from tfmagic.system import own_code

_VALUES = "__values_of_the_frame"  # a global of the stub while it runs
_HIDDEN = "__tracebackhide__"  # pytest and IPython show no frame that sets it
_RAISE = "raise __a_name_that_nobody_has"
_STARS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_CODE = ("co_qualname", "co_firstlineno", "co_argcount", "co_kwonlyargcount", "co_flags")

Copies = Mapping[int, tuple[dict[str, Any], dict[str, Any]]]
"""The copied variables of each frame, as `frame_variables.copy_frames` makes them."""

PlainFrame = tuple[dict[str, Any], dict[str, Any], tuple[tuple[str, Any], ...]]
"""A frame: the dict of tblib, the attributes of its code that tblib leaves out, the variables of its module.

The latter are no dict: dill imports the module that the ``__name__`` in a dict is.
"""


def describe(entries: Iterable[TracebackType], copies: Copies) -> list[PlainFrame]:
    """Return the frames of these entries as plain data: a flat list, since a deep pickle fails."""
    return [_describe(entry, copies) for entry in entries]


def _describe(entry: TracebackType, copies: Copies) -> PlainFrame:
    frame, code = entry.tb_frame, entry.tb_frame.f_code
    own, of_module = copies.get(id(frame), ({}, {}))
    more = {name: getattr(code, name) for name in _CODE}
    if code.co_flags & inspect.CO_OPTIMIZED:
        names, *stars = inspect.getargs(code)
        more["co_varnames"] = (*names, *filter(None, stars))
        own = _text_of_missing(more["co_varnames"], frame.f_locals) | own
    if _HIDDEN in code.co_varnames and frame.f_locals.get(_HIDDEN) is True:
        own = {**own, _HIDDEN: True}
    plain = tblib.Traceback(own_code.linked([entry]), get_locals=lambda frame: own).to_dict()
    known = of_module | plain["tb_frame"]["f_globals"]
    plain["tb_frame"]["f_globals"] = {}
    return plain, more, tuple(known.items())


def _text_of_missing(names: Iterable[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a text for each parameter, in case it was not copied: IPython shows all or none of them."""
    kinds = {name: of_class(values[name], "__qualname__") for name in names if name in values}
    return {name: RemoteLocal(kind, f"<{kind}>") for name, kind in kinds.items()}


def rebuild(frames: Iterable[PlainFrame], rename: Callable[[str], str]) -> TracebackType | None:
    """Return a traceback of the frames that `describe` has returned, which Python can raise and show.

    Args:
        rename: Returns the name under which a source file is shown here.
    """
    made = None
    for plain, more, known in reversed(list(frames)):
        entry = tblib.Traceback.from_dict(plain)
        code = entry.tb_frame.f_code
        vars(code).update(more, co_filename=rename(original_path(code.co_filename)))
        entry.tb_frame.f_globals.update(known)
        try:
            _raise_in(entry)
        except NameError as error:
            raised = own_code.entries_of(error.__traceback__)[-1]
            made = TracebackType(made, raised.tb_frame, raised.tb_lasti, raised.tb_lineno)
    return made


def _raise_in(entry: tblib.Traceback) -> None:
    """Raise NameError in a frame that is like this one."""
    code, values, names = entry.tb_frame.f_code, entry.tb_frame.f_locals, entry.tb_frame.f_globals
    first = min(code.co_firstlineno, entry.tb_lineno)  # macros and translated code have lines above it
    like: dict[str, Any] = {name: getattr(code, name) for name in ("co_filename", "co_name", "co_qualname")}
    like["co_firstlineno"], offset = first, entry.tb_lineno - first
    if not code.co_flags & inspect.CO_OPTIMIZED:  # of a module or a class body
        exec(_module_stub(offset).replace(**like), names, values)
        return
    variables = tuple(dict.fromkeys([*code.co_varnames, *values]))
    deleted = tuple(n for n, name in enumerate(variables) if name not in values)
    stub = _function_stub(len(variables), deleted, offset)
    like |= {"co_varnames": variables, "co_flags": stub.co_flags | code.co_flags & _STARS}
    like |= {"co_argcount": code.co_argcount, "co_kwonlyargcount": code.co_kwonlyargcount}
    function = FunctionType(stub.replace(**like), names, argdefs=(None,) * code.co_argcount)
    function.__kwdefaults__ = dict.fromkeys(variables[code.co_argcount :])
    names[_VALUES] = tuple(map(values.get, variables))
    try:
        function()
    finally:
        del names[_VALUES]


@functools.lru_cache(maxsize=256)
def _module_stub(offset: int) -> CodeType:
    """Return code that raises NameError `offset` lines below its first one."""
    return _compile("\n" * offset + _RAISE)


@functools.lru_cache(maxsize=256)
def _function_stub(count: int, deleted: tuple[int, ...], offset: int) -> CodeType:
    """Return a function's code likewise, with the variables ``v0``, ``v1`` ... in the order of `co_varnames`.

    It first takes the values of all `count` variables from a global. Those of `deleted` stay without one.
    """
    targets = ", ".join(f"v{n}" for n in range(count))
    body = [f"[{targets}] = {_VALUES}", *[f"del v{n}" for n in deleted], _RAISE]
    code = _compile(f"def stub():{chr(10) * offset} {'; '.join(body)}")
    return next(constant for constant in code.co_consts if isinstance(constant, CodeType))


def _compile(source: str) -> CodeType:
    """Compile without columns, by which Python would mark characters of the real line."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        vars(node).update(col_offset=-1, end_col_offset=-1)
    return compile(tree, "<stub>", "exec")
