"""What people type who know another tool, and slips: the answer names the option or command that it is here."""

import argparse
import re

import pytest
from IPython.core.error import UsageError

from tfmagic.frontends import mistyped
from tfmagic.frontends.cli import parsers
from tfmagic.frontends.cli.pages import PAGES
from tfmagic.frontends.notebook import options, whole

assert whole.COMMAND_MODULES  # they fill options.COMMANDS

LINES = {  # words of a line, and the end of the message
    # torchrun
    "run --nproc_per_node 2 x.py": "--nproc_per_node; did you mean --workers?",
    "run --nproc-per-node=2 x.py": "--nproc-per-node=2; did you mean --workers?",
    "run --nnodes=2 x.py": "did you mean --hosts?",
    "run --max-restarts 3 x.py": "did you mean --auto-restart?",
    "run --rdzv-backend c10d x.py": "tasks on other machines: --backend ray",
    "run --standalone x.py": "tfmagic chooses addresses and ports, and sets TF_CONFIG",
    "run --redirects 3 x.py": "did you mean --log-dir?",
    # mpirun, srun, horovodrun
    "run -n 4 python x.py": "-n; did you mean --workers?",
    "run -np 4 x.py": "-np; did you mean --workers?",
    "run -n4 x.py": "-n4; did you mean --workers?",
    "run -N 2 x.py": "-N; did you mean --hosts?",
    "run -x PATH x.py": "-x; did you mean --env?",
    "run --hostfile hosts x.py": "tasks on other machines: --backend ray",
    "run -H a:2,b:2 x.py": "tasks on other machines: --backend ray",
    "run --ntasks=4 x.py": "did you mean --workers?",
    "run -t 60 x.py": "did you mean --timeout?",
    "run -k x.py": "did you mean --keep-going?",
    "run --output-filename out x.py": "did you mean --log-dir?",
    "run python x.py": "can't open file 'python': No such file or directory; give the script alone",
    # accelerate, DeepSpeed, Ray, Docker
    "run --num_processes 2 x.py": "did you mean --workers?",
    "run --num_machines 2 x.py": "did you mean --hosts?",
    "run --main_process_port 0 x.py": "tfmagic chooses addresses and ports",
    "run --num-gpus 1 x.py": "did you mean --gpus-per-task?",
    "run --name mine x.py": "unrecognized arguments: --name\n",  # a run has no name
    "launch x.py": "no command 'launch'; did you mean run?",
    "exec x.py": "did you mean run?",
    "ps": "no command 'ps'; did you mean status?",
    "list": "did you mean status?",
    "status -a": "-a; did you mean --all?",
    "logs -n 5": "-n; did you mean --tail?",
    "reap -n": "-n; did you mean --dry-run?",
    "version": "did you mean --version?",
    # slips
    "train.py --lr 1": "did you mean  python -m tfmagic run train.py --lr 1 ?",
    "--workers 4 x.py": "a command comes first, as in  python -m tfmagic run --workers 4 x.py",
    "start --workers 2": "no command 'start'; a notebook has it:  %tfcluster start\n",
    "run —workers 4 x.py": "can't open file '—workers': No such file or directory; did you mean --workers?",
    "doctor 4": "unrecognized arguments: 4; did you mean --workers 4?",
    "doctor workers=4": "unrecognized arguments: workers=4; did you mean --workers=4?",
    "doctor num_workers=4": "did you mean --workers=4?",
    "tfrecord verfy x": "there is no action 'verfy'; did you mean verify?",
    "tfrecord check x": "there is no action 'check'; it is one of verify, salvage, cat, split, merge",
    "tfrecord verify --jsno x": "unrecognized arguments: --jsno; did you mean --json?",
    "statsu": "no command 'statsu'; did you mean status?\n",
    "xyz": "no command 'xyz'; it is one of run, doctor,",
}


@pytest.mark.parametrize("line", LINES)
def test_the_shell_names_what_it_is_here(capsys, line):
    from tfmagic.frontends import cli

    try:
        code = cli.main(line.split())
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert code == 2 and LINES[line] in said, said


