"""Command lines and help. Loads argparse and nothing else: `--help` takes as long as Python itself."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import tfmagic
from tfmagic.clusters.arguments import add_shape, parse_count, parse_seconds
from tfmagic.frontends.cli.pages import ENVIRONMENT, FILES, PAGES, Page

BAD_USAGE = 2
GRACE_S, TERM_GRACE_S = 3.0, 25.0  # Kubernetes sends SIGKILL 30 s after SIGTERM: what ends before is told
_INDENT = "    "
_SHAPE = {"--workers": True, "--ps": True, "--chief": False, "--evaluator": False}  # whether a number follows


def program_name() -> str:
    """How this program was called."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return "tfmagic" if name == "tfmagic" else "python -m tfmagic"


class Parser(argparse.ArgumentParser):
    """The parser of a command, with its page of help."""

    def __init__(self, command: str):
        page, program = PAGES[command], f"{program_name()} {command}"
        super().__init__(
            prog=program,
            usage=f"{program} {page.usage}",
            description=f"{page.summary[0].upper()}{page.summary[1:]}.\n\n{page.description}",
            epilog=_epilog(page),
            allow_abbrev=False,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.set_defaults(command=command, parser=self)

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_USAGE, f"{self.prog}: {message}\n{self.prog} --help says more\n")

    def add_help_option(self) -> None:
        self.add_argument("-h", "--help", action="help", help="show this text")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """What a command line says; ends the process for help, a version, and a mistake."""
    program = program_name()
    command, rest = (words[0], words[1:]) if words else ("", [])
    if command == "help":
        command, rest = (rest[0], ["--help"]) if rest else ("--help", [])
    if command in ("-h", "--help"):
        print(overview())
        raise SystemExit(0)
    if command in ("-V", "--version"):
        print(f"tfmagic {tfmagic.__version__}")
        raise SystemExit(0)
    if command not in PAGES:
        what = f"there is no command {command!r}" if command else "a command is missing"
        sys.stderr.write(f"{program}: {what}; it is one of {', '.join(PAGES)}\n{program} --help says more\n")
        raise SystemExit(BAD_USAGE)
    parser = make_parser(command)
    return read_run(parser, rest) if command == "run" else parser.parse_args(rest)


def make_parser(command: str) -> Parser:
    """The parser of one command."""
    parser = Parser(command)
    _ADD[command](parser)
    parser.add_help_option()
    return parser


def overview() -> str:
    """The help of the whole, as a man page reads."""
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
        "SEE ALSO": [f"{program} {name} --help" for name in PAGES],
    }
    blocks = (
        "\n".join([title, *(f"{_INDENT}{line}".rstrip() for line in lines)])
        for title, lines in sections.items()
    )
    return "\n\n".join(blocks)


def _epilog(page: Page) -> str:
    program = program_name()
    examples = [(f"{program} {line}", what) for line, what in page.examples]
    blocks = [["examples:", *_columns(examples)], ["exit status:", *_columns(page.exits)]]
    return "\n\n".join("\n".join([head, *(f"  {line}" for line in lines)]) for head, *lines in blocks)


def _columns(pairs: Iterable[tuple[str, str]]) -> list[str]:
    pairs = list(pairs)
    width = max(len(left) for left, _ in pairs) + 2
    return [f"{left:<{width}}{right}" for left, right in pairs]


