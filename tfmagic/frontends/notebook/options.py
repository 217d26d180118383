"""How the lines of ``%%tfcluster`` and ``%tfcluster`` are read: text becomes options by name.

This module has the options of a cell; `tfmagic.clusters.api.lines` has the table of the line commands.
`tfmagic.frontends.notebook.magic` reads lines with it. Only syntax is checked here, and each mistake is a
`UsageError` that names the next step. `completion` completes lines from the same declarations.
"""

from __future__ import annotations

import argparse
import functools
import keyword
import shlex
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from IPython.core.error import UsageError

from tfmagic.clusters.api.lines import COMMANDS, Option, flag, option
from tfmagic.clusters.cells import features
from tfmagic.clusters.cells.cell_plan import CellPlan, Options
from tfmagic.clusters.launch.arguments import parse_seconds
from tfmagic.clusters.launch.given_options import GivenOptions, add_options, given_options
from tfmagic.errors import ClusterSpecError
from tfmagic.frontends import mistyped
from tfmagic.protocol.cluster_spec import check_name
from tfmagic.system.advice import DEFAULT_CLUSTER
from tfmagic.system.features import halves
from tfmagic.system.version import VERSION

DEFAULT_NAME = DEFAULT_CLUSTER
VIEWS = ("auto", "widget", "html", "text", "quiet")
SHAPE: Option = ("shape", {})  # all options of a cluster's shape


