"""A real Jupyter server and a real browser: JupyterLab or Notebook 7 in Debian's Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import nbformat
import psutil
from conftest import wait_until
from jupyter_client.blocking import BlockingKernelClient
from kernels import CLEAR

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
POLL_MS = 50  # else a page that waits asks, and draws, 60 times a second
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}


def chromium() -> str:
    """Return the path of the browser, which `make test` installs."""
    found = shutil.which("chromium")
    assert found, "Chromium is missing; `make test` installs it (apt-get install chromium)"
    return found


class Server:
    """A Jupyter server on loopback with settings of its own and without a token.

    It serves JupyterLab and Notebook 7. The kernel of a notebook that was closed serves the next one: its launcher
    has TensorFlow imported.

    Args:
        folder: Folder of the notebooks.
        python: The interpreter of an environment with more packages than ours, by `scripts/beside`.
    """

    def __init__(self, folder: Path, theme: str = "JupyterLab Light", python: str = sys.executable):
        self.folder = folder
        self._kept: dict[str, Any] | None = None  # the session whose kernel waits for the next notebook
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._state = state = folder / ".jupyter"
        self._write_settings(state, theme)
        environ = dict(
            os.environ,
            JUPYTERLAB_SETTINGS_DIR=str(state / "settings"),
            JUPYTERLAB_WORKSPACES_DIR=str(state / "workspaces"),
            JUPYTER_CONFIG_DIR=str(state / "config"),
            JUPYTER_RUNTIME_DIR=str(state / "runtime"),
            JUPYTER_DATA_DIR=str(state / "data"),
            JUPYTER_PATH=f"{sys.prefix}/share/jupyter",  # of ours, whichever interpreter it is
            JUPYTER_CONFIG_PATH=f"{sys.prefix}/etc/jupyter",
        )
        self.log = state / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(python, "-m", "jupyterlab"),
                    *("--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"),
                    *(f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0"),
                    *(f"--ServerApp.root_dir={folder}", "--IdentityProvider.token="),
                    *("--ServerApp.disable_check_xsrf=True", "--LabApp.expose_app_in_browser=True"),
                    "--JupyterNotebookApp.expose_app_in_browser=True",
                ],
                cwd=folder,  # jupyter-collaboration keeps a file there
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(self._answers, 60)

    def _write_settings(self, state: Path, theme: str) -> None:
        themes = {"@jupyterlab/apputils-extension:themes": {"theme": theme}}
        for plugin, value in {**SETTINGS, **themes}.items():
            package, _, name = plugin.rpartition(":")
            path = state / "settings" / package / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value))
        for name in ("workspaces", "config", "runtime", "data"):
            (state / name).mkdir(parents=True, exist_ok=True)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{self.url}/api/status", timeout=1).read()
            return True
        return False

    def request(self, path: str, method: str = "GET", body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        with urllib.request.urlopen(request, timeout=20) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def lend_kernel(self, path: str) -> None:
        """Give the kept kernel to a notebook that is not open yet."""
        if self._kept is not None:
            self.request(f"/api/sessions/{self._kept['id']}", "PATCH", {"path": path, "name": path})
            self._kept = None

    def take_kernel(self, path: str) -> None:
        """Keep the kernel of a notebook that is closed for the next one; end it if there is one already."""
        for session in self.request("/api/sessions"):
            if session["path"] == path:
                if self._kept is None and self._clear(session["kernel"]["id"]):
                    self._kept = session
                else:
                    self.request(f"/api/sessions/{session['id']}", "DELETE")

    def _clear(self, kernel: str) -> bool:
        """Reset a kernel. Return whether that worked."""
        connection = self._state / "runtime" / f"kernel-{kernel}.json"
        client = BlockingKernelClient(connection_file=str(connection))
        client.load_connection_file()
        client.start_channels(hb=False)
        try:
            reply = client.execute_interactive(
                CLEAR, store_history=False, timeout=20, output_hook=lambda message: None
            )
            return bool(reply["content"]["status"] == "ok")
        except TimeoutError:
            return False
        finally:
            client.stop_channels()

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for kernel in self.request("/api/kernels"):
                self.request(f"/api/kernels/{kernel['id']}", "DELETE")
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


def write_notebook(path: Path, *cells: str) -> Path:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path


class Pages:
    """The pages of one browser context. A page whose notebook was closed opens the next one.

    To load JupyterLab takes 5 s of CPU time, to open a notebook in it less than one.
    """

    def __init__(self, context: Any, server: Server):
        self.context, self.server = context, server
        self._kept: Any = None

    def open(self, path: str, app: str = "lab") -> NotebookPage:
        """Open a notebook: in JupyterLab in the kept page, in Notebook 7 (``notebook``) in a page of its own."""
        if app == "lab" and self._kept is not None:
            page, self._kept = self._kept, None
            return NotebookPage(page, self.server, path, loaded=True)
        return NotebookPage(self.context.new_page(), self.server, path, app)

    def close(self, book: NotebookPage) -> None:
        """Close a notebook and keep its kernel, and its page if nothing is left in it."""
        if self._kept is None and book.app == "lab" and book.close_notebook():
            for event, listener in book.listeners.items():
                book.page.remove_listener(event, listener)
            self._kept = book.page
        else:
            book.page.close()
        book.give_back_kernel()


class NotebookPage:
    """An open notebook in a Playwright page.

    Args:
        app: ``lab`` or ``notebook``.
        loaded: Whether the page shows JupyterLab without a notebook.
    """

    def __init__(self, page: Any, server: Server, path: str, app: str = "lab", loaded: bool = False):
        self.page, self.server, self.path, self.app = page, server, path, app
        self.at = 1  # index of the cell under test
        self.flag: Path | None = None  # the file that ends this cell
        self.console: list[str] = []
        self.received_bytes = 0
        self.largest_message = 0
        self.large_messages = 0  # of more than 100 kB
        self.listeners: dict[str, Any] = {"console": self._note, "websocket": self._listen}
        for event, listener in self.listeners.items():
            page.on(event, listener)
        server.lend_kernel(path)
        self._first_path = path
        if loaded:
            self.open_in_page("idle")
        else:
            self.open()

    def open_in_page(self, kernel: str) -> None:
        """Open the notebook in a page that shows JupyterLab without a notebook; see `open`."""
        self.command("docmanager:open", path=self.path)
        self.wait_until_open(kernel)

    def _note(self, message: Any) -> None:
        self.console.append(f"{message.type}: {message.text}")

    def _listen(self, socket_: Any) -> None:
        def count(frame: Any) -> None:
            self.received_bytes += len(frame)
            self.largest_message = max(self.largest_message, len(frame))
            self.large_messages += len(frame) > 100_000

        socket_.on("framereceived", count)

    def open(self, kernel: str = "idle") -> None:
        """Load the page, or load it again.

        Args:
            kernel: "idle": wait until the kernel is idle, so that the page has requested its widgets before a
                cell blocks it; "connected": until it is connected; "": do not wait.
        """
        where = f"lab/tree/{self.path}?reset" if self.app == "lab" else f"notebooks/{self.path}"
        self.page.goto(f"{self.server.url}/{where}", wait_until="domcontentloaded")
        self.wait_until_open(kernel)

    def wait_until_open(self, kernel: str) -> None:
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self.page.wait_for_function(
            "() => { const book = window.jupyterapp?.shell?.currentWidget;"  # which has no cells at first
            " return book?.context?.isReady && book.content?.widgets?.length === book.content.model?.cells?.length }",
            timeout=60_000,
            polling=POLL_MS,
        )
        if kernel:
            self.page.wait_for_function(
                "wanted => { const k = window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel;"
                " return k?.connectionStatus === 'connected' && (wanted === 'connected' || k.status === wanted) }",
                arg=kernel,
                timeout=60_000,
                polling=POLL_MS,
            )

    def command(self, name: str, **arguments: Any) -> None:
        """Execute a command of the application without waiting for its result."""
        self.page.evaluate(
            "([name, arguments_]) => { window.jupyterapp.commands.execute(name, arguments_).catch(() => {}) }",
            [name, arguments],
        )

    def select(self, index: int) -> None:
        self.page.evaluate(
            "i => { const c = window.jupyterapp.shell.currentWidget.content; c.deselectAll(); c.activeCellIndex = i }",
            index,
        )

    def start(self, index: int) -> None:
        """Run a cell, without waiting for its end."""
        self.select(index)
        self.command("notebook:run-cell")

    def run(self, index: int, timeout_s: float = 60) -> None:
        self.start(index)
        self.wait_until_ended(index, timeout_s)

    def wait_until_ended(self, index: int, timeout_s: float = 60) -> None:
        """Wait until the prompt shows the number of the cell."""
        self.page.wait_for_function(
            "i => /\\[\\d+\\]/.test(window.jupyterapp.shell.currentWidget.content.widgets[i]"
            ".inputArea.promptNode.innerText)",
            arg=index,
            timeout=timeout_s * 1000,
            polling=POLL_MS,
        )

    def is_running(self, index: int) -> bool:
        prompt = self.page.evaluate(
            "i => window.jupyterapp.shell.currentWidget.content.widgets[i].inputArea.promptNode.innerText",
            index,
        )
        return "*" in prompt

    def output(self, index: int) -> Any:
        """Return the outputs of a cell, as a locator."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".jp-Cell-outputArea")

    @property
    def shown(self) -> Any:
        """The visible outputs of the cell under test: a draft of its saved form is hidden behind the panel."""
        return self.output(self.at).locator(".jp-OutputArea-child:visible")

    @property
    def kernel(self) -> Any:
        """The kernel of the notebook, as the server describes it."""
        sessions = self.server.request("/api/sessions")
        return next(s["kernel"] for s in sessions if s["path"] == self.path)

    @property
    def kernel_pid(self) -> int:
        """The process of the kernel."""
        name = f"kernel-{self.kernel['id']}.json"
        return min(p.pid for p in psutil.process_iter(["cmdline"]) if name in str(p.info["cmdline"]))

    def close_notebook(self) -> bool:
        """Close the notebook without saving it. Check whether the page can open another one."""
        closed = self.page.evaluate(
            "() => { const app = window.jupyterapp, book = app?.shell.currentWidget;"
            " if (!book?.context || document.querySelector('.jp-Dialog')) return false;"
            " book.context.model.dirty = false; book.close(); return true }"
        )
        return bool(closed)

    def give_back_kernel(self) -> None:
        """Keep the kernel of the notebook, which is closed, for the next one."""
        if self.server.process.poll() is None:
            for path in {self._first_path, self.path}:
                self.server.take_kernel(path)

    def save(self) -> nbformat.NotebookNode:
        """Save the notebook and return it as it is on disk."""
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.save()")
        return nbformat.read(self.server.folder / self.path, as_version=4)
