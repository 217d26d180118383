"""Run `tfmagic` commands one after the other in one process, so that TensorFlow is imported once for all.

Only the start of the process is not covered; other tests start whole processes. As a script, this module is
that process: it reads one request a line from standard input and answers each with the command's exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any


class Commands:
    """The process that runs commands. It is started with the first command, and again after it has ended."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def start(self, folder: Path, words: list[Any], **environ: str) -> None:
        """Start a command in this folder, with its output in out.txt and err.txt there."""
        if self.process is None or self.process.poll() is not None:
            pipes = dict.fromkeys(
                ("stdin", "stdout", "stderr"), subprocess.PIPE
            )  # what is seekable stays known
            self.process = subprocess.Popen([sys.executable, __file__], **pipes, text=True)
        for name in ("out.txt", "err.txt"):
            (folder / name).touch()
        assert self.process.stdin
        request = [str(folder), list(map(str, words)), {"TF_CPP_MIN_LOG_LEVEL": "3", **environ}]
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        """Wait for the end of the command and return its exit code."""
        assert self.process and self.process.stdout
        return int(self.process.stdout.readline())

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


def serve() -> None:
    """Run commands until standard input ends."""
    from tfmagic.frontends import cli

    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    search_path = sys.path[1:]
    for line in requests:
        folder, words, environ = json.loads(line)
        before = dict(os.environ)
        os.environ.update(environ)
        os.chdir(folder)
        sys.path[:] = [folder, *search_path]  # as for `python -m tfmagic`
        for number, name in ((1, "out.txt"), (2, "err.txt")):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
            os.close(file)
        try:
            code = run_script(*words[1:]) if words[0] == "python" else cli.main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
            code = -1
        sys.stdout.flush()
        sys.stderr.flush()
        os.environ.clear()
        os.environ.update(before)
        print(code, file=answers, flush=True)


def run_script(path: str) -> int:
    """Run a script as ``python`` does, with its folder on the search path."""
    runpy.run_path(path, run_name="__main__")
    return 0


if __name__ == "__main__":
    serve()
