"""Change another package as soon as it is imported, which is possibly never."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def change_module(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call `change` with a module: now if it has been imported, else once, directly after its import."""
    finders = [finder for finder in sys.meta_path if isinstance(finder, _Finder)]
    if name in sys.modules:
        change(sys.modules[name])
    elif (name, change) not in [(finder.name, finder.change) for finder in finders]:
        sys.meta_path.insert(0, _Finder(name, change))


class _Finder:
    """Finds one module as Python would, and removes itself."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]):
        self.name, self.change = name, change

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # a finder by its method
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self.change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
