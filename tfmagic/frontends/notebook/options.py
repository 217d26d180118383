"""The options of ``%%tfcluster`` and ``%tfcluster``: what a line says, as frozen data.

Only syntax and plain mistakes are dealt with here. Every mistake is a `UsageError` with a next step.
"""

from __future__ import annotations

import argparse
import functools
import keyword
import re
import shlex
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from IPython.core.error import UsageError

from tfmagic.clusters.arguments import ShapeOptions, add_shape, parse_count, parse_seconds, shape_of
from tfmagic.clusters.fault_lab import KINDS
from tfmagic.errors import ClusterSpecError
from tfmagic.protocol.cluster_spec import check_name

DEFAULT_NAME = "default"
TAKES_TASKS = (
    "restart", "logs", "errors", "interrupt", "debug", "stacks", "revive",
    "kill", "pause", "resume", "preempt", "slow", "flood",
)  # fmt: skip
FAULTS = ("kill", "pause", "resume", "preempt", "slow", "flood", "chaos")
_SHAPE = "shape, when no cluster runs yet (default: two workers)"
VIEWS = ("auto", "widget", "html", "text", "quiet")


class HelpShown(Exception):
    """``--help`` was asked for; the argument is its text."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the process."""

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


@dataclass(frozen=True, slots=True)
class CellOptions:
    """A parsed ``%%tfcluster`` line."""

    shape: ShapeOptions = field(default_factory=ShapeOptions)
    cluster: str = DEFAULT_NAME
    on: str | None = None
    out: str | None = None
    pull: tuple[str, ...] = ()
    push: tuple[str, ...] = ()
    capture: bool = True
    fresh: bool = False
    timeout_s: float | None = None
    keep_going: bool = False
    view: str = "auto"
    compare: tuple[int, ...] = ()
    detach: bool = False


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """What a line of the fault lab says beside its tasks; see `tfmagic.clusters.fault_lab`."""

    amount: float = 0
    signal_number: int = signal.SIGKILL
    after_s: float | None = None
    seed: int = 0
    seconds: float = 0
    every_s: float = 0
    kinds: tuple[str, ...] | None = None
    stop: bool = False


@dataclass(frozen=True, slots=True)
class BoardOptions:
    """What a line says of TensorBoard; see `Cluster.tensorboard`."""

    port: int | None = None
    host: str = "127.0.0.1"
    height: int = 800
    stop: bool = False


@dataclass(frozen=True, slots=True)
class LineOptions:
    """A parsed ``%tfcluster`` line."""

    command: str
    cluster: str = DEFAULT_NAME
    shape: ShapeOptions = field(default_factory=ShapeOptions)
    words: tuple[str, ...] = ()
    on: str | None = None
    all: bool = False
    json: bool = False
    path: bool = False
    tail: int | None = None
    grep: str | None = None
    timeout_s: float | None = None
    cell: int | None = None
    full: bool = False
    fault: FaultOptions | None = None
    board: BoardOptions | None = None


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor; write 1 to 100") from None
    return value


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([kMG]?)(i?)B?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes; write 1000000, 200MB or 1GiB")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** " kMG".index(found[2] or " "))


