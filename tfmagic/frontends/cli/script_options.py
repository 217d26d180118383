"""Finds the options of a script in its source, so that `tfmagic run` leaves them to the script.

"--workers" anywhere                      argparse, click, sys.argv
DEFINE_integer("workers", ...)            absl.flags
def main(workers=8), with fire or typer   which make options of parameters
"""

import ast
import os
import sys
from importlib.machinery import PathFinder

_FROM_PARAMETERS = {"fire", "typer"}


def options_of(target: str, is_module: bool) -> set[str]:
    """Return words of a script or a module that can be its options. Runs no code of the user's."""
    try:
        with open(_module_file(target) if is_module else target, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return set()
    found, parameters, imported = set(), set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                found.add(text)
            case ast.Call(
                func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(text)), *_]
            ) if name.startswith("DEFINE_"):
                found.add(f"--{text}")
            case ast.arg(arg=name):
                parameters.add(f"--{name.replace('_', '-')}")
            case ast.Import(names=names):
                imported |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(name)):
                imported.add(name)
    return found | parameters if imported & _FROM_PARAMETERS else found


def _module_file(name: str) -> str:
    """Return the file of a module, without an import of its packages."""
    folders: list[str] | None = [os.getcwd(), *sys.path]
    parts = name.split(".")
    for place in range(len(parts) + 1):  # a package is run by its __main__
        part = parts[place] if place < len(parts) else "__main__"
        found = PathFinder.find_spec(part, folders)
        if found is None:
            break
        folders, file = found.submodule_search_locations, found.origin
        if folders is None:
            return file or ""
    return ""
