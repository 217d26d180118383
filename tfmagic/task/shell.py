"""The IPython shell of a task: what `display`, `%magics`, `!commands` and the last value go through.

Running a cell does not go through `InteractiveShell.run_cell` (half a millisecond of hooks, history
and transformations that the notebook's side has done): `run_source` compiles and executes with the
shell's own compiler, namespace and display hook.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import getpass
import inspect
import json
import linecache
import sys
import types
from collections.abc import Callable
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell, InteractiveShellABC
from traitlets.config import Config

Publish = Callable[[dict[str, Any]], None]


class _TaskDisplayPublisher(DisplayPublisher):
    send: Publish

    def publish(self, data: Any, metadata: Any = None, *args: Any, **kwargs: Any) -> None:
        content = {"data": data, "metadata": metadata or {}}
        content["transient"] = kwargs.get("transient") or {}
        content["update"] = bool(kwargs.get("update", False))
        self.send(content)

    def clear_output(self, wait: bool = False) -> None:
        self.send({"clear": True, "wait": wait, "data": {}, "metadata": {}})


class _TaskDisplayHook(DisplayHook):
    send: Publish

    def show(self, value: Any) -> None:
        """Show the value of a cell's last expression."""
        builtins._ = value  # type: ignore[attr-defined]
        data, metadata = self.compute_format_data(value)
        self.send({"data": data, "metadata": metadata, "transient": {}, "update": False, "value": True})

    def __call__(self, result: Any = None) -> None:
        if result is not None:
            self.show(result)


class TaskShell(InteractiveShell):
    """An IPython shell without history, terminal or input, whose displays become events."""

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Errors travel to the notebook; nothing is printed here."""

    ask: Callable[[str, bool], str]

    def raw_input(self, prompt: str = "") -> str:
        """`input()` of a cell: the notebook's keyboard."""
        return self.ask(prompt, False)

    def getpass(self, prompt: str = "Password: ", stream: Any = None) -> str:
        """`getpass.getpass()` of a cell."""
        return self.ask(prompt, True)

    def ask_exit(self) -> None:
        """`quit()` and `exit()`, as `sys.exit()`."""
        raise SystemExit

    def init_sys_modules(self) -> None:
        self._main_mod_cache: dict[str, Any] = {}

    def init_io(self) -> None:
        pass

    def enable_gui(self, gui: Any = None) -> None:
        pass


InteractiveShellABC.register(TaskShell)


def make_shell() -> TaskShell:
    """The process' one shell. Starts no thread; the launcher makes it once for all its tasks."""
    if TaskShell.initialized():
        return TaskShell.instance()
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryAccessor.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.display_page = True
    main = types.ModuleType("__main__")
    shell = TaskShell.instance(
        config=config,
        user_module=main,
        user_ns=main.__dict__,
        display_pub_class=_TaskDisplayPublisher,
        displayhook_class=_TaskDisplayHook,
    )
    return shell


class CellRunner:
    """Runs cells and calls in the task's namespace, in the main thread.

    Args:
        send: Called with each display as {"data", "metadata", "transient", "update", ...}.
        ask: What the user types, given a prompt and whether it is hidden.
    """

    def __init__(self, send: Publish, ask: Callable[[str, bool], str]):
        self.shell = make_shell()
        self.shell.display_pub.send = send
        self.shell.displayhook.send = send
        self.namespace: dict[str, Any] = self.shell.user_ns
        sys.modules["__main__"] = self.shell.user_module
        sys.displayhook = self.shell.displayhook
        self.shell.ask = ask
        builtins.input = self.shell.raw_input  # type: ignore[assignment]  # prompts are text here
        getpass.getpass = self.shell.getpass
        self.builtin_names = frozenset(self.namespace)
        self._loop: asyncio.AbstractEventLoop | None = None

    def run_source(self, source: str, filename: str, show: bool) -> Any:
        """Run a cell; the value of its last expression, which is shown where `show` is set.

        Raises:
            BaseException: Whatever the cell raises.
        """
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        body = self.shell.compile.ast_parse(source, filename).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        if body:
            self._execute(ast.Module(body, []), filename, "exec")
        if last is None:
            value = None
        else:
            value = self._execute(ast.Expression(last.value), filename, "eval")
            if show and value is not None:
                self.shell.displayhook.show(value)
        self.shell.events.trigger("post_execute")  # matplotlib's inline figures are shown here
        return value

    def _execute(self, tree: ast.Module | ast.Expression, filename: str, mode: str) -> Any:
        flags = self.shell.compile.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(tree, filename, mode, flags, dont_inherit=True)
        result = eval(code, self.namespace)
        return self.wait_for(result) if code.co_flags & inspect.CO_COROUTINE else result

    def wait_for(self, coroutine: Any) -> Any:
        """The result of a coroutine, on the task's own event loop."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        future = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(future)
        except KeyboardInterrupt:
            future.cancel()
            raise


def encode_bundle(content: dict[str, Any]) -> bytes:
    """A display as JSON; bytes (images) become base64, what JSON does not know becomes text."""
    import base64

    def convert(value: Any) -> Any:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else repr(value)

    return json.dumps(content, default=convert).encode()