def _signal(text: str) -> int:
    name = text.upper().removeprefix("SIG")
    try:
        return int(signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{name}"])
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(
            f"there is no signal {text!r}; write KILL, TERM, SEGV, ..."
        ) from None


def _name_list(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("it names no variable; write A,B")
    return tuple(map(_one_name, names))


def _one_name(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a variable name; write A,B")
    if text.startswith("__") and text.endswith("__"):
        raise argparse.ArgumentTypeError(f"{text} is Python's own, and another one in each process")
    return text


def _cluster_name(text: str) -> str:
    try:
        check_name(text)
    except ClusterSpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _sizes(text: str) -> tuple[int, ...]:
    kind, _, numbers = text.partition("=")
    values = numbers.split(",")
    if kind != "workers" or not all(v.strip().isdigit() and int(v) > 0 for v in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form workers=1,2,4")
    return tuple(int(v) for v in values)


@functools.cache
def cell_parser() -> _Parser:
    """The parser of ``%%tfcluster``."""
    parser = _Parser("%%tfcluster", description="Run the cell on every task of a TensorFlow cluster.")
    add_shape(parser, _SHAPE)
    group = parser.add_argument_group("the cell")
    group.add_argument(
        "--cluster",
        type=_cluster_name,
        default=DEFAULT_NAME,
        metavar="NAME",
        help="which cluster, of several",
    )
    group.add_argument(
        "--on", metavar="SELECTOR", help="tasks that run it: all, worker, worker-1, worker-0:3, ..."
    )
    group.add_argument("--out", type=_one_name, metavar="NAME", help="bind the results to NAME")
    group.add_argument("--pull", type=_name_list, default=(), metavar="A,B", help="fetch variables after it")
    group.add_argument("--push", type=_name_list, default=(), metavar="A,B", help="send variables before it")
    group.add_argument("--no-capture", action="store_true", help="send nothing but what --push names")
    group.add_argument("--fresh", action="store_true", help="new processes for this cell, ended with it")
    group.add_argument("--detach", action="store_true", help="return at once; the cell goes on")
    group.add_argument(
        "--timeout", type=parse_seconds, metavar="SECONDS", help="stop it after that, with stacks"
    )
    group.add_argument("--keep-going", action="store_true", help="one failing task does not stop the others")
    group.add_argument("--view", choices=VIEWS, default="auto", help="how output is shown")
    group.add_argument(
        "--compare", type=_sizes, default=(), metavar="workers=1,2,4", help="run it at several sizes"
    )
    return parser


@functools.lru_cache(maxsize=256)
def parse_cell_line(line: str) -> CellOptions:
    """The options of a ``%%tfcluster`` line.

    Raises:
        UsageError: Something in it is wrong.
        HelpShown: It asks for help.
    """
    parser = cell_parser()
    found = parser.read(line)
    if found.detach and (found.fresh or found.compare):
        parser.error("--detach goes on in a cluster that stays: leave --fresh and --compare out")
    if found.on is not None and not found.on.strip(" ,"):
        parser.error("the selector of --on names no task; write --on all, worker, worker-0 or worker-0:2")
    if found.compare and (found.workers is not None or found.fresh):
        parser.error("--compare brings its own sizes; leave --workers and --fresh out")
    return CellOptions(
        shape=shape_of(found, parser),
        cluster=found.cluster,
        on=found.on,
        out=found.out,
        pull=found.pull,
        push=found.push,
        capture=not found.no_capture,
        fresh=found.fresh,
        timeout_s=found.timeout,
        keep_going=found.keep_going,
        view=found.view,
        compare=found.compare,
        detach=found.detach,
    )


COMMANDS = {
    "start": "start a cluster and wait until every task is ready",
    "stop": "end a cluster (--all: every one)",
    "restart": "new processes at the same addresses, for all or for the named tasks",
    "status": "a table of the tasks",
    "logs": "the tasks' output, from disk",
    "errors": "every failure of the last cell in full",
    "interrupt": "interrupt the cell that runs, on every task or only on these",
    "stacks": "the Python stacks of tasks, also of those that are stuck; equal ones once",
    "revive": "bring dead tasks back, while the others keep their variables",
    "kill": "a crash: kill tasks, or signal them (--signal TERM)",
    "pause": "a hang: stop tasks (SIGSTOP) until resume",
    "resume": "let paused tasks go on",
    "preempt": "ask tasks to end (SIGTERM), as a cloud does",
    "slow": "make tasks slower:  slow TASK FACTOR ; with 1 as they were",
    "flood": "let tasks write to their error stream:  flood TASK BYTES , as 200MB",
    "chaos": "let faults come at random in the background (--stop ends it)",
    "debug": "pdb in a task, on its last failure, with live frames",
    "push": "send notebook variables:  push A,B [--on SELECTOR]",
    "wait": "wait for the cells that were started with --detach",
    "attach": "show a cell of a past run again, from disk:  attach [RUN] [--cell N]",
    "doctor": "what will get in the way here, of a cluster of that shape, and the line that mends it",
    "tensorboard": "TensorBoard, which ends with the cluster:  tensorboard [LOGDIR] [--port N]",
    "pull": "fetch variables, each bound to {task: value}:  pull A,B [--on SELECTOR]",
}


def _words(found: str | Iterable[str] | None) -> tuple[str, ...]:
    if found is None or isinstance(found, str):
        return (found,) if found else ()
    return tuple(found)


@functools.cache
def line_parser(command: str) -> _Parser:
    """The parser of one sub-command of ``%tfcluster``."""
    parser = _Parser(f"%tfcluster {command}", description=COMMANDS[command])
    parser.add_argument(
        "--cluster",
        type=_cluster_name,
        default=DEFAULT_NAME,
        metavar="NAME",
        help="which cluster, of several",
    )
    if command in ("start", "restart", "doctor"):
        add_shape(parser, _SHAPE)
    if command == "debug":
        parser.add_argument("words", nargs=1, metavar="TASK", help="the task")
    if command in ("restart", "logs", "errors", "interrupt", "stacks", "revive"):
        parser.add_argument("words", nargs="*", metavar="TASK", help="tasks, by selector")
    if command in FAULTS:
        _add_fault(parser, command)
    if command in ("push", "pull"):
        parser.add_argument("words", type=_name_list, metavar="A,B", help="variable names")
        parser.add_argument("--on", metavar="SELECTOR", help="which tasks")
    if command == "stop":
        parser.add_argument("--all", action="store_true", help="every cluster of this notebook")
    if command == "status":
        parser.add_argument("--json", action="store_true", help="for programs")
    if command == "wait":
        parser.add_argument(
            "--timeout", type=parse_seconds, metavar="SECONDS", help="then say who still runs"
        )
    if command == "attach":
        parser.add_argument("words", nargs="?", metavar="RUN", help="its name; the newest without one")
        parser.add_argument("--cell", type=parse_count, metavar="N", help="the notebook's number of the cell")
        parser.add_argument("--full", action="store_true", help="without the limit of a saved cell")
        parser.add_argument("--all", action="store_true", help="list the runs and their cells")
    if command == "tensorboard":
        _add_board(parser)
    if command == "logs":
        parser.add_argument("--tail", type=parse_count, metavar="N", help="the last N lines of each")
        parser.add_argument("--grep", metavar="RE", help="only lines that match")
        parser.add_argument("--path", action="store_true", help="where the files are")
    return parser


def _add_board(parser: _Parser) -> None:
    parser.add_argument(
        "words", nargs="?", metavar="LOGDIR", help="by default the last that cells gave to tensorboard_dir"
    )
    parser.add_argument("--port", type=parse_count, metavar="N", help="by default a free one")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="where it listens: %(default)s"
    )
    parser.add_argument("--height", type=parse_count, default=800, metavar="PIXELS", help="of the frame")
    parser.add_argument("--stop", action="store_true", help="end it")


def _add_fault(parser: _Parser, command: str) -> None:
    if command == "chaos":
        parser.add_argument(
            "--seed", type=parse_count, default=0, metavar="N", help="the same one, the same faults"
        )
        parser.add_argument("--seconds", type=parse_seconds, default=30.0, metavar="S", help="how long (30)")
        parser.add_argument(
            "--every", type=parse_seconds, default=3.0, metavar="S", help="mean time between two (3)"
        )
        parser.add_argument("--faults", type=_name_list, metavar="A,B", help=f"of {', '.join(KINDS)}")
        parser.add_argument("--on", metavar="SELECTOR", help="tasks that they may hit")
        parser.add_argument("--stop", action="store_true", help="end it")
        return
    parser.add_argument("words", nargs="+", metavar="TASK", help="tasks, by selector")
    if command == "slow":
        parser.add_argument("amount", type=_factor, metavar="FACTOR", help="1 to 100")
    if command == "flood":
        parser.add_argument("amount", type=_bytes, metavar="BYTES", help="such as 1000000, 200MB, 1GB")
    if command == "kill":
        parser.add_argument("--signal", type=_signal, default=signal.SIGKILL, metavar="S", help="KILL")
    parser.add_argument(
        "--after", type=parse_seconds, metavar="S", help="in so many seconds; returns at once"
    )


def overview() -> str:
    """The help of ``%tfcluster`` as a whole: its commands, and the options of a cell."""
    lines = ["%tfcluster COMMAND [options], with one of"]
    width = max(map(len, COMMANDS)) + 2
    lines += [f"  {name:<{width}}{text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "%tfcluster COMMAND --help says more.", "", cell_parser().format_help()])


def parse_line(line: str) -> LineOptions:
    """The sub-command and options of a ``%tfcluster`` line.

    Raises:
        UsageError: Something in it is wrong.
        HelpShown: It asks for help.
    """
    command, _, rest = line.strip().partition(" ")
    if command in ("", "--help", "-h"):
        raise HelpShown(overview())
    if command not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise UsageError(f"%tfcluster has no command {command!r}; it has {known}")
    parser = line_parser(command)
    found = parser.read(rest)
    has_shape = command in ("start", "restart", "doctor")
    return LineOptions(
        command=command,
        cluster=found.cluster,
        shape=shape_of(found, parser) if has_shape else ShapeOptions(),
        words=_words(getattr(found, "words", ())),
        on=getattr(found, "on", None),
        all=getattr(found, "all", False),
        json=getattr(found, "json", False),
        path=getattr(found, "path", False),
        tail=getattr(found, "tail", None),
        grep=getattr(found, "grep", None),
        timeout_s=getattr(found, "timeout", None),
        cell=getattr(found, "cell", None),
        full=getattr(found, "full", False),
        fault=_fault_of(command, found) if command in FAULTS else None,
        board=_board_of(found) if command == "tensorboard" else None,
    )


def _board_of(found: argparse.Namespace) -> BoardOptions:
    return BoardOptions(port=found.port or None, host=found.host, height=found.height, stop=found.stop)


def _fault_of(command: str, found: argparse.Namespace) -> FaultOptions:
    return FaultOptions(
        amount=getattr(found, "amount", 0),
        signal_number=getattr(found, "signal", signal.SIGKILL),
        after_s=getattr(found, "after", None),
        seed=getattr(found, "seed", 0),
        seconds=getattr(found, "seconds", 0),
        every_s=getattr(found, "every", 0),
        kinds=getattr(found, "faults", None),
        stop=getattr(found, "stop", False),
    )