def read_run(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """`run`: its options, then the script or the module, then what is the script's own.

    Options of the shape may also stand directly behind the script, where none stands before it.
    """
    own, rest = split_run(parser, words)
    if not {word.partition("=")[0] for word in own} & set(_SHAPE):
        start = 2 if rest[:1] == ["-m"] else 1
        behind, others = _split_shape(rest[start:])
        own, rest = [*own, *behind], [*rest[:start], *others]
    found = parser.parse_args(own)
    if not rest or rest == ["-m"]:
        parser.error("a script is missing" if not rest else "-m needs the name of a module")
    found.is_module = rest[0].startswith("-m")
    if found.is_module:
        glued = rest[0][2:]
        found.target, found.argv = (glued, rest[1:]) if glued else (rest[1], rest[2:])
        if not re.fullmatch(r"\w+(\.\w+)*", found.target):
            parser.error(f"-m {found.target!r} is not the name of a module")
    else:
        found.target, found.argv = rest[0], rest[1:]
        if found.target == "-":
            parser.error("a script on standard input could be read by one task only; give it a file")
    return found


def _split_shape(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of a shape that `words` begin with, and the others; ``--`` between them is nobody's."""
    place = 0
    while place < len(words) and words[place].partition("=")[0] in _SHAPE:
        takes_next = "=" not in words[place] and _SHAPE[words[place]]
        place += 2 if takes_next else 1
    is_mark = words[place : place + 1] == ["--"] and (
        place > 0 or (words[place + 1 : place + 2] and words[place + 1].partition("=")[0] in _SHAPE)
    )
    return list(words[:place]), list(words[place + 1 if is_mark else place :])


def split_run(parser: Parser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of `run` up to the script or ``-m``, and the others. argparse would take options anywhere."""
    valued = {name for name, action in parser._option_string_actions.items() if action.nargs is None}
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return list(words[:place]), list(words[place + 1 :])
        if word == "-" or not word.startswith("-") or (word.startswith("-m") and not word.startswith("--")):
            return list(words[:place]), list(words[place:])
        place += 2 if word in valued else 1
    return list(words), []


def _add_run(parser: Parser) -> None:
    add_shape(parser, "the cluster (default: two workers)", backends=False)
    group = parser.add_argument_group("the run")
    group.add_argument("--timeout", type=parse_seconds, metavar="SECONDS", help="then end it, with stacks")
    group.add_argument("--keep-going", action="store_true", help="a failing task does not stop the others")
    group.add_argument(
        "--grace",
        type=_grace,
        default=GRACE_S,
        metavar="SECONDS",
        help=f"what the others get after a failure ({GRACE_S:g})",
    )
    group.add_argument(
        "--term-grace",
        type=_grace,
        default=TERM_GRACE_S,
        metavar="SECONDS",
        help=f"what the tasks get after SIGTERM ({TERM_GRACE_S:g})",
    )
    group = parser.add_argument_group("output")
    group.add_argument("--log-dir", metavar="DIR", help="put the logs there, as TASK.log")
    group.add_argument("--quiet", action="store_true", help="show output only of tasks that fail")


def _add_doctor(parser: Parser) -> None:
    add_shape(parser, "the cluster that is meant (default: two workers)", backends=False)
    parser.add_argument("--json", action="store_true", help="for programs")


def _add_status(parser: Parser) -> None:
    parser.add_argument("--all", action="store_true", help="also clusters that have ended or died")
    parser.add_argument("--json", action="store_true", help="for programs")


def _add_logs(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="RUN | TASK", help="a run, and tasks of it")
    parser.add_argument("--tail", type=_line_count, metavar="N", help="the last N lines of each")
    parser.add_argument("--grep", type=_pattern, metavar="RE", help="only lines that match")
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what comes")
    parser.add_argument("--path", action="store_true", help="where the files are")
    parser.add_argument("--list", action="store_true", help="list the runs")


def _add_reap(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="end nothing, only say what there is")
    parser.add_argument("--runs", action="store_true", help="also delete old run folders")


def _add_tfrecord(parser: Parser) -> None:
    actions = parser.add_subparsers(
        dest="action",
        required=True,
        metavar="ACTION",
        parser_class=argparse.ArgumentParser,
        prog=parser.prog,  # by default all of our usage line
    )

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)

    verify = add("verify", "look at every record: does it hold, is one missing")
    verify.add_argument(
        "--workers", type=parse_count, metavar="N", help="processes (default: as many as pay)"
    )
    verify.add_argument("--json", action="store_true", help="for programs")
    salvage = add("salvage", "copy all records that hold into a new file")
    salvage.add_argument("src", metavar="SRC")
    cat = add("cat", "print records: text as it is, other bytes as Python writes them")
    cat.add_argument("--head", type=parse_count, metavar="N", help="the first N")
    kind = cat.add_mutually_exclusive_group()
    kind.add_argument("--json", action="store_true", help="of tf.train.Example, its features")
    kind.add_argument("--hex", action="store_true", help="hexadecimal digits")
    split = add("split", "one file in shards")
    split.add_argument("src", metavar="SRC")
    size = split.add_mutually_exclusive_group(required=True)
    size.add_argument("--shards", type=parse_count, metavar="N", help="so many shards")
    size.add_argument("--records", type=parse_count, metavar="N", help="so many records in each")
    merge = add("merge", "many files in one, in their order")
    for action in (verify, cat, merge):
        action.add_argument("paths", nargs="+", metavar="PATH")
    for action in (salvage, split, merge):
        action.add_argument("dst", metavar="DST")
        action.add_argument("--overwrite", action="store_true", help="replace what is there")
    for action in (split, merge):
        action.add_argument("--gzip", action="store_true", help="compress what is written")


_ADD: dict[str, Callable[[Parser], Any]] = {
    "run": _add_run,
    "doctor": _add_doctor,
    "status": _add_status,
    "logs": _add_logs,
    "reap": _add_reap,
    "tfrecord": _add_tfrecord,
}


def _grace(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else parse_seconds(text)


def _line_count(text: str) -> int:
    try:
        return parse_count(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines") from None


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
