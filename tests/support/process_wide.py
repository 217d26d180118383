"""What a process of pytest shares between its tests: a test that changes it fails, and it is put back.

Otherwise a later test passes, or fails, by what an earlier one has left: `tests/support/order.py` draws the order.
Environment variables, threads and processes are looked at by `conftest` itself.
"""

from __future__ import annotations

import builtins
import copyreg
import gc
import logging
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_HOOKS = (
    *((sys, name) for name in ("excepthook", "unraisablehook", "displayhook", "breakpointhook")),
    *((sys, name) for name in ("stdin", "dont_write_bytecode")),
    (threading, "excepthook"),
)
_SIGNALS = [
    n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM)
]  # pytest-timeout has the alarm
_LIMITS = {name: getattr(resource, f"RLIMIT_{name}") for name in ("NOFILE", "FSIZE", "AS", "CORE")}
_NO_VALUE = object()

State = dict[str, tuple[Any, Callable[[], Any]]]
"""By name: a value, and what puts it back."""


class _Table(dict[Any, Any]):
    """The entries of a table; an import can add some."""


def process_wide() -> State:
    """Return what the tests of this process share."""
    found: State = {}

    def keep(name: str, value: Any, restore: Callable[[Any], Any]) -> None:
        found[name] = value, lambda: restore(value)

    def keep_list(name: str, values: list[Any]) -> None:
        keep(name, list(values), lambda old: values.__setitem__(slice(None), old))

    def keep_table(name: str, table: dict[Any, Any], but: str = "") -> None:
        keep(name, _Table((key, value) for key, value in table.items() if key != but), table.update)

    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if handler is not None:  # one that C has set is not known here
            keep(f"signal {number}", handler, lambda old, n=number: signal.signal(n, old))
    for owner, name in _HOOKS:
        hook = getattr(owner, name)
        if not getattr(hook, "__module__", "").startswith(
            "_pytest."
        ):  # before 8.4 one for each phase of a test
            keep(f"{owner.__name__}.{name}", hook, lambda old, o=owner, n=name: setattr(o, n, old))
    for name in ("path", "argv", "path_hooks", "meta_path"):
        keep_list(f"sys.{name}", getattr(sys, name))
    keep_table("builtins", vars(builtins), but="_")
    for kind, limit in _LIMITS.items():
        keep(f"limit {kind}", resource.getrlimit(limit), lambda old, n=limit: resource.setrlimit(n, old))
    mask = os.umask(0o22)
    os.umask(mask)
    keep("umask", mask, os.umask)
    with suppress(FileNotFoundError):
        keep("working directory", os.getcwd(), os.chdir)
    keep("recursion limit", sys.getrecursionlimit(), sys.setrecursionlimit)
    keep("switch interval", sys.getswitchinterval(), sys.setswitchinterval)
    keep("socket timeout", socket.getdefaulttimeout(), socket.setdefaulttimeout)
    keep("collector", gc.isenabled(), lambda on: gc.enable() if on else gc.disable())
    keep("showwarning", warnings.showwarning, lambda old: setattr(warnings, "showwarning", old))
    keep("logging.disable", logging.root.manager.disable, logging.disable)
    for name, logger in (("root", logging.root), *logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            keep(f"level of {name}", logger.level, logger.setLevel)
            if name != "dill":  # which adds one when it is imported
                keep_list(f"handlers of {name}", logger.handlers)
    keep_table("pickle", pickle._Pickler.dispatch)
    keep_table("copyreg", copyreg.dispatch_table)
    return found | _of_front_end()


def _of_front_end() -> State:
    found: State = {}
    if advice := sys.modules.get("tfmagic.system.advice"):
        chosen = advice._front_end, advice._cluster
        found["words of the front end"] = chosen, lambda: advice.set_front_end(*chosen)
    found["__main__"] = sys.modules["__main__"], lambda old=sys.modules["__main__"]: _set_main(old)
    if interactive := sys.modules.get("IPython.core.interactiveshell"):
        shell = interactive.InteractiveShell._instance
        found["IPython's shell"] = shell, lambda: _set_shell(shell)
    settings = sys.modules.get("tfmagic.clusters.launch.settings")
    if settings is not None and settings.TFCluster.initialized():
        one = settings.TFCluster.instance()
        for name in settings.TFCluster.class_own_traits():
            value = getattr(one, name)
            found[f"TFCluster.{name}"] = value, lambda n=name, v=value: setattr(one, n, v)
    return found


def _set_main(module: Any) -> None:
    sys.modules["__main__"] = module


def _set_shell(shell: Any) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    if shell is not None:
        for kind in type(shell)._walk_mro():
            kind._instance = shell


def changed(before: State, after: State) -> dict[str, str]:
    """Return what a test has changed, in words, by name; what was there only after it came with an import."""
    found = {}
    for name, (value, _) in before.items():
        now = after.get(name, (_NO_VALUE,))[0]
        if isinstance(
            value, _Table
        ):  # one of hundreds of entries: texts for all would cost more than the rest
            entries = [key for key, one in value.items() if not _same(one, now.get(key, _NO_VALUE))]
            if entries:
                found[name] = ", ".join(f"{name}.{entry}" for entry in entries)
            continue
        if name in _GROWING:
            now = [one for one in now if one in value]
        if not _same(value, now):
            found[name] = name
    return found


_GROWING = ("sys.meta_path", "sys.path_hooks")  # an import can add to them


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(a is b or a == b for a, b in zip(one, other, strict=True))
    return one is other or (isinstance(one, int | float | str | tuple | bool) and one == other)


@contextmanager
def restored() -> Iterator[None]:
    """Put back what the block changes, and fail if it has."""
    before = process_wide()
    yield
    found = changed(before, process_wide())
    for name in found:
        before[name][1]()
    assert not found, f"a test must leave the process as it was: {', '.join(found.values())}"


@contextmanager
def other_shell(shell: Any, main: Any) -> Iterator[None]:
    """Let this be the process' shell, and its `__main__`, in the block."""
    from IPython.core.interactiveshell import InteractiveShell

    before = InteractiveShell._instance, sys.modules["__main__"]
    _set_shell(shell)
    _set_main(main)
    try:
        yield
    finally:
        _set_shell(before[0])
        _set_main(before[1])
