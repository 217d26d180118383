"""Break the private parts of other packages on which the rows of a table rely. Used in processes of their own."""

import contextlib
import importlib
import sys

from tfmagic.system import patches as tables


def places(row):
    """Return what is changed where a row is broken."""
    return {tables._parse(target)[:2] for target in row.targets} | ({"slots"} if row.probe else set())


def break_target(target):
    """Delete what a target names, or put something of another shape there."""
    _, _, parameters, names = tables._parse(target)
    owner, attribute = tables.place(target.removesuffix(".__dict__"))
    if parameters or names:
        setattr(owner, attribute, lambda: None)
    else:
        delattr(owner, attribute)


def break_row(row):
    """Break all targets of a row, and what its own probe needs."""
    for target in row.targets:
        break_target(target)
    if row.probe:
        module = importlib.import_module(row.probe.partition(":")[0])
        if hasattr(module, "symbol_interposing"):
            module.symbol_interposing.find_slots = lambda folders, function: []
        else:
            module._CALL = "what IPython wrote before"


class _BeforeTheProbe:
    """Breaks all rows as soon as TensorFlow is imported: before the program of a task is."""

    def find_spec(self, name, path=None, target=None):
        if name == "tfmagic.task.program":
            sys.meta_path.remove(self)
            from tfmagic.task.tensorflow import patches

            rows = [row for row in patches.TABLE.rows.values() if "tf_keras" not in row.only]
            kept = places(patches.TABLE.rows[patches.FORKS])
            for target in {target for row in rows for target in row.targets}:
                if tables._parse(target)[:2] in kept:
                    continue
                with contextlib.suppress(AttributeError, ValueError):  # it is part of another one
                    break_target(target)
            importlib.import_module("tfmagic.system.symbol_interposing").find_slots = lambda *of: []


def break_all_rows():
    """Break all rows of TensorFlow and Keras, but that of forks, when TensorFlow is imported in this process."""
    sys.meta_path.insert(0, _BeforeTheProbe())
