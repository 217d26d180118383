"""Ours in the place of TensorFlow's module, in this process and in those that it starts.

TensorFlow's own helpers (`multi_worker_test_base.create_multi_process_cluster`, the pools of `combinations`
and `strategy_combinations`) look for the runner in their own module, wherever they were imported: so each
module that has it gets ours. TensorFlow is not imported for that.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

from tfmagic.task.tensorflow.test_setup import Setup, call_plain, prepare_plain

T = TypeVar("T")
_PACKAGE = "tensorflow.python.distribute"
_THEIRS = f"{_PACKAGE}.multi_process_runner"
_OURS = "tfmagic.multi_process_runner"


def install() -> None:
    """Put this module in the place of ``tensorflow.python.distribute.multi_process_runner``.

    Modules that have imported TensorFlow's, or a function or class of it by name, get ours, and so do those
    that import it later, in this process and in all that a runner or a pool starts. A script is then imported
    by its processes, as `multiprocessing` does it, and `MultiProcessRunner` waits for peers by default. A
    second call changes what was imported since the first.
    """
    ours, theirs = sys.modules[_OURS], sys.modules.get(_THEIRS)
    sys.modules[_THEIRS] = ours
    if theirs is None or theirs is ours:
        return
    names = [name for name in vars(ours)["__all__"] if name in vars(theirs)]
    put = {id(vars(theirs)[name]): getattr(ours, name) for name in names} | {id(theirs): ours}
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module not in (ours, theirs):
            _replace(vars(module), put)
    _keep.append(theirs)


def is_installed() -> bool:
    """Return whether `install` was called in this process."""
    return sys.modules.get(_THEIRS) is sys.modules[_OURS]


def call_installed(setup: Setup, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Do as `call_plain`, in a process whose starter has called `install`."""
    install()
    return call_plain(setup, fn, *args, **kwargs)


def prepare_installed(setup: Setup) -> None:
    """Do as `prepare_plain`, in a process whose starter has called `install`."""
    install()
    prepare_plain(setup)


_keep: list[types.ModuleType] = []  # a module that is collected empties the globals of its functions


def _replace(names: dict[str, Any], put: dict[int, Any]) -> None:
    found = {name: put[id(value)] for name, value in list(names.items()) if id(value) in put}
    names.update(found)
