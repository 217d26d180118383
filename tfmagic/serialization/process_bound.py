"""Values that belong to their process: refuse to pickle them, or pickle a test case without them.

    def test_a(self):
        def fn():
            self.assertEqual(...)       # fn refers to the test case, and that to the whole of pytest
        cluster.run(fn)

A `unittest.TestCase` (absl's and TensorFlow's too) arrives with those attributes that can be pickled. Reading
another attribute there is an `AttributeError` with the reason.
"""

import io
import sys
import threading
from collections.abc import Callable
from typing import Any

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_IN_MEMORY = (io.BytesIO, io.StringIO)
_STREAMS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")

_OF_PYTEST = {  # modules of `_pytest`
    "cacheprovider", "capture", "config", "doctest", "fixtures", "legacypath", "logging", "main",
    "monkeypatch", "nodes", "pytester", "python", "recwarn", "subtests", "terminal", "tmpdir", "unittest",
}  # fmt: skip


class StaysHere(TypeError):
    """The value belongs to its process; the message names an alternative."""


def home_of(kind: type) -> str:
    """Return the module of a class; "" if its `__module__` is none: sympy makes such classes."""
    module = getattr(kind, "__module__", "")
    return module if isinstance(module, str) else ""


def stream_name(obj: object) -> str:
    """Return the name of a standard stream in `sys`; "" for anything else."""
    if not isinstance(obj, io.IOBase):
        return ""
    return next((name for name in _STREAMS if getattr(sys, name) is obj), "")


def refuse_what_stays(obj: Any, is_for_notebook: bool) -> None:
    """Raise `StaysHere`, or TypeError for the test run or a cluster, if a copy is useless or does harm.

    A lock in a result, which is pickled `is_for_notebook`, does no harm.
    """
    module = home_of(type(obj))
    if module.startswith("_pytest.") and module.split(".")[1] in _OF_PYTEST:
        raise TypeError(f"pytest's {type(obj).__qualname__} belongs to the test run and stays there")
    if module in ("tfmagic.clusters.cluster", "tfmagic.clusters.running_cluster"):
        raise TypeError("a cluster belongs to the process that started it and stays there")
    if isinstance(obj, io.IOBase) and not isinstance(obj, _IN_MEMORY):
        _refuse_file(obj)
    if not is_for_notebook and (what := _of_page(obj)):
        raise StaysHere(f"{what} belongs to the page of the process that made it; make it in the cell")
    if isinstance(obj, threading.Thread):
        raise StaysHere("a thread runs in the process that started it; start one in the cell")
    if isinstance(obj, _LOCKS) and not is_for_notebook:
        raise StaysHere(
            "a lock holds for the threads of one process, and each task would have one of its own; make it "
            "in the cell, or let tasks wait for each other with tfmagic.barrier()"
        )


def _of_page(obj: Any) -> str:
    """Return what a value is that the page shows, and changes; "" for anything else."""
    widgets, bars = sys.modules.get("ipywidgets.widgets.widget"), sys.modules.get("tqdm.notebook")
    if bars is not None and isinstance(obj, bars.tqdm_notebook):
        return "a progress bar of tqdm.notebook"
    return "a widget" if widgets is not None and isinstance(obj, widgets.Widget) else ""


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


# ---- test cases ----------------------------------------------------------------------------------

_AS_NEW: dict[str, Callable[[], Any]] = {  # as __init__ makes them
    "_outcome": lambda: None,
    "_cleanups": list,
    "_subtest": lambda: None,
    "_threads": list,  # these two are TensorFlow's
    "_cached_session": lambda: None,
}
_OF_THE_RUN = frozenset({*_AS_NEW, "_exit_stack", "_cls_exit_stack"})  # and these absl's
_ONLY_HERE = ("test", "setUp", "tearDown")
_LEFT = "_tfmagic_left"  # {attribute: why it did not travel}, in the task


def is_test_case(value: object) -> bool:
    """Check whether it is a `unittest.TestCase` whose class does not define how it is pickled."""
    unittest = sys.modules.get("unittest.case")
    if unittest is None or not isinstance(value, unittest.TestCase):
        return False
    own = ("__reduce__", "__reduce_ex__", "__getstate__")
    dill = sys.modules.get("dill")
    if dill is not None and type(value) in getattr(dill.Pickler, "dispatch", ()):  # by `dill.register`
        return False
    return all(getattr(type(value), name) is getattr(object, name) for name in own)


def is_test(cls: type, name: str) -> bool:
    """Check whether this member of a class is a test, or prepares one: no task runs these."""
    unittest = sys.modules.get("unittest.case")
    return unittest is not None and issubclass(cls, unittest.TestCase) and name.startswith(_ONLY_HERE)


def reduce_test_case(test: Any, problem_of: Callable[[object], str]) -> tuple[Any, ...]:
    """Return how `pickle` rebuilds a test case. `problem_of` gives why a value cannot travel, or ""."""
    kept, left = {}, {}
    for name, value in vars(test).items():
        if name in _OF_THE_RUN or name == getattr(test, "_testMethodName", None):
            left[name] = "it belongs to the test run"
        elif problem := problem_of(value):
            left[name] = problem
        else:
            kept[name] = value
    return _make_test_case, (type(test),), (kept, left), None, None, _restore_test_case


def _make_test_case(cls: Any) -> Any:
    return cls.__new__(cls)


def _restore_test_case(test: Any, state: tuple[dict[str, Any], dict[str, str]]) -> None:
    from unittest import TestCase

    kept, left = state
    TestCase.__getattr__ = _explain_missing  # type: ignore[attr-defined]  # of this task process
    vars(test).update(kept)
    vars(test).update({name: make() for name, make in _AS_NEW.items() if name in left})
    vars(test)[_LEFT] = left


def _explain_missing(test: Any, name: str) -> Any:
    """Raise the AttributeError of a missing attribute, with the reason if it did not travel."""
    message = f"{type(test).__name__!r} object has no attribute {name!r}"
    why = vars(test).get(_LEFT, {}).get(name)
    if why:
        message += f" on a task: it did not travel there ({why}). Make it inside the function"
    raise AttributeError(message, name=name, obj=test)
