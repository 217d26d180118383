"""Windows and macOS, as far as Linux can show them: an import works, and the first use says what to do.

`tests/support/elsewhere.py` says how. No such machine has run these tests.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ELSEWHERE = Path(__file__).parents[1] / "support" / "elsewhere.py"
SENTENCE = {
    "win32": "tfmagic runs tasks on Linux, and this is Windows: use WSL2 (in PowerShell:  wsl --install",
    "darwin": "tfmagic runs tasks on Linux, and this is macOS: use a Linux container or virtual machine",
}
USES = """
import contextlib, io, importlib, json, logging, sys, tempfile
import tfmagic
import tfmagic.pytest_plugin, tfmagic.server
assert issubclass(tfmagic.TaskDied, tfmagic.TfmagicError) and tfmagic.__version__
from tfmagic.frontends import cli
said = {}
def use(name, action):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = action()
    except BaseException as error:
        code = f"{type(error).__name__}: {error}"
    said[name] = [str(code), out.getvalue()]
for name in ("Cluster", "cluster", "TFCluster", "attach", "TaskResults", "allow_other_machines"):
    use(name, lambda: getattr(tfmagic, name))
for name in ("hdf5", "logdir", "multi_process_runner", "tfrecord"):
    use(name, lambda: importlib.import_module(f"tfmagic.{name}"))
use("task", tfmagic.current_task)
for line in ("--help", "--version", "doctor", "doctor --json", "explain TaskDied", "run --help", "run x.py", "status"):
    use(line, lambda: cli.main(line.split()))
use("course", lambda: cli.main(["course", tempfile.mkdtemp() + "/lessons"]))
use("load_ext", lambda: shell.run_cell("%load_ext tfmagic").error_in_exec)
class App:
    config, log = {}, logging.getLogger("server")
log = io.StringIO()
App.log.addHandler(logging.StreamHandler(log))
tfmagic.server._load_jupyter_server_extension(App)
said["server"] = ["", log.getvalue()]
sys.__stdout__.write(json.dumps(said))
"""


@pytest.fixture(scope="module", params=sorted(SENTENCE))
def said(request):
    """Return the sentence of a system, and for each use its result and what it has printed."""
    done = subprocess.run(
        [sys.executable, ELSEWHERE, request.param, USES], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return SENTENCE[request.param], json.loads(done.stdout)


def test_the_import_works_and_the_first_use_says_what_to_do(said):
    sentence, found = said
    for name in ("Cluster", "cluster", "TFCluster", "attach", "TaskResults", "allow_other_machines"):
        assert found[name][0].startswith(f"ImportError: {sentence}")
    for name in ("hdf5", "logdir", "multi_process_runner", "tfrecord"):
        assert found[name][0].startswith(f"ImportError: {sentence}")
    assert found["task"][0].startswith("TfmagicError: current_task() is for code that runs on a task")
    (line,) = found["load_ext"][1].splitlines()  # no traceback
    assert line.startswith(f"UsageError: {sentence}") and line.endswith("or Google Colab")
    (line,) = found["server"][1].splitlines()
    assert line.startswith("tfmagic: no metrics and no logs from this server:") and sentence in line


def test_the_commands_of_the_shell_say_what_to_do_or_work(said):
    sentence, found = said
    assert found["--help"][0] == "SystemExit: 0" and "SYNOPSIS" in found["--help"][1]
    assert found["--version"][0] == "SystemExit: 0" and found["run --help"][0] == "SystemExit: 0"
    assert found["doctor"] == ["1", found["doctor"][1]] and found["doctor"][1].startswith(f"✕ {sentence}")
    (finding,) = json.loads(found["doctor --json"][1])
    assert finding["severity"] == "trouble" and finding["what"].startswith(sentence)
    for line in ("run x.py", "status"):
        code, text = found[line]
        assert code == "125" and f": {sentence}" in text and len(text.splitlines()) == 1
    assert found["explain TaskDied"][0] == "0" and found["course"][0] == "0"