class HelpShown(Exception):
    """The line asks for help; the argument is the text to show."""


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError` instead of ending the process.

    Args:
        options: The arguments of the line; `SHAPE` stands for all options of a cluster's shape.
        title: Of the group of the other options; without it they come before those of the shape.
    """

    def __init__(self, prog: str, description: str, *options: Option, title: str = ""):
        super().__init__(
            prog=prog,
            description=description,
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawTextHelpFormatter,
        )
        self.add_argument("--help", "-h", action="store_true", help="show this text")
        self._has_shape = SHAPE in options
        if self._has_shape:
            add_options(self, "shape, when no cluster runs yet (default: two workers)")
        group = self.add_argument_group(title) if title else self
        self._own = [group.add_argument(name, **how) for name, how in options if name != SHAPE[0]]
        self.positionals = [argument for argument in self._own if not argument.option_strings]

    def error(self, message: str) -> NoReturn:
        help_line = self.prog.replace("%%", "%")  # IPython takes no cell magic with an empty body
        raise UsageError(f"{self.prog}: {message}; see {help_line} --help")

    def read(self, line: str) -> dict[str, Any]:
        """Return the options of a line by name. Raise `UsageError`, or `HelpShown` for --help."""
        if "\0" in line:
            self.error("there is a NUL character on the line")
        try:
            words = shlex.split(line)
        except ValueError as error:
            self.error(f"cannot read the options: {error}")
        if "--help" in words or "-h" in words:
            raise HelpShown(self.format_help())
        found = mistyped.read(words, self)
        given = {action.dest: getattr(found, action.dest) for action in self._own}
        return {**given, "shape": given_options(found, self)} if self._has_shape else given


# -- types of arguments ----------------------------------------------------------------------------


def parse_variables(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("it names no variable; write A,B")
    return tuple(map(_parse_variable, names))


def _parse_variable(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a variable name; write A,B")
    if text.startswith("__") and text.endswith("__"):
        raise argparse.ArgumentTypeError(f"{text} is Python's own, and another one in each process")
    return text


def _parse_name(text: str) -> str:
    try:
        check_name(text)
    except ClusterSpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


_CLUSTER = option(
    "--cluster", "NAME", "name of the cluster", dest="name", type=_parse_name, default=DEFAULT_NAME
)

# -- the cell --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLine:
    """The options of a ``%%tfcluster`` line; `cell_parser` explains each."""

    name: str  #: of the cluster
    shape: GivenOptions
    plan: CellPlan  #: without what the body says
    no_capture: bool
    fresh: bool
    detach: bool
    local: bool
    plain: bool
    line: int  #: of the notebook's cell, at which the code begins; 2 is that after ``%%tfcluster``
    view: str

    @property
    def how(self) -> Options:
        """Where and how the cell runs."""
        return self.plan.options


_HOW = {*Options.__struct_fields__} - {"view"}


@functools.cache
def cell_parser() -> Parser:
    """Return the parser of ``%%tfcluster``."""
    return Parser(
        "%%tfcluster",
        "Run the cell on every task of a TensorFlow cluster.",
        SHAPE,
        _CLUSTER,
        option("--on", "SELECTOR", "tasks that run the cell: all, worker, worker-1, worker-0:3, ..."),
        option("--out", "NAME", "bind the results to NAME", type=_parse_variable),
        option("--pull", "A,B", "fetch variables after the cell", type=parse_variables, default=()),
        option("--push", "A,B", "send variables before the cell", type=parse_variables, default=()),
        flag("--no-capture", "send only the variables of --push"),
        flag("--fresh", "run the cell in new processes, which end with it"),
        flag("--detach", "return at once; the cell runs on"),
        flag("--local", "run the cell in the notebook as well, when the tasks have ended it"),
        flag("--plain", argparse.SUPPRESS),  # has no such line in the notebook: see `plain_cells`
        option("--line", None, argparse.SUPPRESS, type=int, default=2),  # likewise, see `one_liners`
        option(
            "--timeout", "SECONDS", "stop the cell then, with stacks", type=parse_seconds, dest="timeout_s"
        ),
        flag("--keep-going", "let the other tasks run on when one fails"),
        option("--view", None, "how output is shown", choices=VIEWS, default="auto"),
        *((name, dict(how)) for each in features.installed() for name, how in each.options.items()),
        title="the cell",
    )


@functools.lru_cache(maxsize=256)
def parse_cell_line(line: str) -> CellLine:
    """Return the options of a ``%%tfcluster`` line; raises as `Parser.read`."""
    parser, own = cell_parser(), {field.name for field in fields(CellLine)}
    if (first := line.partition(" ")[0]) in COMMANDS:
        parser.error(f"unrecognized arguments: {first}; a command is a line of its own:  %tfcluster {line}")
    given = {name: value for name, value in parser.read(line).items() if value is not None}
    run = {name: given.pop(name) for name in given.keys() - own}
    names = {name.strip("-").replace("-", "_") for each in features.installed() for name in each.options}
    chosen = {name: value for name in names & run.keys() if (value := run.pop(name))}
    how = Options(**{name: run.pop(name) for name in _HOW & run.keys()}, chosen=chosen)
    found = CellLine(**given, plan=CellPlan(**run, want_value=bool(how.out), options=how))
    if found.detach and found.fresh:
        parser.error("--detach goes on in a cluster that stays: leave --fresh out")
    if problem := features.refuse(how, found.detach):
        parser.error(problem)
    if how.on is not None and not str(how.on).strip(" ,"):
        parser.error("the selector of --on names no task; write --on all, worker, worker-0 or worker-0:2")
    for way in halves("ways"):
        if way.takes(found) and (problem := way.refuse(found)):
            parser.error(problem)
    return found


# -- line commands ---------------------------------------------------------------------------------


@functools.cache
def line_parser(name: str) -> Parser:
    """Return the parser of a line command."""
    return Parser(f"%tfcluster {name}", COMMANDS[name].summary, _CLUSTER, *COMMANDS[name].options)


def parse_line(line: str) -> tuple[str, dict[str, Any]]:
    """Return the command of a ``%tfcluster`` line, and its options; raises as `Parser.read`."""
    name, _, rest = line.strip().partition(" ")
    if name == "help":
        name, rest = rest.strip(), "--help"
    if name in ("", "--help", "-h"):
        raise HelpShown(overview())
    if name in ("--version", "-V"):
        raise HelpShown(f"tfmagic {VERSION}")
    if name not in COMMANDS:
        which = _question(line.strip(), name) or f"; it has {', '.join(COMMANDS)}"
        raise UsageError(f"%tfcluster has no command {name!r}{which}; see %tfcluster --help")
    return name, line_parser(name).read(rest)


def _question(line: str, command: str) -> str:
    """Return the end of a message about a line whose first word is no command."""
    if command.startswith("-"):
        return f"; a command comes first, as in  %tfcluster start {line}"
    from tfmagic.frontends.cli.pages import PAGES

    if command in PAGES:
        return f"; a shell has it:  !tfmagic {line}"
    elsewhere = {name: each.elsewhere for name, each in COMMANDS.items() if each.elsewhere}
    return mistyped.command(command, COMMANDS, elsewhere)


def overview() -> str:
    """Return the help of ``%tfcluster`` as a whole: its commands, and the options of a cell."""
    width = max(map(len, COMMANDS)) + 2
    commands = [f"  {name:<{width}}{command.summary}" for name, command in COMMANDS.items()]
    head, more = "%tfcluster COMMAND [options], with one of", "%tfcluster COMMAND --help says more."
    return "\n".join([head, *commands, more, "", cell_parser().format_help()])
