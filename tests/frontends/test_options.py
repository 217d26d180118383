"""Parsing of magic lines: options, mistakes, help and completion."""

import re
from types import SimpleNamespace

import pytest
from IPython.core.error import UsageError

import tfmagic
from tfmagic.frontends.notebook.completion import complete
from tfmagic.frontends.notebook.options import COMMANDS, HelpShown, parse_cell_line, parse_line
from tfmagic.frontends.notebook.whole import COMMAND_MODULES  # noqa: F401
from tfmagic.protocol.cluster_spec import TaskId


def test_an_empty_line_gives_the_defaults():
    options = parse_cell_line("")
    assert not options.shape.given
    assert not options.no_capture and options.view == "auto" and options.how.on is None


def test_every_option_of_a_cell():
    options = parse_cell_line(
        "--workers 3 --ps 1 --chief --evaluator --cluster c --on worker-0:2 --out r --pull a,b --push c,d "
        "--no-capture --fresh --timeout 2.5 --keep-going --view quiet --env A=1 --env B=x=y "
        "--gpus-per-task 0 --keras 2 --no-keras-fix --auto-restart 2 --isolate"
    )
    assert options.shape.values == {
        "workers": 3, "ps": 1, "chief": True, "evaluator": True, "env": {"A": "1", "B": "x=y"}, "gpus_per_task": 0,
        "keras": 2, "keras_fix": False, "auto_restart": 2, "isolate": True,
    }  # fmt: skip
    assert options.plan.pull == ("a", "b") and options.plan.push == ("c", "d")
    assert (options.how.timeout_s, options.how.out, options.how.on) == (2.5, "r", "worker-0:2")
    assert options.no_capture and options.fresh and options.how.keep_going


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--nope", "unrecognized arguments: --nope"),
        ("--workers two", "not a whole number"),
        ("--workers -1", "cannot be -1|expected one argument"),
        ("--chief --chief", "at most one chief"),
        ("--chief 2", "unrecognized arguments: 2"),
        ("--timeout 0", "more than 0"),
        ("--timeout soon", "not a number of seconds"),
        ("--out 1x", "not a variable name"),
        ("--push a,b-c", "not a variable name"),
        ("--env NOPE", "NAME=VALUE"),
        ("--view tv", "invalid choice"),
        ("--compare 1,2", "workers=1,2,4"),
        ("--compare workers=1 --workers 2", "brings its own workers; leave --workers and"),
        ("--on ,", "names no task"),
        ("--out class", "'class' is not a variable name"),
        ("--pull True", "'True' is not a variable name"),
        ("--pull __name__", "Python's own"),
        ("--push a,__builtins__", "Python's own"),
        ("--pull ,", "names no variable"),
        ("--cluster '<script>'", "cannot name a cluster"),
        ("--cluster ../x", "cannot name a cluster"),
        ("--env A=b\0c", "NUL"),
        ("--cluster a\0", "NUL"),
        ("--keras 4", "invalid choice"),
        ("--env 'A=1", "cannot read the options"),
        ("--detach --fresh", "leave --fresh out"),
        ("--detach --compare workers=1,2", "leave --compare out"),
    ],
)
def test_a_mistake_is_one_usage_error_with_a_next_step(line, message):
    with pytest.raises(UsageError, match=message):
        parse_cell_line(line)


@pytest.mark.parametrize("line", ["pull __name__", "push class", "start --cluster '<b>'", "status \0"])
def test_a_mistake_in_a_command_is_a_usage_error_too(line):
    with pytest.raises(UsageError, match="%tfcluster"):
        parse_line(line)


def test_help_is_text():
    with pytest.raises(HelpShown, match="--workers N"):
        parse_cell_line("--help")
    for line in ("", "--help"):
        with pytest.raises(HelpShown, match=r"restart[\s\S]*--compare AXIS=A,B,C"):
            parse_line(line)
    for command in COMMANDS:
        with pytest.raises(HelpShown, match=command):
            parse_line(f"{command} --help")


def test_the_commands_are_those_of_the_documentation():
    assert " ".join(COMMANDS) == (
        "start stop restart interrupt revive all run debug push pull diff reload tensorboard explain export "
        "kill pause resume preempt partition heal slow flood chaos network "
        "status logs errors stacks wait attach doctor map timeline report"
    )


def test_the_version_is_printed():
    with pytest.raises(HelpShown, match=re.escape(tfmagic.__version__)):
        parse_line("--version")


def test_the_error_of_an_unknown_command_lists_the_commands():
    with pytest.raises(UsageError, match="start, stop, restart"):
        parse_line("explode")


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("status --jsno", "--jsno; did you mean --json?"),
        ("kill --aftr 3", "--aftr; did you mean --after?"),
        ("start --worker=2", "--worker=2; did you mean --workers?"),
        ("start -workers 2", "-workers; did you mean --workers?"),
        ("start --nproc_per_node=2", "--nproc_per_node=2; did you mean --workers?"),
        ("start -n 2", "-n; did you mean --workers?"),
        ("start --nnodes 2", "--nnodes; did you mean --hosts?"),
        ("status --name other", "--name; did you mean --cluster?"),
        ("statsu", "no command 'statsu'; did you mean status?"),
        ("xyz", "no command 'xyz'; it has"),
        ("status --quick", "--quick; see %tfcluster status --help"),
    ],
)
def test_an_unknown_option_or_command_gets_the_closest_known_one(line, question):
    with pytest.raises(UsageError, match=re.escape(question)):
        parse_line(line)


LOGS = {"--help", "--cluster", "--tail", "--grep", "--since", "--max-bytes", "--json", "--path"}
NAMES = {"all", "chief", "evaluator", "ps", "worker", "worker-0", "worker-1"}


@pytest.mark.parametrize(
    ("line", "word", "expected"),
    [
        ("%tfcluster st", "st", {"start", "status", "stop", "stacks"}),
        ("%tfcluster ", "", set(COMMANDS)),
        ("%tfcluster explode ", "", set()),
        ("%tfcluster start --wo", "--wo", {"--workers"}),
        ("%%tfcluster --ke", "--ke", {"--keep", "--keep-going", "--keras"}),
        ("%%tfcluster --workers 2 --on wor", "wor", {"worker", "worker-0", "worker-1"}),
        ("%%tfcluster --on ", "", NAMES),
        ("%%tfcluster --on=worker-0,wor", "wor", {"worker", "worker-0", "worker-1"}),
        ("%%tfcluster --view q", "q", {"quiet"}),
        ("%%tfcluster --view=q", "q", {"quiet"}),
        ("%%tfcluster --cluster d", "d", {"default"}),
        ("%%tfcluster --push lr,mo", "mo", {"model"}),
        ("%tfcluster push m", "m", {"model"}),
        ("%%tfcluster --workers ", "", set()),
        ("  %tfcluster logs --ta", "--ta", {"--tail"}),
        ("%tfcluster kill worker-", "worker-", {"worker-0", "worker-1"}),
        ("%tfcluster kill worker-0 worker-", "worker-", {"worker-0", "worker-1"}),
        ("%tfcluster logs ", "", NAMES | LOGS),
        ("%tfcluster status wor", "wor", set()),
    ],
)
def test_completion(line, word, expected):
    clusters = {"default": SimpleNamespace(tasks=[TaskId("worker", 0), TaskId("worker", 1)])}
    found = complete(line, clusters, ["model", "lr"])
    assert (found[0], set(found[1])) == (word, expected)
