"""Let processes of the tests import TensorFlow, and Jupyter's packages, in less CPU time.

Python imports this module at the start of each process of the tests: see `lean_imports` in `conftest`. The programs
of tests/same run without it. Two things differ from other processes:

- Some packages do not import an optional package, as in an installation without it: Keras (a fifth of the time of
  `import tensorflow`), and `jsonschema`, for a format of addresses that no notebook has (1.1 of 1.3 s of `import
  nbformat`). All other modules can import these.
- The garbage collector does not run while TensorFlow is imported, and does not look at the imported objects later,
  as in a launcher: in other processes it takes two fifths of the time, half of it at the end of the process.

Where TEST_TIMES is set, each import of TensorFlow is noted: for which test, and its CPU time. See `times`.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # that of `typing`, whose import each process would pay for
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_OPTIONAL = {"matplotlib": "keras.", "pandas": "keras.", "sklearn": "keras.", "rfc3987_syntax": "jsonschema."}


class ForTests:
    """A finder that raises ImportError for optional packages, and calms the collector for TensorFlow."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in _OPTIONAL:
            frame = sys._getframe(1)
            while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib."):
                frame = frame.f_back
            if frame is not None and frame.f_globals.get("__name__", "").startswith(_OPTIONAL[name]):
                raise ModuleNotFoundError(f"No module named {name!r}, in tests", name=name)
        if name == "tensorflow":
            return _uncollected(PathFinder.find_spec(name, path, target))
        return None


def _uncollected(spec: ModuleSpec | None) -> ModuleSpec | None:
    """Let the module be executed without the garbage collector, which then ignores what exists."""
    if spec is None or spec.loader is None:
        return spec
    execute = spec.loader.exec_module

    def exec_module(module: ModuleType) -> None:
        is_collected, began = gc.isenabled(), time.process_time()
        gc.disable()
        try:
            execute(module)
        finally:
            if is_collected:  # the launcher disables it itself
                gc.freeze()
                gc.enable()
            _note(time.process_time() - began)

    spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def _note(seconds: float) -> None:
    if target := os.environ.get("TEST_TIMES"):
        file = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
        if not file.startswith("tests/"):
            file = "other sessions"  # of the pytest plugin's tests
        try:
            with open(f"{target}.imports", "a") as noted:
                noted.write(f"{seconds:.2f} {file}\n")
        except OSError:  # another user's, or after the end of the run
            pass


sys.meta_path.insert(0, ForTests)
