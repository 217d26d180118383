"""A real Jupyter server whose kernels are started through its REST interface."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conftest import wait_until
from jupyter_client.blocking import BlockingKernelClient

OURS = "--ServerApp.jpserver_extensions={'tfmagic.server': True}"
"""The option that loads tfmagic's extension of the server."""


class JupyterServerProcess:
    """The server, without a token.

    Args:
        folder: For its settings, its connection files and its log.
        options: Of its command line.
    """

    def __init__(self, folder: Path, *options: str):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        runtime = str(folder / "runtime")
        environ = {**os.environ, "JUPYTER_CONFIG_DIR": str(folder), "JUPYTER_RUNTIME_DIR": runtime}
        command = [sys.executable, "-m", "jupyter_server", f"--port={self.port}", "--no-browser"]
        command += ["--allow-root", "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"]
        command += [f"--notebook-dir={folder}", *options]
        self.log = (folder / "server.log").open("wb")
        self.process = subprocess.Popen(command, env=environ, stdout=self.log, stderr=self.log)
        wait_until(lambda: self.ask("GET", "api/status"), 60)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request; return what the server answers, None if it does not."""
        data = json.dumps(body).encode() if body else None
        address = f"http://127.0.0.1:{self.port}/{path}"
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(urllib.request.Request(address, method=method, data=data)) as reply,
        ):
            return json.load(reply)

    def start_kernel(self) -> str:
        """Start a kernel; return its id."""
        return str(self.ask("POST", "api/kernels", {"name": "python3"})["id"])

    def restart_kernel(self, kernel: str) -> None:
        self.ask("POST", f"api/kernels/{kernel}/restart", {"any": "body"})

    @contextlib.contextmanager
    def client(self, kernel: str) -> Iterator[Callable[[str], str]]:
        """Yield a function that runs a cell and returns what it printed."""
        (file,) = wait_until(lambda: list(self.folder.glob(f"runtime/kernel-{kernel}.json")))
        client = BlockingKernelClient(connection_file=str(file))
        client.load_connection_file()
        client.start_channels(hb=False)  # it takes a kernel that is still starting for a dead one

        def run(cell: str) -> str:
            printed: list[str] = []
            hook = lambda message: printed.append(message["content"].get("text", ""))  # noqa: E731
            reply = client.execute_interactive(cell, timeout=120, output_hook=hook)
            assert reply["content"]["status"] == "ok", reply["content"]
            return "".join(printed)

        try:
            client.wait_for_ready(timeout=60)
            yield run
        finally:
            client.stop_channels()

    def __enter__(self) -> JupyterServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()
