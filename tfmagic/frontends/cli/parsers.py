"""Parsers and help of the command line.

Loads only argparse and the texts of `pages`, so that ``tfmagic --help`` takes as long as Python itself.
"""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from tfmagic.clusters.launch.arguments import parse_count, parse_seconds
from tfmagic.clusters.launch.given_options import add_options
from tfmagic.frontends import mistyped
from tfmagic.frontends.cli.pages import ENVIRONMENT, FILES, with_features
from tfmagic.system import features
from tfmagic.system.advice import program_name
from tfmagic.system.version import VERSION

BAD_USAGE = 2
MINUTES = 30.0  # of `tfmagic warm`
GRACE_S, TERM_GRACE_S = 3.0, 25.0  # Kubernetes sends SIGKILL 30 s after SIGTERM: the summary is out by then
PAGES = with_features()
_SHAPE = {"--workers", "--ps", "--chief", "--no-chief", "--evaluator"}


class Parser(argparse.ArgumentParser):
    """The parser of a command, with its page of help."""

    def __init__(self, command: str):
        page, program = PAGES[command], f"{program_name()} {command}"
        examples = _columns((f"{program_name()} {line}", what) for line, what in page.examples)
        exits = _columns(page.exits)
        super().__init__(
            prog=program,
            usage=f"{program} {page.usage}",
            description=f"{page.summary[0].upper()}{page.summary[1:]}.\n\n{page.description}",
            epilog="\n  ".join(["examples:", *examples]) + "\n\n" + "\n  ".join(["exit status:", *exits]),
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.set_defaults(command=command, parser=self)

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_USAGE, f"{self.prog}: {message}\n{self.prog} --help says more\n")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Ends the process after help, a version, or an error."""
    program = program_name()
    command, rest = (words[0], words[1:]) if words else ("", [])
    if command == "help":
        command, rest = (rest[0], ["--help"]) if rest else ("--help", [])
    if command in ("-h", "--help"):
        print(overview())
        raise SystemExit(0)
    if command in ("-V", "--version"):
        print(f"tfmagic {VERSION}")
        raise SystemExit(0)
    if command not in PAGES:
        what = f"there is no command {command!r}" if command else "a command is missing"
        what += _question([command, *rest]) if command else ""
        which = "" if "; " in what else f"; it is one of {', '.join(PAGES)}"
        sys.stderr.write(f"{program}: {what}{which}\n{program} --help says more\n")
        raise SystemExit(BAD_USAGE)
    parser = make_parser(command)
    if command == "run":
        return read_run(parser, rest)
    if command == "tfrecord":
        return mistyped.read_action(rest, parser)
    return mistyped.read(rest, parser)


def _question(words: Sequence[str]) -> str:
    """Return the end of a message about a command line whose first word is no command."""
    command = words[0]
    line = shlex.join([*program_name().split(), "run", *words])
    if command.startswith("-"):
        return f"; a command comes first, as in  {line}"
    if os.path.isfile(command) or command.endswith(".py"):
        return f"; did you mean  {line} ?"
    from tfmagic.clusters.api.lines import COMMANDS
    from tfmagic.frontends.notebook import whole  # takes its time, for a message that is rare

    assert whole.COMMAND_MODULES
    is_notebooks = command in COMMANDS
    return f"; a notebook has it:  %tfcluster {command}" if is_notebooks else mistyped.command(command, PAGES)


def make_parser(command: str) -> Parser:
    """Return the parser of one command."""
    parser = Parser(command)
    add = parser.add_argument
    match command:
        case "run":
            _add_run(parser)
        case "status":
            add("--all", action="store_true", help="also clusters that have ended or died")
            add("--json", action="store_true", help="for programs")
        case "logs":
            add("words", nargs="*", metavar="RUN | TASK", help="a run, and tasks of that run")
            add("--tail", type=parse_count, metavar="N", help="the last N lines of each")
            add("--grep", type=_pattern, metavar="RE", help="only lines that match")
            add("--follow", "-f", action="store_true", help="also print new output until the run ends")
            add("--since", type=parse_count, metavar="OFFSET", help="only what comes after that byte")
            add("--max-bytes", type=parse_count, metavar="N", help="at most so much of each task")
            add("--json", action="store_true", help="for programs")
            add("--path", action="store_true", help="print the paths of the files")
            add("--list", action="store_true", help="list the runs")
        case "errors":
            add("words", nargs="*", metavar="RUN | TASK", help="a run, and tasks of that run")
            add("--json", action="store_true", help="for programs")
        case "wait":
            add("words", nargs="*", metavar="RUN", help="a run (default: the newest)")
            add("--timeout", type=parse_seconds, metavar="SECONDS", help="wait at most this long")
            add("--json", action="store_true", help="for programs")
        case "reap":
            add("--dry-run", action="store_true", help="end nothing, only list the processes")
            add("--runs", action="store_true", help="also delete old run folders")
        case "warm":
            about = f"end it after that time ({MINUTES:g})"
            add("--minutes", type=_minutes, default=MINUTES, metavar="N", help=about)
        case "explain":
            add("name", nargs="?", default="", metavar="NAME", help="a short name (default: list them)")
        case "tfrecord":
            _add_tfrecord(parser)
        case _:
            PAGES[command].add_options(parser)
    return parser


def _minutes(text: str) -> float:
    try:
        return parse_seconds(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0") from None


def overview() -> str:
    """Return the help of all commands, laid out as a man page."""
    program = program_name()
    examples = [(f"{program} {line}", what) for page in PAGES.values() for line, what in page.examples[:2]]
    sections = {
        "NAME": ["tfmagic - a TensorFlow cluster of processes on this machine, from a shell"],
        "SYNOPSIS": [f"{program} {name} {page.usage}" for name, page in PAGES.items()]
        + [f"{program} COMMAND --help | help [COMMAND] | --version"],
        "DESCRIPTION": [
            "Runs scripts on a cluster, one process a task with TF_CONFIG set, and looks after the",
            "clusters that notebooks and scripts of this machine have started. The same clusters in a",
            "notebook: %load_ext tfmagic, %tfcluster --help.",
        ],
        "COMMANDS": _columns((name, page.summary) for name, page in PAGES.items()),
        "EXAMPLES": _columns(examples),
        "EXIT STATUS": ["0 is success, 2 a mistake on the command line; each command's help lists its own."],
        "ENVIRONMENT": _columns(ENVIRONMENT),
        "FILES": _columns(FILES),
    }
    return "\n\n".join("\n    ".join([title, *lines]) for title, lines in sections.items())


def _columns(pairs: Iterable[tuple[str, str]]) -> list[str]:
    pairs = list(pairs)
    width = max(len(left) for left, _ in pairs) + 2
    return [f"{left:<{width}}{right}" for left, right in pairs]


def read_run(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of `run`: its options, the script or module, then the script's own arguments.

    argparse cannot split the words: it takes options anywhere, and with `argparse.REMAINDER` it rejects
    ``-mMODULE --option``.
    """
    valued = {name for name, action in parser._option_string_actions.items() if action.nargs is None}

    def count(words: Sequence[str], is_option: Callable[[str], object]) -> int:
        """Return how many of the first words are options with their values."""
        place = 0
        while place < len(words) and is_option(words[place]):
            place += 2 if words[place] in valued else 1
        return place

    place = count(words, lambda word: re.match(r"-(?!m|-?$)", word))
    own, rest = list(words[:place]), list(words[place:])
    if rest[:1] == ["--"]:
        del rest[0]
    is_old = False
    if not any(map(_is_shape, own)):  # until 0.1 the shape could also stand directly after the script
        start = 2 if rest[:1] == ["-m"] else 1
        end = start + count(rest[start:], partial(_is_moved, rest[:start]))
        # "--" separated it, or the preset, from options of the script that have the same name
        ended = rest[end : end + 1] == ["--"] and (end > start or _is_shape("".join(rest[end + 1 : end + 2])))
        is_old = ended or end > start
        own += rest[start:end] or ["--workers", "2"] * ended
        del rest[start : end + ended]
    args = mistyped.read(own, parser)
    if not rest or rest == ["-m"]:
        parser.error("-m needs the name of a module" if rest else "a script is missing")
    args.new_form = shlex.join([*program_name().split(), "run", *own, *rest]) if is_old else ""
    args.is_module = rest[0].startswith("-m")
    if args.is_module and rest[0] != "-m":
        rest[:1] = ["-m", rest[0][2:]]
    args.target, *args.argv = rest[args.is_module :]
    if args.no_chief and args.chief:
        parser.error("--chief and --no-chief contradict each other")
    if args.is_module and not re.fullmatch(r"\w+(\.\w+)*", args.target):
        parser.error(f"-m {args.target!r} is not the name of a module")
    if args.target == "-":
        parser.error("a script on standard input could be read by one task only; give it a file")
    return args


