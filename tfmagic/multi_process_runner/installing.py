"""`install`: replaces TensorFlow's runner module in this process, and in those that a runner starts.

TensorFlow's own helpers (`multi_worker_test_base.create_multi_process_cluster`, the pools of `combinations`
and `strategy_combinations`) have imported the runner by name. So every loaded module that has the module, or
a function or class of it, gets ours. TensorFlow is not imported for that.
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
_keep: list[types.ModuleType] = []  # a module that is collected empties the globals of its functions


def install() -> None:
    """Replace ``tensorflow.python.distribute.multi_process_runner`` by this module.

    This holds for modules that have imported it or will import it, in this process and in all that a runner
    or a pool starts. A script is then imported by its processes, as `multiprocessing` does it, and
    `MultiProcessRunner` waits for peers by default. A second call replaces what was imported since the first.
    """
    ours, theirs = sys.modules[_OURS], sys.modules.get(_THEIRS)
    sys.modules[_THEIRS] = ours
    if theirs is None or theirs is ours:
        return
    names = [name for name in vars(ours)["__all__"] if name in vars(theirs)]
    ours_for = {id(vars(theirs)[name]): getattr(ours, name) for name in names} | {id(theirs): ours}
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module not in (ours, theirs):
            found = {k: ours_for[id(v)] for k, v in list(vars(module).items()) if id(v) in ours_for}
            vars(module).update(found)
    _keep.append(theirs)


def is_installed() -> bool:
    """Check whether `install` was called in this process."""
    return sys.modules.get(_THEIRS) is sys.modules[_OURS]


def call_installed(setup: Setup, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Do as `call_plain`, in a process whose starter has called `install`."""
    install()
    return call_plain(setup, fn, *args, **kwargs)


def prepare_installed(setup: Setup) -> None:
    """Do as `prepare_plain`, in a process whose starter has called `install`."""
    install()
    prepare_plain(setup)
