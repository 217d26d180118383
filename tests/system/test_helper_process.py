"""Interpreters that help this process."""

import json
import subprocess
import sys

from tfmagic.system.helper_process import start_interpreter

SHOW = (
    "import json, os, sys; print(json.dumps([sys.path, dict(os.environ), open('/proc/self/cmdline').read()]))"
)


def test_a_helper_has_this_import_path_and_neither_its_command_nor_its_environment_shows_it(tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError('of the folder')")
    path = [*sys.path, "/a folder's", "/of: two", "/ä\udcff"]
    environ = {"HOME": "/", "OF_USER": "1"}
    options = {"path": path, "stdout": subprocess.PIPE, "cwd": tmp_path, "env": environ}
    with start_interpreter(SHOW, "word", **options) as helper:
        found, variables, command = json.loads(helper.stdout.read())
    assert found == path
    assert variables.items() >= environ.items() and not any("HELPER" in name for name in variables)
    assert "/of: two" not in command and command.endswith("\0word\0")
