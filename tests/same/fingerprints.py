"""Describe values, names and errors as text that is equal for equal objects in different processes.

Imported by the bare kernel, by the notebook's kernel and by the tasks. Imports nothing heavy itself.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
from collections.abc import Mapping
from typing import Any

_LIMIT = 4000  # characters of one description
_DEPTH = 4
_UNSTEADY = frozenset(  # packages whose objects show process ids, threads, times or addresses
    {"IPython", "asyncio", "concurrent", "http", "ipykernel", "logging", "multiprocessing", "socket"}
    | {"subprocess", "tfmagic", "threading", "_thread", "_asyncio", "_queue"}
)
_OUR_NOTES = re.compile(r"^(raised on |also on |hint: |stayed on the task)")
_CELL_FILE = re.compile(
    r"(<?/tmp/ipykernel_\d+/\d+\.py>?|<?Cell In ?\[\d+\](?: \(\d+\))?>?|<ipython-input-[^>]*>)"
)
_REPLACED = (
    (re.compile(r"<>(?=:\d+: SyntaxWarning)"), "<cell>"),  # IPython compiles a cell twice
    (_CELL_FILE, "<cell>"),
    (re.compile(r"\(<string>, line "), "(<cell>, line "),  # a TabError of a plain kernel on Python 3.13
    (re.compile(r"0x[0-9a-fA-F]{6,}"), "0x…"),
    (re.compile(r"tmp[a-z0-9_]{8}\b"), "tmp…"),
    (re.compile(r"\b\d{5,}\.py\b"), "<cell>"),  # a SyntaxError of a plain kernel shows the base name
    (re.compile(r"\bpid[ =]\d+\b"), "pid …"),
    (re.compile(r"(<_io\.\w+ name=)\d+"), r"\1…"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "id…"),
    (re.compile(r"(__inference_\w+?_|Dataset:)\d+\b"), r"\1…"),
    (re.compile(r"\b(sequential|functional|dense|model|net)_\d+\b"), r"\1"),  # Keras counts in a process
    (re.compile(r'^ *File "(?!<cell>).*\n+', re.MULTILINE), ""),  # frames of a graph error
)


def normalize(text: str) -> str:
    """Replace the parts that differ between two processes: addresses, temporary names, the names of cells."""
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return text


def describe(value: Any, depth: int = _DEPTH) -> str:
    """Describe a value by its type and its repr, or by its parts. A tensor is described as its array."""
    try:
        return normalize(_describe(value, depth))[:_LIMIT]
    except Exception as error:
        return f"{type(value).__qualname__}: describing it raises {type(error).__name__}: {error}"


def _describe(value: Any, depth: int) -> str:
    kind = type(value)
    if kind.__module__.startswith("tensorflow.") and hasattr(value, "numpy") and depth:
        return _describe(value.numpy(), depth - 1)
    if any(
        base.__name__ == "DatasetV2" for base in kind.__mro__
    ):  # the class differs after the value was sent
        return f"a data set of {value.element_spec}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    if isinstance(value, types.FunctionType):
        return f"function {value.__module__}.{value.__qualname__}{inspect.signature(value)}"
    if depth and kind in (list, tuple):
        return f"{kind.__name__}({', '.join(_describe(item, depth - 1) for item in value)})"
    if depth and kind in (set, frozenset):
        return f"{kind.__name__}({', '.join(sorted(_describe(item, depth - 1) for item in value))})"
    if depth and kind is dict:
        return f"dict({', '.join(f'{_describe(k, 0)}: {_describe(v, depth - 1)}' for k, v in value.items())})"
    return f"{kind.__module__}.{kind.__qualname__} {_describe_instance(value, depth)}"


def _describe_instance(value: Any, depth: int) -> str:
    kind = type(value)
    if kind.__name__ == "RemoteValue":
        return f"a value that stays on its task: {value.reason}"
    if kind.__module__.partition(".")[0] in _UNSTEADY:
        return ""
    if kind.__repr__ is object.__repr__ and depth and isinstance(getattr(value, "__dict__", None), dict):
        return (
            _describe(dict(sorted(vars(value).items())), depth - 1) if kind.__module__ == "__main__" else ""
        )
    if (
        kind.__module__.startswith("numpy.ma") and kind.__name__ == "MaskedArray"
    ):  # pickle changes mask and fill value
        return f"masked {value.dtype} {value.shape} {value.tolist()}"
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return f"{value.dtype} {value.shape} {value!r}"
    try:
        return repr(value)
    except Exception as error:
        return f"its repr raises {type(error).__name__}: {error}"


def describe_names(namespace: Mapping[str, Any]) -> str:
    """Describe the variables of a session, as JSON; those of IPython itself are left out."""
    return json.dumps({n: describe(v) for n, v in sorted(namespace.items()) if _is_the_users(n)})


def _is_the_users(name: str) -> bool:
    """Return whether a name is the program's own. Names that begin with `_` have values that differ by run."""
    own = {"In", "Out", "exit", "quit", "open", "get_ipython", "_same_value"}
    return name not in own and not name.startswith("_")


def restart_session(shell: Any) -> None:
    """Reset a session: no variables, no outputs, no flags of `from __future__`."""
    forget_last_error()
    clear(shell.user_ns)
    shell.displayhook.flush()
    shell.push(dict.fromkeys(("_", "__", "___"), ""), interactive=False)
    for name in ("_", "__", "___"):  # IPython stops binding them once their values are not its own
        setattr(shell.displayhook, name, "")


def take_names(namespace: dict[str, Any]) -> str:
    """Describe the variables of a session, as JSON, and delete them for the next program."""
    found = describe_names(namespace)
    clear(namespace)
    return found


def clear(namespace: dict[str, Any]) -> None:
    """Delete the variables of a session, and the compiler flags of a `from __future__`."""
    namespace["get_ipython"]().compile.reset_compiler_flags()
    own = re.compile(r"_+|_i*\d*|_(dh|oh|ih|exit_code)|__\w+__")
    for name in [n for n in namespace if _is_the_users(n) or (n[0] == "_" and not own.fullmatch(n))]:
        del namespace[name]


def describe_last_error() -> str:
    """Describe the error that the shell showed last, with its causes, as JSON; forget it."""
    error = getattr(sys, "last_value", None)
    forget_last_error()
    found = []
    while error is not None and len(found) < 10:
        found.append(_describe_error(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return json.dumps(found)


def _describe_error(error: BaseException) -> dict[str, Any]:
    lines = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        line = [traceback.tb_lineno, code.co_name]
        if _CELL_FILE.match(code.co_filename) and lines[-1:] != [line]:  # a recursion is one line
            lines.append(line)
        traceback = traceback.tb_next
    kind = type(error)
    described = {
        "type": f"{kind.__module__}.{kind.__qualname__}",
        "message": normalize(str(error)),
        "notes": [n for n in getattr(error, "__notes__", ()) if not _OUR_NOTES.match(str(n))],
        "lines": lines,
    }
    if isinstance(error, SyntaxError):
        described["place"] = [error.lineno, error.offset, (error.text or "").rstrip("\n")]
    if isinstance(error, BaseExceptionGroup):
        described["parts"] = [_describe_error(part) for part in error.exceptions]
    return described


def forget_last_error() -> None:
    """Forget the error that the shell showed last."""
    for name in ("last_exc", "last_value", "last_type", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
