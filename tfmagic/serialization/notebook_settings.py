"""Settings of the notebook's process that hold on tasks, too: one table of what, how read, how made there.

    notebook: read() ── changes since the last cell ──→ Packed ──→ task: make()

Only what differs from the state at the last cell travels, so that what a task has set itself stays until the
notebook sets that again. A library's settings are read where the notebook has imported it; until then those
with which it begins count as sent. What no table can hold stays here: numpy's random state, formatters of
types, hooks, patched attributes. Under pytest filters of warnings stay here, too: each test has its own.
"""

import contextlib
import functools
import importlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfmagic.serialization import loggers, pandas_options
from tfmagic.system import notices

Found = dict[Any, Any]
Changes = dict[Any, tuple[Any, Any]]
"""By name: the value that the task has from the notebook, and the new one; None for none."""

_OF_EACH_TASK: Any = (b"TF_CONFIG", b"CUDA_VISIBLE_DEVICES", b"MPLBACKEND", b"PYTEST_CURRENT_TEST")
_OF_FRONT_ENDS = ("IPython", "_pytest", "ipykernel", "pytest", "tfmagic", "traitlets")
_PRINTED = ("float_precision", "pprint", "max_seq_length", "max_width", "verbose")
_NUMPY = {
    "edgeitems": 3,
    "threshold": 1000,
    "precision": 8,
    "suppress": False,
    "linewidth": 75,
    "nanstr": "nan",
    "infstr": "inf",
    "sign": "-",
    "formatter": None,
    "floatmode": "maxprec",
    "legacy": False,
}
_NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
_LOGGERS = {"root": (logging.WARNING, True, False)}
_UNSET = (logging.NOTSET, True, False)
_INLINE = ("figure_formats", "print_figure_kwargs", "rc", "close_figures")


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of setting.

    Attributes:
        module: It is read where this module is imported.
        read: Returns the settings by name.
        first: Returns those with which the library begins; {} counts each as new.
        make: Makes changes in the task's process.
        is_early: Whether it must hold before variables arrive there, whose modules are imported then.
        of_thread: Whether each thread has its own; those of the main thread travel.
    """

    module: str
    read: Callable[[], Found]
    first: Callable[[], Found]
    make: Callable[[Changes], None]
    is_early: bool = False
    of_thread: bool = False


# -- of the process --


def _environ() -> Found:
    """Return the variables as bytes: to decode all of them takes 50 times as long."""
    found: Found = os.environ._data.copy()  # type: ignore[attr-defined]
    for name in _OF_EACH_TASK:
        found.pop(name, None)
    return found


def _make_environ(changes: Changes) -> None:
    for name, (_, value) in changes.items():
        if value is None:
            os.environb.pop(name, None)
        else:
            os.environb[name] = value
    if b"TZ" in changes:
        time.tzset()


def _path() -> Found:
    return {"sys.path": tuple(str(entry) for entry in sys.path if isinstance(entry, str))}


def _make_path(changes: Changes) -> None:
    """Remove what the notebook has removed, and put each new entry behind the one before it."""
    before, now = (tuple(entries or ()) for entries in changes["sys.path"])
    for entry in set(before) - set(now):
        with contextlib.suppress(ValueError):
            sys.path.remove(entry)
    for place, entry in enumerate(now):
        if entry not in sys.path:
            left = now[place - 1] if place else None
            sys.path.insert(
                sys.path.index(left) + 1 if left in sys.path else len(sys.path) * bool(place), entry
            )


def _folder() -> Found:
    try:
        return {"folder": os.getcwd()}
    except FileNotFoundError:
        return {}


def _make_folder(changes: Changes) -> None:
    folder = changes["folder"][1]
    if folder and os.path.isdir(folder):
        os.chdir(folder)


# -- of Python's library --


def _filters() -> Found:
    if "_pytest" in sys.modules and "PYTEST_CURRENT_TEST" in os.environ:
        return _first_filters()
    return _filters_among(tuple(warnings.filters))


@functools.lru_cache(1)
def _filters_among(filters: Any) -> Found:
    own = [f for f in filters if f[2].__module__.partition(".")[0] not in _OF_FRONT_ENDS]
    return {"filters": tuple(f for f in own if f[3] != "__main__")}  # Python's own; a pattern if set


def _first_filters() -> Found:
    silent = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
    return {"filters": tuple(("ignore", None, category, None, 0) for category in silent)}


def _make_filters(changes: Changes) -> None:
    """Put filters that are new, or stand further in front, before those of the task; appended ones behind."""
    before, now = (list(filters or ()) for filters in changes["filters"])
    end = max((n for n, entry in enumerate(now, 1) if entry in before), default=len(now))
    kept, left = end, before.copy()
    while kept and now[kept - 1] in left:  # the longest end that stands in the same order
        kept -= 1
        del left[len(left) - 1 - left[::-1].index(now[kept]) :]
    filters: Any = warnings.filters
    for entry in [*(set(before) - set(now)), *now[:kept], *now[end:]]:
        with contextlib.suppress(ValueError):
            filters.remove(entry)
    filters[:0] = now[:kept]
    filters += now[end:]
    with warnings.catch_warnings():  # tells Python that the list has changed
        pass


def _loggers() -> Found:
    root = logging.root
    found: Found = {"root": (root.level, root.propagate, root.disabled, *map(id, root.handlers))}
    for name, logger in list(root.manager.loggerDict.items()):
        if type(logger) is logging.PlaceHolder:
            continue
        state = (logger.level, logger.propagate, logger.disabled)  # type: ignore[union-attr]
        if state != _UNSET and not loggers.is_of_front_end(name):
            found[name] = state
    return found


def _make_loggers(changes: Changes) -> None:
    loggers.bring([settings for _, settings in changes.values()])


def travelling(changes: Mapping[str, Changes], problem_of: Callable[[object], str]) -> dict[str, Changes]:
    """Return changes in the form in which they travel: those of loggers with what makes their handlers."""
    found = dict(changes)
    if "logging" in found:
        found["logging"] = {name: (None, loggers.settings_of(name, problem_of)) for name in found["logging"]}
    return found


def _decimal(context: Any = None) -> Found:
    context = sys.modules["decimal"].getcontext() if context is None else context
    names = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "traps")
    return {name: getattr(context, name) for name in names[:-1]} | {"traps": context.traps.copy()}


def _make_decimal(changes: Changes) -> None:
    context = importlib.import_module("decimal").getcontext()
    for name, (_, value) in changes.items():
        context.traps.update(value) if name == "traps" else setattr(context, name, value)


# -- of libraries --


def _of_numpy(get: str, set_all: str, first: Found) -> Row:
    def make(changes: Changes) -> None:
        getattr(importlib.import_module("numpy"), set_all)(**_new(changes))

    return Row("numpy", lambda: getattr(sys.modules["numpy"], get)(), lambda: first, make, of_thread=True)


def _make_pandas(changes: Changes) -> None:
    pandas_options.set_all(_new(changes))


def _figures(of: str) -> Found:
    params: Any = getattr(sys.modules["matplotlib"], of)
    values = list(dict.values(params))
    if of not in _figures_read or _figures_read[of][0] != values:  # else a tenth of the time
        found: Found = dict(dict.items(params))
        for name in ("backend", "backend_fallback", "interactive"):  # of the front end
            found.pop(name, None)
        _figures_read[of] = values, found
    return _figures_read[of][1]


_figures_read: dict[str, tuple[list[Any], Found]] = {}


def _make_figures(changes: Changes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("matplotlib").rcParams.update(_new(changes))


def _inline_config() -> Any:
    return importlib.import_module("matplotlib_inline.config").InlineBackend


def _inline() -> Found:
    if not (config := _inline_config()).initialized():
        return _first_inline()
    return {name: getattr(config.instance(), name) for name in _INLINE}


def _first_inline() -> Found:
    traits = _inline_config().class_traits()
    return {name: traits[name].default() for name in _INLINE}


def _make_inline(changes: Changes) -> None:
    config = _inline_config().instance(parent=_shell())
    for name, value in _new(changes).items():
        setattr(config, name, value)


def _shell() -> Any:
    return sys.modules["IPython"].get_ipython()  # imported: its row is read, and a task has a shell


def _shell_settings() -> Found:
    if (shell := _shell()) is None:
        return {}
    text = shell.display_formatter.formatters["text/plain"]
    found = {name: getattr(text, name) for name in _PRINTED}
    return {**found, "nodes": shell.ast_node_interactivity, "transformers": tuple(shell.ast_transformers)}


def _first_shell_settings() -> Found:
    shell = _shell()
    if shell is None:
        return {}
    text = type(shell.display_formatter.formatters["text/plain"])
    found = {name: text.class_traits()[name].default_value for name in _PRINTED}
    return {**found, "nodes": "last_expr", "transformers": ()}


def _make_shell_settings(changes: Changes) -> None:
    shell, new = _shell(), _new(changes)
    if "transformers" in new:
        shell.ast_transformers[:] = [t for t in shell.ast_transformers if t not in _transformers]
        _transformers[:] = new.pop("transformers")
        shell.ast_transformers += _transformers
    shell.ast_node_interactivity = new.pop("nodes", shell.ast_node_interactivity)
    for name, value in new.items():
        setattr(shell.display_formatter.formatters["text/plain"], name, value)


_transformers: list[Any] = []  # in a task, those of the notebook; and the rows that were named
_failed = set[str]()


def _keras() -> Found:
    config = sys.modules["keras.config"]
    return {
        "floatx": config.floatx(),
        "epsilon": config.epsilon(),
        "image_data_format": config.image_data_format(),
        "dtype_policy": config.dtype_policy().name,
    }


def _first_keras() -> Found:
    return {
        "floatx": "float32",
        "epsilon": 1e-7,
        "image_data_format": "channels_last",
        "dtype_policy": "float32",
    }


def _make_keras(changes: Changes) -> None:
    config = importlib.import_module("keras").config
    for name, value in _new(changes).items():
        getattr(config, f"set_{name}")(value)


def _new(changes: Changes) -> Found:
    return {name: new for name, (_, new) in changes.items()}


_ROWS = {
    "environment": Row("os", _environ, dict, _make_environ, is_early=True),
    "sys.path": Row("sys", _path, dict, _make_path, is_early=True),
    "folder": Row("os", _folder, dict, _make_folder, is_early=True),
    "recursion": Row(
        "sys",
        lambda: {"depth": sys.getrecursionlimit()},
        lambda: {"depth": 1000},
        lambda changes: sys.setrecursionlimit(changes["depth"][1]),
    ),
    "warnings": Row("warnings", _filters, _first_filters, _make_filters),
    "logging": Row("logging", _loggers, lambda: _LOGGERS, _make_loggers),
    "decimal": Row(
        "decimal",
        _decimal,
        lambda: _decimal(sys.modules["decimal"].DefaultContext),
        _make_decimal,
        of_thread=True,
    ),
    "numpy": _of_numpy("get_printoptions", "set_printoptions", _NUMPY),
    "numpy.seterr": _of_numpy("geterr", "seterr", _NUMPY_ERRORS),
    "pandas": Row("pandas._config.config", pandas_options.read, pandas_options.first, _make_pandas),
    "matplotlib": Row(
        "matplotlib", lambda: _figures("rcParams"), lambda: _figures("rcParamsOrig"), _make_figures
    ),
    "InlineBackend": Row("matplotlib_inline.config", _inline, _first_inline, _make_inline),
    "IPython": Row("IPython", _shell_settings, _first_shell_settings, _make_shell_settings),
    "keras": Row("keras.config", _keras, _first_keras, _make_keras),
}
EARLY = frozenset(name for name, row in _ROWS.items() if row.is_early)


# -- all of them --


def read(before: Mapping[str, Found]) -> dict[str, Found]:
    """Return the settings of this process, by row and name; those of another thread as they were."""
    found = dict[str, Found]()
    is_main = threading.current_thread() is threading.main_thread()
    for name, row in _ROWS.items():
        if row.of_thread and not is_main:
            if name in before:
                found[name] = before[name]
        elif row.module in sys.modules:
            try:  # noqa: SIM105 - contextlib.suppress takes half of the time
                found[name] = row.read()
            except Exception:  # a library of another version: its row is left out
                pass
    return found


def changes(before: Mapping[str, Found], now: Mapping[str, Found]) -> dict[str, Changes]:
    """Return what differs, by row. A row that stands in `before` no more is compared with its beginning."""
    found = dict[str, Changes]()
    for row, settings in now.items():
        try:
            if (old := before.get(row)) is None:
                old = _ROWS[row].first()
            if old != settings:
                differs = {n for n in old.keys() | settings.keys() if old.get(n) != settings.get(n)}
                found[row] = {name: (old.get(name), settings.get(name)) for name in differs}
        except Exception:  # a value that cannot be compared, a library of another version
            continue
    return {row: differing for row, differing in found.items() if differing}


def make(found: Mapping[str, Changes]) -> None:
    """Make changes in this process. What fails is named once, and the others are made."""
    for row, differing in found.items():
        try:
            _ROWS[row].make(differing)
        except Exception as error:
            if row not in _failed:
                _failed.add(row)
                names = ", ".join(map(str, differing))
                why = f"{type(error).__name__}: {error}"
                notices.tell(f"tfmagic: settings of the notebook do not hold here: {row} ({names}): {why}")
