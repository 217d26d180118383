"""Import the caller's script in its tasks, as the workers of `multiprocessing` do; and absl's flags.

    caller: find_script() ── with the boot ──→ task: load_script() ── as ``__mp_main__``, once

Most of what a test script defines cannot travel by value: test classes that a decorator has made, pools,
patches of TensorFlow at the top of the file. So its tasks import it before their first call, and find
functions, classes and globals by name. Code under ``if __name__ == "__main__":`` is not run. Other scripts,
and notebooks, send what a call needs by value (`tfmagic.serialization.capture`).

`absl.flags.FLAGS` refuses to be pickled, and a function of a script that reads a flag needs it. The task has
the flags of every module that it imports; those of the script are made again, with the caller's values.
"""

import ast
import functools
import sys
import types
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from tfmagic.protocol.commands import MainScript
from tfmagic.serialization.free_names import names_assigned

_NAME = "__mp_main__"  # as in `multiprocessing`; in the caller another name of __main__
_loaded: MainScript | None = None  # in a task: the caller's
_is_loading = False
_OTHERS = ("absl.", "tensorflow.")  # the task has their flags, with values of its own


def find_script(always: bool) -> MainScript | None:
    """Return the script that tasks import; None where they import none.

    Args:
        always: Also return a script that defines no `unittest.TestCase`.
    """
    if _loaded is not None:
        return _loaded
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    name = getattr(spec, "name", "")
    is_tool = name == "__main__" or name.endswith(".__main__")  # ``python -m pytest``
    if not file or not file.endswith(".py") or is_tool or hasattr(main, "get_ipython"):
        return None
    if not (always or _defines_tests(main)) or not Path(file).is_file():
        return None
    sys.modules[_NAME] = main  # values from tasks name its classes by this module
    return MainScript(str(Path(file).absolute()), tuple(sys.argv), name.rpartition(".")[0])


def _defines_tests(main: types.ModuleType) -> bool:
    unittest = sys.modules.get("unittest.case")
    if unittest is None:
        return False
    classes = [value for value in list(vars(main).values()) if isinstance(value, type)]
    return any(c.__module__ == "__main__" and issubclass(c, unittest.TestCase) for c in classes)


@functools.lru_cache(maxsize=8)
def names_of(script: MainScript) -> frozenset[str]:
    """Return the global names that an import of the script assigns."""
    tree = ast.parse(Path(script.file).read_bytes(), script.file)
    tree.body = [statement for statement in tree.body if not _asks_for_main(statement)]
    return names_assigned(ast.unparse(tree))


def _asks_for_main(statement: ast.stmt) -> bool:
    test = statement.test if isinstance(statement, ast.If) else None
    left = test.left if isinstance(test, ast.Compare) else None
    return isinstance(left, ast.Name) and left.id == "__name__"


def load_script(script: MainScript, namespace: dict[str, Any]) -> None:
    """Import the script into `namespace`, the ``__main__`` of this task. Raises what the script raises."""
    global _loaded, _is_loading
    _loaded = script
    sys.modules[_NAME] = sys.modules["__main__"]
    sys.argv = list(script.argv)
    loader = SourceFileLoader(_NAME, script.file)
    namespace.update(__name__=_NAME, __file__=script.file, __loader__=loader)
    namespace.update(__package__=script.package or None, __spec__=None)
    code = loader.get_code(_NAME)
    _is_loading = True
    try:
        exec(code, namespace)  # type: ignore[arg-type]  # a source has code
    finally:
        _is_loading = False


def refuse_while_loading() -> None:
    """Raise RuntimeError if a script that a task is importing starts processes itself."""
    if _is_loading:
        raise RuntimeError(
            f"{_loaded.file if _loaded else 'the script'} starts processes while one of them imports "
            'it; put what starts them under  if __name__ == "__main__":'
        )


# ---- absl's flags --------------------------------------------------------------------------------


def is_flags(obj: object) -> bool:
    """Check whether it is absl's set of all flags, without importing absl."""
    module = sys.modules.get("absl.flags")
    return module is not None and obj is module.FLAGS


def reduce_flags(flags: Any) -> tuple[Any, ...]:
    """Return how `pickle` rebuilds the flags: the script's, and those given by hand, with their values."""
    values = {
        flag.name: flag.value
        for module, found in flags.flags_by_module_dict().items()
        for flag in found
        if flag.present or not module.startswith(_OTHERS)
    }
    return take_flags, (values, flags.is_parsed())


def take_flags(values: Mapping[str, Any], is_parsed: bool) -> Any:
    """Return the flags of this process, with these values, which were parsed and checked by the caller."""
    from absl import flags

    for name, value in values.items():
        if name not in flags.FLAGS:
            flags.FLAGS[name] = flags.Flag(flags.ArgumentParser(), None, name, None, "as the caller has it")
        flags.FLAGS[name].value = value
    if is_parsed:
        flags.FLAGS.mark_as_parsed()
    return flags.FLAGS
