"""Pickle a test case whose method sends a function to the tasks, without what belongs to the test run.

    def test_a(self):
        def fn():
            self.assertEqual(...)       # fn refers to the test case, and that to the whole of pytest
        cluster.run(fn)

A `unittest.TestCase` (absl's and TensorFlow's too) arrives with those attributes that can be pickled. Reading
another attribute there is an `AttributeError` with the reason. `refusals` refuses the objects of pytest.
"""

import sys
from collections.abc import Callable
from typing import Any

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
    if dill is not None and type(value) in dill.Pickler.dispatch:  # by `dill.register`
        return False
    return all(getattr(type(value), name) is getattr(object, name) for name in own)


def members_that_travel(cls: type) -> list[Any]:
    """Return the members of a class that a task can call: no test of a test case is run there."""
    unittest = sys.modules.get("unittest.case")
    if unittest is None or not issubclass(cls, unittest.TestCase):
        return list(vars(cls).values())
    return [value for name, value in vars(cls).items() if not name.startswith(_ONLY_HERE)]


def reduce_test_case(test: Any, problem_of: Callable[[object], str]) -> tuple[Any, ...]:
    """Return how `pickle` makes a test case anew. `problem_of` gives why a value cannot travel, or ""."""
    kept, left = {}, {}
    for name, value in vars(test).items():
        if name in _OF_THE_RUN or name == getattr(test, "_testMethodName", None):
            left[name] = "it belongs to the test run"
        elif problem := problem_of(value):
            left[name] = problem
        else:
            kept[name] = value
    return _make, (type(test),), (kept, left), None, None, _restore


def _make(cls: Any) -> Any:
    return cls.__new__(cls)


def _restore(test: Any, state: tuple[dict[str, Any], dict[str, str]]) -> None:
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
