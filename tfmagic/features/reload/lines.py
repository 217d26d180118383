"""The line command ``%tfcluster reload``."""

from collections.abc import Iterable, Mapping, Sequence

from IPython.core.error import UsageError

from tfmagic.clusters.api.lines import ON, Notebook, line_command, option
from tfmagic.features.reload.methods import Reloading


@line_command(
    "reload",
    "reload modules on the tasks, after a change of their files:  reload MODULE [MODULE...] [--on SELECTOR]",
    option("modules", "MODULE", "a module of yours, with its submodules", nargs="+"),
    ON,
    after="pull",
)
def _reload(magics: Notebook[Reloading], name: str, modules: list[str], on: str | None) -> None:
    cluster = magics.running(name)
    try:
        found = cluster.reload(*modules, on=on or "all")
    except ValueError as error:
        raise UsageError(str(error)) from None
    for text in _describe(modules, found):
        print(f"tfmagic: {text}")


def _describe(asked: Iterable[str], found: Mapping[str, Sequence[str]]) -> list[str]:
    """Return which tasks have reloaded what, and which had not imported it.

    Args:
        asked: Names of modules.
        found: The modules that each task has reloaded, by its name.
    """
    tasks: dict[str, list[str]] = {}
    for task, modules in found.items():
        tasks.setdefault(f"reloaded {', '.join(modules)}" if modules else "", []).append(task)
    lines = [f"{', '.join(those)} {text}" for text, those in tasks.items() if text]
    for name in asked:
        without = [task for task, modules in found.items() if name not in modules]
        if without:
            lines.append(f"{', '.join(without)} had not imported {name}; an import reads the present file")
    return lines
