"""What a line command of ``%tfcluster`` is: one function, which gets the notebook, and its options by name.

    @line_command("wait", "wait for the cells that were started with --detach", option("--timeout", ...))
    def _wait(magics: NotebookClusters, name: str, timeout: float | None) -> None: ...

The decorator adds it to `COMMANDS`, from which dispatch, help and completion are made. A feature has its
commands in a module ``lines``, and what it needs of the notebook is a `Notebook`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

Option = tuple[str, dict[str, Any]]
Run = Callable[..., None]
Methods = TypeVar("Methods", covariant=True)


class Notebook(Protocol[Methods]):
    """What a line command of a feature can use: the shell, and clusters with the feature's methods."""

    @property
    def shell(self) -> Any:
        """IPython's shell."""

    def known(self, name: str) -> Methods:
        """Return a cluster, running or stopped. Raise `UsageError` if there is none."""

    def running(self, name: str) -> Methods:
        """Return a cluster that runs. Raise `UsageError` if there is none."""


class LineCommand(NamedTuple):
    """A command of ``%tfcluster``."""

    summary: str
    options: tuple[Option, ...]
    run: Run
    elsewhere: tuple[str, ...] = ()  # what other tools call it


COMMANDS: dict[str, LineCommand] = {}  # filled by `line_command`


def option(name: str, metavar: str | None, help_text: str, **how: Any) -> Option:
    """Declare an argument of a line.

    Args:
        name: The option, such as ``--on``, or the name of a positional argument.
        metavar: Stands for the value in the help; None shows the choices.
        **how: Further arguments of `argparse.ArgumentParser.add_argument`.
    """
    return name, {"metavar": metavar, "help": help_text, **how}


def flag(name: str, help_text: str, **how: Any) -> Option:
    """Declare an option without a value, which is True where the line has it."""
    return name, {"action": "store_true", "help": help_text, **how}


ON = option("--on", "SELECTOR", "tasks, by selector")


def line_command(
    name: str, summary: str, *options: Option, after: str = "", elsewhere: tuple[str, ...] = ()
) -> Callable[[Run], Run]:
    """Add a function to `COMMANDS`.

    Args:
        after: The command that it follows in lists; by default it is the last one.
        elsewhere: What other tools call it: who types that is asked whether this command is meant.
    """

    def add(run: Run) -> Run:
        COMMANDS.pop(name, None)
        found, names = list(COMMANDS.items()), list(COMMANDS)
        place = names.index(after) + 1 if after in names else len(names)
        COMMANDS.clear()
        COMMANDS.update(
            [*found[:place], (name, LineCommand(summary, options, run, elsewhere)), *found[place:]]
        )
        return run

    return add
