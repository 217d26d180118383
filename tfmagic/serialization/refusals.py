"""Refuse to pickle what belongs to its process: files, threads, locks, pytest, clusters."""

import io
import sys
import threading
from typing import Any

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_IN_MEMORY = (io.BytesIO, io.StringIO)
_STREAMS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")

_OF_PYTEST = frozenset(
    f"_pytest.{name}"
    for name in (
        "cacheprovider", "capture", "config", "doctest", "fixtures", "legacypath", "logging", "main",
        "monkeypatch", "nodes", "pytester", "python", "recwarn", "subtests", "terminal", "tmpdir", "unittest",
    )
)  # fmt: skip


class StaysHere(TypeError):
    """The value belongs to its process; the message names an alternative."""


def stream_name(obj: object) -> str:
    """Return the name of a standard stream in `sys`; "" for anything else."""
    if not isinstance(obj, io.IOBase):
        return ""
    return next((name for name in _STREAMS if getattr(sys, name) is obj), "")


def refuse_what_stays(obj: Any, is_for_notebook: bool) -> None:
    """Raise `StaysHere`, or TypeError for the test run or a cluster, if a copy is useless or does harm.

    A lock in a result, which is pickled `is_for_notebook`, does no harm.
    """
    module = type(obj).__module__
    if module in _OF_PYTEST or module.startswith("_pytest.config."):
        raise TypeError(f"pytest's {type(obj).__qualname__} belongs to the test run and stays there")
    if module in ("tfmagic.clusters.cluster", "tfmagic.clusters.running_cluster"):
        raise TypeError("a cluster belongs to the process that started it and stays there")
    if isinstance(obj, io.IOBase) and not isinstance(obj, _IN_MEMORY):
        _refuse_file(obj)
    if isinstance(obj, threading.Thread):
        raise StaysHere("a thread runs in the process that started it; start one in the cell")
    if isinstance(obj, _LOCKS) and not is_for_notebook:
        raise StaysHere(
            "a lock holds for the threads of one process, and each task would have one of its own; make it "
            "in the cell, or let tasks wait for each other with tfmagic.barrier()"
        )


def _refuse_file(file: Any) -> None:
    try:
        file.fileno()
    except ValueError:  # it has been closed
        pass
    except Exception:  # a class of the user's, whose content is in memory
        return
    name, mode = getattr(file, "name", ""), getattr(file, "mode", "")
    which = f" ({name!r}{f', mode {mode!r}' if mode else ''})" if name else ""
    raise StaysHere(
        f"an open file{which} belongs to the process that opened it; open it in the cell by its path"
    )
