"""The command line without a run: parsing, exit codes, summaries, and help."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tfmagic.clusters.launch.given_options import given_options
from tfmagic.frontends.cli import logs, main, parsers
from tfmagic.frontends.cli.run import again, find_problem, name_of
from tfmagic.frontends.cli.summary import RunSummary, StopReason, exit_code, format_summary, place_of
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellRaised, TaskExited, TaskLost
from tfmagic.protocol.payload import PackedError
from tfmagic.runs.folder import RunFolder
from tfmagic.system.process_identity import identify

GONE = 2**22 + 1  # above what Linux gives
WORKER, CHIEF = TaskId("worker", 1), TaskId("chief", 0)
SELECTORS = ["worker", "worker-1", "worker-0:2", "all", "ps,worker-0"]


def read(*words):
    return parsers.parse(words)


def refusal(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        parsers.parse(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


# ---- what words mean ----------------------------------------------------------------------------


def test_all_that_follows_the_script_is_its_own():
    found = read(
        *[
            "run",
            "--workers",
            "3",
            "--env",
            "A=1",
            "--env=B=2",
            "train.py",
            "--workers",
            "9",
            "-m",
            "x",
            "--",
            "--help",
        ]
    )
    assert (found.target, found.is_module) == ("train.py", False)
    assert found.argv == ["--workers", "9", "-m", "x", "--", "--help"]
    assert given_options(found, found.parser).values == {"workers": 3, "env": {"A": "1", "B": "2"}}


@pytest.mark.parametrize(
    ("words", "target", "argv"),
    [
        ("-m package.train -x --workers 2", "package.train", ["-x", "--workers", "2"]),
        ("--chief -mtrain a", "train", ["a"]),
        ("--timeout=5 -m train -- b", "train", ["--", "b"]),
    ],
)
def test_a_module_is_named_as_python_names_it(words, target, argv):
    found = read("run", *words.split())
    assert (found.target, found.argv, found.is_module) == (target, argv, True)


@pytest.mark.parametrize(
    "words, workers, argv",
    [
        ("a.py --workers 3 x --ps 2", 3, ["x", "--ps", "2"]),
        ("a.py --workers=3 --chief --lr 0.1", 3, ["--lr", "0.1"]),
        ("a.py --workers 3 -- --ps 2", 3, ["--ps", "2"]),
        ("a.py -- --workers 3", 2, ["--workers", "3"]),
        ("a.py -- x", None, ["--", "x"]),
        ("a.py x --workers 3", None, ["x", "--workers", "3"]),
        ("--workers 3 a.py --workers 4", 3, ["--workers", "4"]),
        ("--chief a.py --workers 4", None, ["--workers", "4"]),
        ("--quiet -m a --workers 3 x", 3, ["x"]),
    ],
)
def test_the_shape_may_still_stand_directly_behind_the_script(words, workers, argv):
    found = read("run", *words.split())
    assert (found.workers, found.argv) == (workers, argv)
    if not found.new_form:
        return
    again = read(*found.new_form.removeprefix("python -m tfmagic ").split())
    assert (again.workers, again.chief, again.argv, again.new_form) == (workers, found.chief, argv, "")


@pytest.mark.parametrize(
    ("source", "words", "workers", "argv"),
    [
        (
            "p.add_argument('--workers', type=int)",
            "--workers 8 --ps 1",
            None,
            ["--workers", "8", "--ps", "1"],
        ),
        ("p.add_argument('--workers', type=int)", "--chief --workers=8", None, ["--workers=8"]),
        ("flags.DEFINE_integer('workers', 2, '')", "--workers 8", None, ["--workers", "8"]),
        ("def main(workers=2): ...", "--workers 8 x", 8, ["x"]),
        ("'tfmagic run train.py --workers 8'", "--workers 8 x", 8, ["x"]),
        ("p.add_argument('--workers', type=int)", "-- --workers 8", 2, ["--workers", "8"]),
        ("p.add_argument('--workers-per-host', type=int)", "--workers=8", 8, []),
        ("this is no Python", "--workers 8", 8, []),
    ],
)
def test_an_option_of_the_script_itself_stays_its_own(tmp_path, monkeypatch, source, words, workers, argv):
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/__main__.py", "package/part.py"):
        (tmp_path / name).write_text(source)
    monkeypatch.chdir(tmp_path)
    for script in (["train.py"], ["-m", "train"], ["-mpackage"], ["-m", "package.part"]):
        found = read("run", *script, *words.split())
        assert (found.workers, found.argv) == (workers, argv), script
        assert bool(found.new_form) == (workers is not None or found.chief is not None)


def test_a_script_whose_name_looks_like_an_option_stands_behind_two_dashes():
    assert read("run", "--quiet", "--", "-odd.py", "x").target == "-odd.py"


def test_every_option_of_a_run():
    found = read(
        *[
            "run",
            "--workers",
            "2",
            "--ps",
            "1",
            "--chief",
            "--evaluator",
            "--env",
            "A=1",
            "--gpus-per-task",
            "0",
            "--keras",
            "2",
            "--no-keras-fix",
            "--auto-restart",
            "2",
            "--isolate",
            "--timeout",
            "2.5",
            "--keep-going",
            "--grace",
            "0",
            "--term-grace",
            "7",
            "--log-dir",
            "d",
            "--quiet",
            "s.py",
        ]
    )
    assert given_options(found, found.parser).values == {
        "workers": 2, "ps": 1, "chief": True, "evaluator": True, "env": {"A": "1"}, "gpus_per_task": 0, "keras": 2,
        "keras_fix": False, "auto_restart": 2, "isolate": True,
    }  # fmt: skip
    assert (found.timeout, found.grace, found.term_grace) == (2.5, 0.0, 7.0)
    assert found.keep_going and found.quiet and found.log_dir == "d"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "a command is missing"),
        ("nope", "no command 'nope'"),
        ("run", "a script is missing"),
        ("run -m", "needs the name of a module"),
        ("run -m a/b.py", "is not the name of a module"),
        ("run -", "standard input"),
        ("run --nope s.py", "unrecognized arguments: --nope"),
        ("run --workers", "expected one argument"),
        ("run --workers x s.py", "not a whole number"),
        ("run --grace -1 s.py", "expected one argument|more than 0"),
        ("run --timeout 0 s.py", "more than 0"),
        ("run --backend spark s.py", "invalid choice: 'spark'"),
        ("run --wor 2 s.py", "unrecognized arguments: --wor; did you mean --workers?"),
        ("logs --tial 3", "unrecognized arguments: --tial; did you mean --tail?"),
        ("statsu", "no command 'statsu'; did you mean status?"),
        ("status x", "unrecognized arguments: x"),
        ("logs --tail x", "not a whole number"),
        ("logs --grep [", "not a regular expression"),
        ("doctor --ps one", "not a whole number"),
    ],
)
def test_a_mistake_is_shown_with_a_next_step(capsys, words, said):
    text = refusal(capsys, *words.split())
    assert re.search(said, text) and "--help" in text


# ---- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", parsers.PAGES)
def test_the_help_of_a_command_has_its_options_examples_and_exit_codes(command):
    text = parsers.make_parser(command).format_help()
    for option in parsers.make_parser(command)._option_string_actions:
        assert re.search(rf"(^|[ ,]){re.escape(option)}\b", text, re.MULTILINE), option
    for code, meaning in parsers.PAGES[command].exits:
        assert re.search(rf"^  {re.escape(code)} +{re.escape(meaning)}$", text, re.MULTILINE)
    for line, _ in parsers.PAGES[command].examples:
        assert line in text


@pytest.mark.parametrize("command", parsers.PAGES)
def test_the_examples_of_help_can_be_typed(command):
    for line, _ in parsers.PAGES[command].examples:
        words = line.partition(" | ")[0].replace("'", "").split()
        assert read(*words).command == command


def test_the_help_of_all_reads_as_a_man_page(capsys):
    for words in (["--help"], ["-h"], ["help"]):
        with pytest.raises(SystemExit) as ended:
            parsers.parse(words)
        assert ended.value.code == 0
        text = capsys.readouterr().out
        sections = re.findall(r"^[A-Z ]+$", text, re.MULTILINE)
        assert sections[:4] == ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS"]
        assert all(f"    {name} " in text for name in parsers.PAGES)
        assert max(map(len, text.splitlines())) <= 110
    with pytest.raises(SystemExit):
        parsers.parse(["help", "logs"])
    assert "--follow" in capsys.readouterr().out


def test_help_and_looking_load_nothing_heavy():
    code = (
        "import sys\n"
        "from tfmagic.frontends.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print({m.partition('.')[0] for m in sys.modules}, file=sys.stderr)"
    )
    heavy = {
        "help": {"dill", "psutil", "traitlets"},
        "status": set(),
        "logs": set(),
        "doctor": set(),
        "reap": set(),
        "course": {"dill", "psutil"},
    }
    for command, more in heavy.items():
        done = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True)
        loaded = set(re.findall(r"'(\w+)'", done.stderr.splitlines()[-1]))
        assert "tfmagic" in loaded
        assert not loaded & ({"tensorflow", "keras", "IPython", "ipywidgets", "numpy"} | more), command


# ---- exit codes and summaries -------------------------------------------------------------------


def raised(interrupted=False):
    packed = PackedError("ValueError", "bad", "ValueError: bad\n", None, "worker-1")
    return CellRaised(WORKER, 1, 1, 0.1, 0, packed, interrupted)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (None, 0),
        (raised(), 1),
        (raised(interrupted=True), 130),
        (TaskExited(WORKER, 1, 7), 7),
        (TaskExited(WORKER, 1, -signal.SIGSEGV), 139),
        (TaskExited(WORKER, 1, -signal.SIGKILL), 137),
        (TaskLost(WORKER, 1, "the launcher was killed"), 137),
    ],
)
def test_the_exit_code_is_that_of_the_task_that_failed_first(outcome, code):
    assert exit_code(StopReason.TASKS_ENDED, outcome) == code


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (StopReason.TIMEOUT, 124),
        (StopReason.NOT_STARTED, 125),
        (StopReason.INTERRUPTED, 130),
        (StopReason.BROKEN_PIPE, 141),
        (StopReason.TERMINATED, 143),
    ],
)
def test_a_reason_from_outside_decides_the_exit_code(reason, code):
    assert exit_code(reason, TaskExited(WORKER, 1, 7)) == exit_code(reason, None) == code


TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 30, in <module>
    main()
  File "/home/me/train.py", line 12, in step
    return model(x)
  File "/venv/lib/python3.11/site-packages/keras/src/utils/traceback_utils.py", line 122, in error_handler
    raise e.with_traceback(filtered_tb) from None
ValueError: bad
"""
CRASH = """\
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/train.py", line 4 in look
  File "/home/me/train.py", line 9 in <module>
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 8, in save
  |     raise ExceptionGroup("g", [error])
  | ExceptionGroup: g (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/train.py", line 2, in write
    |     raise KeyError("inner")
    | KeyError: 'inner'
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("stack", "innermost_first", "place"),
    [
        (TRACEBACK, False, "/home/me/train.py, line 12, in step"),
        (CRASH, True, "/home/me/train.py, line 4, in look"),
        (GROUP, False, "/home/me/train.py, line 8, in save"),
        ('  File "t.py", line 3\n    x = (\nSyntaxError: never closed', False, "t.py, line 3"),
        ('  File "/a/site-packages/b.py", line 5, in c\n', False, "/a/site-packages/b.py, line 5, in c"),
        ("ValueError: bad", False, ""),
    ],
)
def test_the_place_of_a_failure_is_the_innermost_line_of_the_users(stack, innermost_first, place):
    assert place_of(stack, innermost_first) == place


def test_a_summary_has_the_task_the_reason_the_place_and_the_other_tasks():
    summary = RunSummary(
        StopReason.TASKS_ENDED,
        1,
        WORKER,
        "raised ValueError: bad",
        "train.py, line 12",
        "Traceback:\nValueError: bad",
        ["also on worker-2: UnavailableError: gone"],
        [TaskId("worker", 0), CHIEF],
        1.0,
        "tfmagic logs x",
    )
    assert format_summary(summary).splitlines() == [
        "tfmagic: worker-1 failed first: it raised ValueError: bad, at train.py, line 12",
        "    Traceback:",
        "    ValueError: bad",
        "tfmagic: also on worker-2: UnavailableError: gone",
        "tfmagic: ended the others: chief-0, worker-0",
        "tfmagic: all output:  tfmagic logs x",
        "tfmagic: exit code 1",
    ]


def test_a_run_that_went_well_has_no_summary():
    assert format_summary(RunSummary(StopReason.TASKS_ENDED, 0)) == ""


# ---- scripts that cannot be ---------------------------------------------------------------------


def test_a_script_that_python_can_run_has_no_problem(tmp_path):
    import compileall
    import zipapp

    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("print(1)")
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    compileall.compile_dir(tmp_path / "app", legacy=True, quiet=1)
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe4'\n")
    for name in ("app", "app.pyz", "app/__main__.py", "app/__main__.pyc", "latin.py"):
        assert find_problem(str(tmp_path / name), False) is None, name
    assert find_problem("tensorflow.nowhere", True) is None  # only a task could know
    assert find_problem("json", True) is None


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (None, 2, "No such file or directory"),
        (b"x = (", 1, "SyntaxError"),
        (b"x = '\xff'", 1, "SyntaxError"),
        (b"\0", 1, "null bytes"),
    ],
)
def test_a_script_that_python_cannot_run_is_an_error_before_anything_starts(tmp_path, content, code, said):
    path = tmp_path / "script.py"
    if content is not None:
        path.write_bytes(content)
    found = find_problem(str(path), False)
    assert found[0] == code and said in found[1]


@pytest.mark.parametrize(
    ("target", "is_module", "name"),
    [
        ("a/train.v2.py", False, "train_v2"),
        ("package.train", True, "train"),
        ("..", False, "_"),
        (".py", False, "_py"),
    ],
)
def test_a_run_is_called_after_its_script(target, is_module, name):
    assert name_of(target, is_module) == name


# ---- logs, status, reap -------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(tmp_path))
    return tmp_path


def make_run(base, name, cluster="default", logs=(), status=None, **facts):
    folder = base / "runs" / name
    folder.mkdir(parents=True)
    process = identify(os.getpid()).as_json()
    meta = {**process, "started": time.time(), "cluster": cluster, "shape": "2 workers", **facts}
    (folder / "run.json").write_text(json.dumps(meta))
    for task, content in dict(logs).items():
        (folder / f"{task}.log").write_bytes(content)
    if status is not None:
        (folder / "status.json").write_text(json.dumps(status))
    return folder


@pytest.mark.parametrize("word", SELECTORS)
def test_a_word_that_names_tasks_is_of_the_newest_run(base, word):
    make_run(base, "20260101-000000-a-1")
    newest = make_run(base, "20260102-000000-b-1")
    run, words = logs.find_run(base, [word])
    assert run.folder == newest and words == [word]


def test_without_a_name_it_is_the_newest_run_of_this_folder_and_a_newer_one_is_named(
    base, tmp_path_factory, monkeypatch, capsys
):
    here, linked = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("links") / "linked"
    linked.symlink_to(here)
    make_run(base, "20260101-000000-a-1", notebook=f"{here}/")  # a script
    ours = make_run(base, "20260102-000000-a-2", notebook=f"{linked}/mine.ipynb")
    newest = make_run(base, "20260103-000000-a-3", notebook=f"{here}/below/other.ipynb")
    make_run(base, "20260102-000000-b-1", notebook="")  # an older version noted none
    assert logs.find_run(base, [])[0].folder == newest and not capsys.readouterr().err
    monkeypatch.chdir(here)
    assert logs.find_run(base, ["worker-1"])[0].folder == ours
    assert f"{ours.name} is the newest run of this folder, {newest.name} of all" in capsys.readouterr().err
    assert logs.find_run(base, ["default"])[0].folder == newest and not capsys.readouterr().err


def test_a_run_is_known_by_name_beginning_folder_or_cluster(base):
    first, second = make_run(base, "20260101-000000-a-1", "a"), make_run(base, "20260102-000000-b-1", "b")
    third = make_run(base, "20260103-000000-a-2", "a")
    for word, folder in (
        (first.name, first),
        ("20260101", first),
        (str(second), second),
        ("b", second),
        ("a", third),
    ):
        run, words = logs.find_run(base, [word, "worker"])
        assert run.folder == folder and words == ["worker"], word
    with pytest.raises(logs.NotThere, match="the beginning of 3 runs"):
        logs.find_run(base, ["2026"])
    with pytest.raises(logs.NotThere, match="no run or cluster 'c'"):
        logs.find_run(base, ["c"])


def test_logs_of_anything_are_lines(base, capsys):
    garbage = bytes(range(256)) + b"\r\n\x1b[31mred\x1b[0m\nlast"
    made = {"worker-0": garbage, "worker-1": b"one\ntwo\n", "no-task": b""}
    make_run(base, "20260101-000000-a-1", logs=made, pid=GONE)
    assert main(["logs"]) == 0
    text = capsys.readouterr().out
    assert "[worker-0]:    red\n[worker-0]:    last\n[worker-1]:    one\n" in text and "\x1b" not in text
    assert main(["logs", "worker-1", "--tail", "1"]) == 0
    assert capsys.readouterr().out == "[worker-1]:    two\n"
    assert main(["logs", "--follow", "--tail", "1", "--grep", "^(o|l)"]) == 0  # it has ended
    assert capsys.readouterr().out == "[worker-1]:    one\n[worker-0]:    last\n"
    assert main(["logs", "--path", "worker-1"]) == 0
    assert capsys.readouterr().out.endswith("/worker-1.log\n")


@pytest.mark.parametrize("words", [["nowhere"], ["worker-7"], ["20260101", "ps"]])
def test_missing_logs_are_an_error(base, capsys, words):
    make_run(base, "20260101-000000-a-1", logs={"worker-0": b"x\n"})
    assert main(["logs", *words]) == 1
    said = capsys.readouterr()
    assert said.out == "" and words[-1] in said.err


def test_without_any_run_nothing_fails(base, capsys):
    assert main(["status"]) == main(["status", "--all"]) == main(["reap"]) == main(["logs", "--list"]) == 0
    assert "no cluster runs here" in capsys.readouterr().out
    assert main(["logs"]) == 1 and "there is no run" in capsys.readouterr().err
    assert main(["status", "--json"]) == 0 and json.loads(capsys.readouterr().out) == []


def row(name, **changes):
    return {"task": name, "state": "running", "pid": 5, "doing": "running", "address": "h:1", **changes}


def test_status_shows_what_runs_what_ended_and_what_died(base, capsys):
    now = time.time()
    tasks = [row("worker-0", line=3), row("worker-1", state="nonsense", memory_bytes="much")]
    make_run(base, "20260101-000000-a-1", "a", status={"written": now, "ended": False, "tasks": tasks})
    make_run(base, "20260102-000000-b-1", "b", status={"written": now, "ended": True, "tasks": tasks})
    gone = {"written": now - 40, "ended": False, "tasks": tasks}
    make_run(base, "20260103-000000-c-1", "c", pid=GONE, status=gone)
    make_run(base, "20260104-000000-d-1", "d", pid=GONE)
    (base / "runs" / "junk").mkdir()
    assert main(["status"]) == 0
    text = capsys.readouterr().out
    assert f"cluster a: running, 2 workers\n  owner    pid {os.getpid()}, which lives" in text
    assert re.search(
        r"^  worker-0 +running +5 .* running at line 3 +h:1$|^  worker-0 .*h:1$", text, re.MULTILINE
    )
    assert "cluster b" not in text and "3 runs have ended, of which 1 died; --all shows them" in text
    assert main(["status", "--all"]) == 0
    text = capsys.readouterr().out
    assert "20260102-000000-b-1  ended, 2 workers\n" in text and "20260104-000000-d-1  unknown" in text
    assert re.search(
        r"cluster c: died, 2 workers\n  owner .* is gone; .* reap ends .*\n(.*\n)*  as it was 4\d s ago:",
        text,
    )
    assert main(["status", "--all", "--json"]) == 0
    assert {s["cluster"]: s["state"] for s in json.loads(capsys.readouterr().out)} == {
        "a": "running",
        "b": "ended",
        "c": "died",
        "d": "unknown",
    }


def test_old_run_folders_are_deleted_on_request(base, capsys):
    old = make_run(base, "20250101-000000-a-1", pid=GONE, started=0.0)
    kept = make_run(base, "20260101-000000-a-1", pid=GONE)
    assert main(["reap", "--runs", "--dry-run"]) == 0
    assert f"would delete {old}" in capsys.readouterr().out and old.exists()
    assert main(["reap", "--runs"]) == 0
    assert f"deleted {old}" in capsys.readouterr().out and not old.exists() and kept.exists()
    assert RunFolder(kept).tasks == ()


def test_the_installed_script_is_the_same():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert tomllib.loads(text)["project"]["scripts"] == {"tfmagic": "tfmagic.frontends.cli:main"}


@pytest.mark.parametrize(
    ("target", "is_module", "command"),
    [
        ("train.py", False, "train.py"),
        ("my {1}.py", False, "'my {1}.py'"),
        ("package.train", True, "-m package.train"),
    ],
)
def test_the_command_of_an_advice_can_be_copied(target, is_module, command):
    assert again(target, is_module).format("--env A=1").endswith(f" run --env A=1 {command}")
