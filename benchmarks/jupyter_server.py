"""A real Jupyter server with one kernel, whose cells a client runs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import psutil
from jupyter_client.blocking import BlockingKernelClient

from benchmarks.training import free_addresses

_PATIENCE_S = 60.0
_EXTENSION = "--ServerApp.jpserver_extensions={'tfmagic.server': True}"


class ServedKernel:
    """The kernel and its server, which listens at this port."""

    def __init__(self, folder: str, server: subprocess.Popen[bytes], port: str):
        self._folder, self.server, self._port = folder, server, port
        self._id = str(json.loads(self._ask("", {"name": "python3"}))["id"])

    @property
    def pid(self) -> int:
        """The pid of the kernel."""
        children = psutil.Process(self.server.pid).children()
        (pid,) = [p.pid for p in children if self._id in " ".join(p.cmdline())]
        return int(pid)

    def restart(self) -> None:
        """Let the server restart the kernel."""
        self._ask(f"/{self._id}/restart", {"any": "body"})

    @contextlib.contextmanager
    def client(self) -> Iterator[BlockingKernelClient]:
        """Yield a client of the kernel that runs now, as soon as it is ready."""
        client = BlockingKernelClient(connection_file=f"{self._folder}/runtime/kernel-{self._id}.json")
        client.load_connection_file()
        client.start_channels(hb=False)  # the heartbeat reports a kernel that is still starting as dead
        try:
            client.wait_for_ready(timeout=_PATIENCE_S)
            yield client
        finally:
            client.stop_channels()

    def _ask(self, path: str, body: Any) -> bytes:
        """Send a request, again as long as the server starts. Return what it answers."""
        address, deadline = f"http://127.0.0.1:{self._port}/api/kernels{path}", time.monotonic() + _PATIENCE_S
        while True:
            try:
                data = json.dumps(body).encode()
                with urllib.request.urlopen(urllib.request.Request(address, data=data)) as reply:
                    return bytes(reply.read())
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)


@contextlib.contextmanager
def served_kernel(*options: str) -> Iterator[ServedKernel]:
    """Start a server with tfmagic's extension and these options, and a kernel; end both with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        port = free_addresses(1)[0].rpartition(":")[2]
        flags = ["--no-browser", "--allow-root", f"--notebook-dir={folder}", _EXTENSION, *options]
        flags += ["--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"]
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", f"--port={port}", *flags],
            env={**os.environ, "JUPYTER_CONFIG_DIR": folder, "JUPYTER_RUNTIME_DIR": f"{folder}/runtime"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield ServedKernel(folder, server, port)
        finally:
            server.kill()
            server.wait()


def run_cell(client: BlockingKernelClient, cell: str, value: str = "None") -> Any:
    """Run a cell, and return the value of an expression afterwards, which is a literal."""
    reply = client.execute_interactive(
        cell, timeout=_PATIENCE_S, output_hook=lambda message: None, user_expressions={"value": value}
    )
    assert reply["content"]["status"] == "ok", reply["content"]
    return json.loads(
        reply["content"]["user_expressions"]["value"]["data"]["text/plain"].replace("None", "null")
    )
