"""How the lines of ``%%tfcluster`` and ``%tfcluster`` are read: text becomes a small frozen dataclass.

A class declares each field together with its argument of the line, by `argument`; `new_parser` and
`read_options` do the rest. This module has the options of a cell and the table of the line commands, whose
classes are in `line_commands` and `line_faults`. `tfmagic.frontends.notebook.magic` reads lines with it. Only
syntax is checked here, and every mistake is a `UsageError` that names the next step.
"""

from __future__ import annotations

import argparse
import functools
import keyword
import re
import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from IPython.core.error import UsageError

from tfmagic.clusters.arguments import ShapeOptions, add_shape, parse_seconds, shape_of
from tfmagic.errors import ClusterSpecError
from tfmagic.protocol.cluster_spec import check_name

if TYPE_CHECKING:
    from tfmagic.frontends.notebook.magic import TFClusterMagics

DEFAULT_NAME = "default"
VIEWS = ("auto", "widget", "html", "text", "quiet")
T = TypeVar("T")


class HelpShown(Exception):
    """The line asks for help; the argument is the text to show."""


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError` instead of ending the process."""

    def __init__(self, prog: str, **kwargs: Any):
        super().__init__(
            prog=prog,
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawTextHelpFormatter,
            **kwargs,
        )
        self.add_argument("--help", "-h", action="store_true", help="show this text")

    def error(self, message: str) -> NoReturn:
        help_line = self.prog.replace("%%", "%")  # IPython takes no cell magic with an empty body
        raise UsageError(f"{self.prog}: {message}; see {help_line} --help")

    def read(self, line: str) -> argparse.Namespace:
        if "\0" in line:
            self.error("there is a NUL character on the line")
        try:
            words = shlex.split(line)
        except ValueError as error:
            self.error(f"cannot read the options: {error}")
        if "--help" in words or "-h" in words:
            raise HelpShown(self.format_help())
        return self.parse_args(words)


# -- classes of options ----------------------------------------------------------------------------


def argument(flag: str, metavar: str | None, help_text: str, **how: Any) -> Any:
    """Declare a field of a class of options and its argument of the line.

    Args:
        flag: The option, such as ``--on``; "" for a positional argument.
        metavar: Stands for the value in the help; None shows the choices.
        **how: Further arguments of `argparse.ArgumentParser.add_argument`. A list becomes a tuple.
    """
    return _declare(flag, {"default": None, "metavar": metavar, "help": help_text, **how})


def flag(name: str, help_text: str) -> Any:
    """Declare a field that is True where the line has the option."""
    return _declare(name, {"default": False, "action": "store_true", "help": help_text})


def _declare(flag: str, how: dict[str, Any]) -> Any:
    return field(default=how["default"], metadata={"flag": flag, "how": how})


def new_parser(prog: str, description: str, options: type[Any], title: str = "") -> Parser:
    """Return the parser of a class of options.

    Args:
        options: A field `shape` stands for all options of a cluster's shape.
        title: Of the group of the other options; without it they come before those of the shape.
    """
    parser = Parser(prog, description=description)
    if _has_shape(options):
        add_shape(parser, "shape, when no cluster runs yet (default: two workers)")
    group = parser.add_argument_group(title) if title else parser
    for declared in fields(options):
        if option := declared.metadata.get("flag"):
            group.add_argument(option, dest=declared.name, **declared.metadata["how"])
        elif declared.metadata:
            group.add_argument(declared.name, **declared.metadata["how"])
    return parser


def read_options(options: type[T], parser: Parser, line: str) -> T:
    """Return the options of a line.

    Raises:
        UsageError: Something in it is wrong.
        HelpShown: It asks for help.
    """
    found = parser.read(line)
    values = {f.name: getattr(found, f.name) for f in fields(options) if f.metadata}  # type: ignore[arg-type]
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    if _has_shape(options):
        values["shape"] = shape_of(found, parser)
    return options(**values)


def _has_shape(options: type[Any]) -> bool:
    return "shape" in {declared.name for declared in fields(options)}


# -- types of arguments ----------------------------------------------------------------------------


def parse_factor(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor; write 1 to 100") from None


def parse_bytes(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([kMG]?)(i?)B?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes; write 1000000, 200MB or 1GiB")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** " kMG".index(found[2] or " "))


def parse_signal(text: str) -> int:
    name = text.upper().removeprefix("SIG")
    try:
        return int(signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{name}"])
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(
            f"there is no signal {text!r}; write KILL, TERM, SEGV, ..."
        ) from None


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


def _parse_cluster_name(text: str) -> str:
    try:
        check_name(text)
    except ClusterSpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _parse_sizes(text: str) -> tuple[int, ...]:
    kind, _, numbers = text.partition("=")
    values = numbers.split(",")
    if kind != "workers" or not all(v.strip().isdigit() and int(v) > 0 for v in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form workers=1,2,4")
    return tuple(int(v) for v in values)


# -- the cell --------------------------------------------------------------------------------------


def _cluster_argument() -> Any:
    return argument(
        "--cluster", "NAME", "name of the cluster", type=_parse_cluster_name, default=DEFAULT_NAME
    )


@dataclass(frozen=True, slots=True)
class CellOptions:
    """The options of ``%%tfcluster``."""

    cluster: str = _cluster_argument()
    shape: ShapeOptions = field(default_factory=ShapeOptions)
    on: str | None = argument(
        "--on", "SELECTOR", "tasks that run the cell: all, worker, worker-1, worker-0:3, ..."
    )
    out: str | None = argument("--out", "NAME", "bind the results to NAME", type=_parse_variable)
    pull: tuple[str, ...] = argument(
        "--pull", "A,B", "fetch variables after the cell", type=parse_variables, default=()
    )
    push: tuple[str, ...] = argument(
        "--push", "A,B", "send variables before the cell", type=parse_variables, default=()
    )
    no_capture: bool = flag("--no-capture", "send only the variables of --push")
    fresh: bool = flag("--fresh", "run the cell in new processes, which end with it")
    detach: bool = flag("--detach", "return at once; the cell runs on")
    timeout_s: float | None = argument(
        "--timeout", "SECONDS", "stop the cell then, with stacks", type=parse_seconds
    )
    keep_going: bool = flag("--keep-going", "let the other tasks run on when one fails")
    view: str = argument("--view", None, "how output is shown", choices=VIEWS, default="auto")
    compare: tuple[int, ...] = argument(
        "--compare", "workers=1,2,4", "run the cell at several sizes", type=_parse_sizes, default=()
    )


@functools.cache
def cell_parser() -> Parser:
    """Return the parser of ``%%tfcluster``."""
    description = "Run the cell on every task of a TensorFlow cluster."
    return new_parser("%%tfcluster", description, CellOptions, "the cell")


@functools.lru_cache(maxsize=256)
def parse_cell_line(line: str) -> CellOptions:
    """Return the options of a ``%%tfcluster`` line; raises as `read_options`."""
    parser = cell_parser()
    found = read_options(CellOptions, parser, line)
    if found.detach and (found.fresh or found.compare):
        parser.error("--detach goes on in a cluster that stays: leave --fresh and --compare out")
    if found.on is not None and not found.on.strip(" ,"):
        parser.error("the selector of --on names no task; write --on all, worker, worker-0 or worker-0:2")
    if found.compare and (found.shape.workers is not None or found.fresh):
        parser.error("--compare brings its own sizes; leave --workers and --fresh out")
    return found


# -- line commands ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LineCommand:
    """A parsed ``%tfcluster`` line. The fields of a subclass are its options."""

    name: ClassVar[str]
    summary: ClassVar[str]
    cluster: str = _cluster_argument()

    def run(self, magics: TFClusterMagics) -> None:
        """Carry out the command."""
        raise NotImplementedError


C = TypeVar("C", bound=LineCommand)
COMMANDS: dict[str, type[LineCommand]] = {}  # complete when both modules of commands have been imported


def line_command(name: str, summary: str) -> Callable[[type[C]], type[C]]:
    """Make a subclass of `LineCommand` a frozen dataclass, and add it to `COMMANDS`."""

    def add(cls: type[C]) -> type[C]:
        made = dataclass(frozen=True, slots=True)(cls)
        made.name, made.summary = name, summary
        COMMANDS[name] = made
        return made

    return add


@functools.cache
def line_parser(name: str) -> Parser:
    """Return the parser of a line command."""
    return new_parser(f"%tfcluster {name}", COMMANDS[name].summary, COMMANDS[name])