def _is_moved(script: Sequence[str], word: str) -> bool:
    """Check whether a word after the script is an option of the shape that its source does not name."""
    if not _is_shape(word):
        return False
    name, path = _name_of(word), script[-1]
    if script[0].startswith("-m"):
        path = path.removeprefix("-m").replace(".", os.sep)
        files = [
            f"{folder or os.curdir}/{path}{end}"
            for folder in ("", *sys.path)
            for end in (".py", "/__main__.py")
        ]
        path = next(filter(os.path.isfile, files), "")
    try:
        with open(path, errors="replace") as file:
            source = file.read()
    except OSError:
        return True
    return not re.search(rf"""["']{name}(?![\w-])|DEFINE_\w+\(\s*["']{name[2:]}["']""", source)


def _name_of(word: str) -> str:
    return word.partition("=")[0]


def _is_shape(word: str) -> bool:
    return _name_of(word) in _SHAPE


def _add_run(parser: Parser) -> None:
    add_options(parser, "the cluster (default: two workers)", can_keep=False)
    no_chief = "with --ps, no chief is added: worker-0 is the script's chief"
    group = parser.add_argument_group("the run")
    add = group.add_argument
    add("--no-chief", action="store_true", help=no_chief)
    add("--timeout", type=parse_seconds, metavar="SECONDS", help="end the run after that, and show stacks")
    add("--keep-going", action="store_true", help="a failing task does not stop the others")
    grace: dict[str, Any] = {"metavar": "SECONDS"}
    grace["type"] = lambda text: 0.0 if text in ("0", "0.0") else parse_seconds(text)
    add("--grace", default=GRACE_S, help=f"for the others to end after a failure ({GRACE_S:g})", **grace)
    for half in features.halves("scripts"):
        half.add_options(group)
    add("--term-grace", default=TERM_GRACE_S, help=f"to end after SIGTERM ({TERM_GRACE_S:g})", **grace)
    add = parser.add_argument_group("output").add_argument
    add("--log-dir", metavar="DIR", help="put the logs there, as TASK.log")
    add("--quiet", action="store_true", help="show output only of tasks that fail")
    add("--json", action="store_true", help="for programs: the last line of the output is the outcome")


