"""Keep Keras from importing optional packages, which take a fifth of the time of `import tensorflow`.

Python imports this module at the start of each process of the tests: see `lean_imports` in `conftest`. Keras is
then as in an installation without scikit-learn and matplotlib. All other modules can import these. The programs of
tests/same run without this module.
"""

from __future__ import annotations

import sys
from typing import Any

_OPTIONAL = ("sklearn", "matplotlib")


class NotForKeras:
    """A finder that raises ImportError for optional packages if a module of Keras imports them."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name in _OPTIONAL:
            frame = sys._getframe(1)
            while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib."):
                frame = frame.f_back
            if frame is not None and frame.f_globals.get("__name__", "").startswith("keras."):
                raise ModuleNotFoundError(f"No module named {name!r}, for Keras in tests", name=name)


sys.meta_path.insert(0, NotForKeras)
