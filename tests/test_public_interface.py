"""The public interface is the one that public_interface.txt lists: names, signatures, options, settings and metrics.

A change of the file is a change for users. A name that goes stays for one release, with a DeprecationWarning that says
what to write instead (CONTRIBUTING.md). Write the file again with ``python tests/test_public_interface.py``.
"""

import difflib
import inspect
import typing
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).with_name("public_interface.txt")
MODULES = (
    *("tfmagic", "tfmagic.hdf5", "tfmagic.logdir", "tfmagic.multi_process_runner", "tfmagic.testing"),
    "tfmagic.tfrecord",
)


def lines() -> Iterator[str]:
    """Yield a line for each part of the interface."""
    from importlib import import_module

    from tfmagic import TFCluster
    from tfmagic.features.metrics import server as metrics
    from tfmagic.frontends.cli import parsers
    from tfmagic.frontends.notebook import options, whole

    for module in map(import_module, MODULES):
        for name in sorted(module.__all__):
            yield from _names(f"{module.__name__}.{name}", getattr(module, name))
    assert whole.COMMAND_MODULES
    yield from _options("%%tfcluster", options.cell_parser())
    for name in sorted(options.COMMANDS):
        yield from _options(f"%tfcluster {name}", options.line_parser(name))
    for name in sorted(parsers.PAGES):
        yield from _options(f"tfmagic {name}", parsers.make_parser(name))
    for name, trait in sorted(TFCluster.class_own_traits().items()):
        if trait.help:
            yield f"TFCluster.{name}: {type(trait).__name__} = {trait.default_value!r}"
    for family in metrics._new_families().values():
        yield f"metric {family.name}: {family.type}"


def _names(path: str, item: object) -> Iterator[str]:
    if isinstance(item, type):
        yield f"class {path}({', '.join(base.__name__ for base in item.__bases__)})"
        for name, member in sorted(inspect.getmembers_static(item)):
            owner = next(base for base in item.__mro__ if name in vars(base))
            if name.startswith("_") or not owner.__module__.startswith("tfmagic"):
                continue
            if callable(member) or isinstance(member, (staticmethod, classmethod)):
                yield f"{path}.{name}{_signature(getattr(item, name))}"
            else:
                yield f"{path}.{name}"
    elif callable(item):
        yield f"{path}{_signature(item)}"
    else:
        yield f"{path}: {type(item).__name__}"


def _signature(function: typing.Any) -> str:
    """Return the parameters with their defaults; annotations are mypy's to hold."""
    signature = inspect.signature(function)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def _options(command: str, parser: ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        words = action.option_strings or [action.dest]
        if "--help" not in words and action.help != SUPPRESS:  # which only our own code writes
            yield f"{command} {' '.join(words)} {action.metavar or ''}".rstrip()


def test_the_public_interface_is_the_one_that_is_written_down():
    changes = list(
        difflib.unified_diff(
            FILE.read_text("utf-8").splitlines(), list(lines()), "written", "real", "", "", 0
        )
    )
    assert changes == [], "\n".join(changes)


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", "utf-8")
