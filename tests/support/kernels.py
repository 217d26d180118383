"""A real ipykernel, driven as a front end drives it, its input box included."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import time
from typing import Any

from jupyter_client.manager import KernelManager

# stop the clusters, and reset settings, widgets, variables and numbers of cells
CLEAR = """
import sys
from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.frontends.notebook import plain_cells
plain_cells.remove(get_ipython())
magics = get_ipython().magics_manager.registry["TFClusterMagics"].notebook
magics.stop_all()
magics.clusters.clear()
magics.detached._jobs.clear()
for name, trait in TFCluster.class_own_traits(config=True).items():
    setattr(TFCluster.instance(), name, trait.default())
TFCluster.instance().text_bytes = 0
if "tfmagic.views.widget" in sys.modules:
    sys.modules["tfmagic.views.widget"].close_all()
get_ipython().InteractiveTB.set_mode("Context")
get_ipython().reset(new_session=True)
"""

UNLOAD = """
from tfmagic.backends import launcher_client
launcher_client.close_all, _close_all = lambda: None, launcher_client.close_all
%unload_ext tfmagic
launcher_client.close_all = _close_all
del launcher_client, _close_all
"""


class Kernel:
    """A kernel with its client; `run` returns the outputs of a cell.

    Args:
        options: Options of ipykernel.
        cwd: Its folder.
        python: Another interpreter than ours.
        module: The module of another kernel than ipykernel, for that interpreter.
        variables: Further variables of its environment.
    """

    def __init__(
        self, *options: str, cwd: str | None = None, python: str = "", module: str = "", **variables: str
    ) -> None:
        self.manager = KernelManager(kernel_name="python3")
        if python:
            self.manager.kernel_spec.argv[0] = python
        if module:
            self.manager.kernel_spec.argv[2] = module
        # failures as on a page, whose text is as long as IPython makes it
        arguments = ["--IPKernelApp.log_level=40", "--TFCluster.text_bytes=0", *options]
        self.manager.start_kernel(extra_arguments=arguments, cwd=cwd, env={**os.environ, **variables})
        self.connect()
        self.prompts: list[str] = []

    def connect(self) -> None:
        """Open a new client: while it is open, no other of this manager's session gets replies."""
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def start(self, code: str, stdin: bool = False) -> str:
        """Run a cell as a page does that has input boxes, or as a program that runs notebooks."""
        if not stdin:
            return str(self.client.execute(code, allow_stdin=False))
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}}
        content |= {"allow_stdin": True, "stop_on_error": True}
        message = self.client.session.msg("execute_request", content, metadata={"cellId": "1"})
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def outputs(self, message_id: str, until: Any = None, timeout: float = 60) -> list[tuple[str, Any]]:
        """Return the outputs of a request, in order, up to the one that satisfies `until`."""
        found: list[tuple[str, Any]] = []
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=deadline - time.monotonic())
            if message["parent_header"].get("msg_id") != message_id:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return found
            found.append((message["msg_type"], content))
            if until is not None and until(found[-1]):
                return found
        raise TimeoutError(found)

    def reply(self, message_id: str, timeout: float = 60) -> Any:
        """Return the reply to a request."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            message = self.client.get_shell_msg(timeout=deadline - time.monotonic())
            if message["parent_header"].get("msg_id") == message_id:
                return message["content"]
        raise TimeoutError

    def run(self, code: str) -> list[tuple[str, Any]]:
        """Return the outputs of a cell, without those that it has cleared."""
        outputs = self.outputs(self.start(code))
        cleared = max((i for i, (kind, _) in enumerate(outputs) if kind == "clear_output"), default=-1)
        return [o for i, o in enumerate(outputs) if i > cleared or o[0] not in ("stream", "display_data")]

    def text(self, code: str) -> str:
        """Run a cell. Return its printed text and the text form of the ended panels."""
        return text_of(self.run(code))

    def error(self, code: str) -> tuple[str, str]:
        """Run a cell. Return the name and the rendered text, without colours, of its error."""
        content = next(c for kind, c in self.run(code) if kind == "error")
        return content["ename"], plain("\n".join(content["traceback"]))

    def converse(self, code: str, *answers: str) -> list[tuple[str, Any]]:
        """Run a cell and type the answers into its input boxes; the prompts are in `prompts`."""
        message_id = self.start(code, stdin=True)
        self.prompts = []
        for answer in answers:
            request = self.client.get_stdin_msg(timeout=60)
            self.prompts.append(request["content"]["prompt"])
            self.client.input(answer)
        return self.outputs(message_id)

    def hear(self, wanted: Any, timeout: float = 60) -> Any:
        """Return the content of the first message to all pages that satisfies `wanted(kind, content)`."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=deadline - time.monotonic())
            if wanted(message["msg_type"], message["content"]):
                return message["content"]
        raise TimeoutError

    def send_comm(self, kind: str, metadata: Any = None, **content: Any) -> None:
        """Send a message of a comm, as a page does."""
        message = self.client.session.msg(kind, {"data": {}, **content}, metadata=metadata)
        self.client.shell_channel.send(message)

    def clear(self) -> bool:
        """Stop the clusters and delete the variables; check whether the kernel can serve another test."""
        if not self.manager.has_kernel:
            return False
        request = self.client.execute(CLEAR, store_history=False)
        end = time.monotonic() + 30
        while (
            self.manager.is_alive() and time.monotonic() < end
        ):  # a kernel that was killed just now is still alive
            with contextlib.suppress(queue.Empty):
                reply = self.client.get_shell_msg(timeout=0.2)
                if reply["parent_header"].get("msg_id") == request:
                    return bool(reply["content"]["status"] == "ok")
        return False

    def serves_others(self) -> bool:
        """Clear the kernel; check whether it is as a new one: some tests ask whether it imports TensorFlow."""
        if not self.clear():
            return False
        asked = self.client.execute("print('tensorflow' in __import__('sys').modules)", store_history=False)
        return text_of(self.outputs(asked)) == "False\n"

    def unload(self) -> None:
        """Unload the extension, and keep its launchers for the next test: they have TensorFlow imported."""
        self.run(UNLOAD)

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


def text_of(outputs: list[tuple[str, Any]]) -> str:
    """Return the printed text, then the last text of each display, then the error: it is never overlooked."""
    printed = "".join(content["text"] for kind, content in outputs if kind == "stream")
    shown: dict[str, str] = {}
    for kind, content in outputs:
        if kind in ("display_data", "update_display_data"):
            name = str(content.get("transient", {}).get("display_id", len(shown)))
            shown[name] = content["data"].get("text/plain", "") + "\n"
    errors = [f"{content['ename']}: {content['evalue']}\n" for kind, content in outputs if kind == "error"]
    return "".join([printed, *shown.values(), *errors])


def plain(text: str) -> str:
    """Return the text without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