NOTEBOOK = {
    # ipyparallel
    "%%tfcluster --targets worker": "--targets; did you mean --on?",
    "%%tfcluster -t worker": "-t; did you mean --on or --timeout?",
    "%%tfcluster --noblock": "--noblock; did you mean --detach?",
    "%%tfcluster -o x": "-o; did you mean --out?",
    "%tfcluster start -n 4": "-n; did you mean --workers?",
    "%tfcluster autopx": "no command 'autopx'; did you mean all?",
    "%tfcluster pxresult": "did you mean wait?",
    # others
    "%tfcluster status --name other": "--name; did you mean --cluster?",
    "%tfcluster start --cluster-name other": "did you mean --cluster?",
    "%tfcluster launch": "did you mean run or start?",
    "%tfcluster shutdown": "did you mean stop?",
    "%tfcluster ls": "did you mean status?",
    "%tfcluster unpause worker-0": "did you mean resume?",
    "%tfcluster logs -n 5": "-n; did you mean --tail?",
    "%tfcluster kill worker-0 -s TERM": "-s; did you mean --signal?",
    "%tfcluster kill -TERM worker-0": "-TERM; did you mean --signal TERM?",
    "%tfcluster kill -9 worker-0": "-9; did you mean --signal 9?",
    "%tfcluster stop -a": "-a; did you mean --all?",
    "%%tfcluster --max_restarts 3": "did you mean --auto-restart?",
    "%%tfcluster --gpus 1": "did you mean --gpus-per-task?",
    "%%tfcluster --master_addr a": "tfmagic chooses addresses and ports",
    # slips
    "%tfcluster --workers 4": "a command comes first, as in  %tfcluster start --workers 4",
    "%tfcluster wrkers": "no command 'wrkers'; did you mean --workers?; see",
    "%tfcluster workers 2": "no command 'workers'; did you mean --workers?; see",
    "%tfcluster hlep": "no command 'hlep'; did you mean --help?; see",
    "%tfcluster xyz": "no command 'xyz'; it has start, stop,",
    "%tfcluster reap": "a shell has it:  !tfmagic reap",
    "%%tfcluster start --workers 2": "start; a command is a line of its own:  %tfcluster start --workers 2",
    "%%tfcluster 4": "4; did you mean --workers 4?",
    "%%tfcluster worker-0": "worker-0; did you mean --on worker-0?",
    "%%tfcluster workers=4": "did you mean --workers=4?",
    "%%tfcluster –workers 4": "–workers 4; did you mean --workers?",
    "%tfcluster statsu": "no command 'statsu'; did you mean status?; see",
}


@pytest.mark.parametrize("line", NOTEBOOK)
def test_the_magic_names_what_it_is_here(line):
    magic, _, words = line.partition(" ")
    with pytest.raises(UsageError, match=re.escape(NOTEBOOK[line])):
        (options.parse_cell_line if magic == "%%tfcluster" else options.parse_line)(words)


@pytest.mark.parametrize("hidden", ["--line", "--plain"])
def test_an_option_that_no_help_shows_is_not_suggested(hidden):
    assert hidden in options.cell_parser()._option_string_actions
    with pytest.raises(UsageError) as refused:
        options.parse_cell_line(hidden + "s")
    assert hidden not in str(refused.value).replace(hidden + "s", "")


def test_help_is_a_command_of_the_magic_too():
    for line, shown in {"help": "%tfcluster COMMAND", "help start": "usage: %tfcluster start"}.items():
        with pytest.raises(options.HelpShown, match=re.escape(shown)):
            options.parse_line(line)


# -- the tables --------------------------------------------------------------------------------------


def documented():
    """Return all options that a help shows."""
    found = [parsers.make_parser(name) for name in PAGES] + [options.cell_parser()]
    found += [options.line_parser(name) for name in options.COMMANDS]
    shown = {name: action for parser in found for name, action in parser._option_string_actions.items()}
    return {name for name, action in shown.items() if action.help != argparse.SUPPRESS}


def test_the_tables_name_only_what_a_help_shows():
    assert mistyped.OPTIONS.keys() <= documented()
    assert mistyped.COMMANDS.keys() <= {*PAGES, *options.COMMANDS, "--version"}
