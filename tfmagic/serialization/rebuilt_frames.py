"""Describe the frames of a traceback on a task, and make equal ones in the notebook.

A frame is made by running a stub: code with the name, file, lines, parameters and variables of the real one,
which raises at its line. Python, IPython and debuggers then show it as they would show the real one:
``C.method(self, a, *args)``, the values of its variables, and no source where there is none.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, TracebackType
from typing import Any, NamedTuple

from tfmagic.protocol.module_origins import original_path
from tfmagic.serialization.frame_variables import RemoteLocal

_VALUES = "__values_of_the_frame"  # a global of the stub while it runs

Copies = Mapping[int, tuple[dict[str, Any], dict[str, Any]]]
"""The copied variables of each frame, as `frame_variables.copy_frames` makes them."""


class PlainFrame(NamedTuple):
    """A frame. It travels as a plain tuple, since dill imports the module of a dict with a ``__name__``.

    Attributes:
        first_line: The line at which its code begins; not above `line`.
        line: The line that raised; 0 of code without lines.
        arguments: How many positional and keyword-only parameters it has, and whether it has ``*args`` and
            ``**kwargs``; None of a module or a class body.
        parameters: Their names, in the order of `co_varnames`.
        of_module: Variables of its module.
        variables: Its own variables.
    """

    file: str
    name: str
    qualname: str
    first_line: int
    line: int
    arguments: tuple[int, int, bool, bool] | None
    parameters: tuple[str, ...]
    of_module: tuple[tuple[str, Any], ...]
    variables: tuple[tuple[str, Any], ...]


def describe(entries: Iterable[TracebackType], copies: Copies) -> list[tuple[Any, ...]]:
    """Return the frames of these entries as plain data: a flat list, since a deep pickle fails."""
    return [tuple(_describe(entry, copies)) for entry in entries]


def _describe(entry: TracebackType, copies: Copies) -> PlainFrame:
    frame, code = entry.tb_frame, entry.tb_frame.f_code
    own, of_module = copies.get(id(frame), ({}, {}))
    known = dict(of_module)
    known.update((n, frame.f_globals[n]) for n in ("__file__", "__name__") if n in frame.f_globals)
    line, arguments = entry.tb_lineno or 0, None
    parameters: tuple[str, ...] = ()
    if code.co_flags & inspect.CO_OPTIMIZED:
        stars = bool(code.co_flags & inspect.CO_VARARGS), bool(code.co_flags & inspect.CO_VARKEYWORDS)
        arguments = (code.co_argcount, code.co_kwonlyargcount, *stars)
        parameters = code.co_varnames[: sum(arguments)]
        own = _text_of_missing(parameters, frame.f_locals) | own
    return PlainFrame(
        code.co_filename,
        code.co_name,
        code.co_qualname,
        min(code.co_firstlineno, line),
        line,
        arguments,
        parameters,
        tuple(known.items()),
        tuple(own.items()),
    )


def _text_of_missing(names: Iterable[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a text for each parameter, in case it was not copied: IPython shows all or none of them."""
    kinds = {name: type(values[name]).__qualname__ for name in names if name in values}
    return {name: RemoteLocal(kind, f"<{kind}>") for name, kind in kinds.items()}


def rebuild(frames: Iterable[tuple[Any, ...]], rename: Callable[[str], str]) -> TracebackType | None:
    """Return a traceback of the frames that `describe` has returned, which Python can raise and show.

    Args:
        rename: Returns the name under which a source file is shown here.
    """
    made = None
    for frame in reversed([PlainFrame(*plain) for plain in frames]):
        try:
            _raise_in(frame, rename(original_path(frame.file)))
        except NameError as error:
            raised = error.__traceback__
            while raised is not None and raised.tb_next is not None:
                raised = raised.tb_next
            assert raised is not None
            made = TracebackType(made, raised.tb_frame, raised.tb_lasti, raised.tb_lineno)
    return made


def _raise_in(frame: PlainFrame, file: str) -> None:
    """Raise NameError in a frame that is like this one."""
    names, offset = dict(frame.of_module), frame.line - frame.first_line
    identity: dict[str, Any] = {"co_filename": file, "co_name": frame.name, "co_qualname": frame.qualname}
    identity["co_firstlineno"] = frame.first_line
    if frame.arguments is None:
        exec(_module_stub(offset).replace(**identity), names, dict(frame.variables))
        return
    values = dict(frame.variables)
    variables = tuple(dict.fromkeys([*frame.parameters, *values]))
    deleted = tuple(n for n, name in enumerate(variables) if name not in values)
    code = _function_stub(frame.arguments, len(variables), deleted, offset)
    positional, keyword_only = frame.arguments[:2]
    stub = FunctionType(code.replace(co_varnames=variables, **identity), names, argdefs=(None,) * positional)
    stub.__kwdefaults__ = dict.fromkeys(frame.parameters[positional : positional + keyword_only])
    names[_VALUES] = tuple(map(values.get, variables))
    try:
        stub()
    finally:
        del names[_VALUES]


@functools.lru_cache(maxsize=256)
def _module_stub(offset: int) -> CodeType:
    """Return code that raises NameError `offset` lines below its first one."""
    return compile(_moved(ast.parse(_RAISE), offset), "<stub>", "exec")


@functools.lru_cache(maxsize=256)
def _function_stub(
    arguments: tuple[int, int, bool, bool], count: int, deleted: tuple[int, ...], offset: int
) -> CodeType:
    """Return a function's code likewise, with the variables ``v0``, ``v1`` ... in the order of `co_varnames`.

    It first takes the values of all `count` variables from a global. Those of `deleted` stay without one.
    """
    positional, keyword_only, has_args, has_kwargs = arguments
    every = [f"v{n}" for n in range(count)]
    stars = every[positional + keyword_only :]
    args = f"*{stars.pop(0)}" if has_args else "*"
    parameters = [*every[:positional], *([args] if has_args or keyword_only else [])]
    parameters += [*every[positional : positional + keyword_only], *([f"**{stars[0]}"] if has_kwargs else [])]
    body = [f"[{', '.join(every)}] = {_VALUES}", *[f"del v{n}" for n in deleted], _RAISE]
    tree = ast.parse(f"def stub({', '.join(parameters)}):\n " + "\n ".join(body))
    code = compile(_moved(tree, offset), "<stub>", "exec")
    return next(constant for constant in code.co_consts if isinstance(constant, CodeType))


def _moved(tree: ast.Module, offset: int) -> ast.Module:
    """Put all statements `offset` lines below the first line, without columns, which mark characters."""
    for node in ast.walk(tree):
        if hasattr(node, "col_offset"):
            is_function = isinstance(node, ast.FunctionDef)
            node.lineno = node.end_lineno = 1 if is_function else 1 + offset  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = -1  # type: ignore[attr-defined]  # checked above
    return tree


_RAISE = "raise __a_name_that_nobody_has"