def _add_tfrecord(parser: Parser) -> None:
    prog, plain = parser.prog, argparse.ArgumentParser  # by default the prog is all of our usage line
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="ACTION", parser_class=plain, prog=prog
    )

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)

    verify = add("verify", "check every record, and find missing ones")
    threads = "threads (default: one for each core)"
    verify.add_argument("--workers", type=parse_count, metavar="N", help=threads)
    verify.add_argument("--json", action="store_true", help="for programs")
    salvage = add("salvage", "copy the intact records into a new file")
    salvage.add_argument("src", metavar="SRC")
    cat = add("cat", "print records: text as it is, other bytes as Python literals")
    cat.add_argument("--head", type=parse_count, metavar="N", help="the first N")
    kind = cat.add_mutually_exclusive_group()
    kind.add_argument("--json", action="store_true", help="of tf.train.Example, its features")
    kind.add_argument("--hex", action="store_true", help="hexadecimal digits")
    split = add("split", "split one file into shards")
    split.add_argument("src", metavar="SRC")
    size = split.add_mutually_exclusive_group(required=True)
    size.add_argument("--shards", type=parse_count, metavar="N", help="number of shards")
    size.add_argument("--records", type=parse_count, metavar="N", help="number of records in each shard")
    merge = add("merge", "join files into one, in their order")
    for action in (verify, cat, merge):
        action.add_argument("paths", nargs="+", metavar="PATH")
    for action in (salvage, split, merge):
        action.add_argument("dst", metavar="DST")
        action.add_argument("--overwrite", action="store_true", help="replace an existing file")
    for action in (split, merge):
        action.add_argument("--gzip", action="store_const", const="gzip", help="compress the output")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
