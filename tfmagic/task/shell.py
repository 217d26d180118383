"""The IPython shell of a task: what `display`, `%magics`, `!commands` and the last value go through.

Running a cell does not go through `InteractiveShell.run_cell` (half a millisecond of hooks, history
and transformations that the notebook's side has done): `run_source` compiles and executes with the
shell's own compiler, namespace and display hook. It does what IPython does: each statement is compiled by
itself, ``from __future__`` holds for later cells, and In, Out, ``_`` and ``_N`` are those of the cells that
this task has run, under the notebook's numbers.
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
from IPython.core.interactiveshell import ExecutionInfo, InteractiveShell, InteractiveShellABC
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
        """Show the value of a cell's last expression. A `repr` that raises prints its traceback."""
        self.check_for_underscore()
        data, metadata = self.compute_format_data(value)
        self.update_user_ns(value)
        if data:
            self.send({"data": data, "metadata": metadata, "transient": {}, "update": False, "value": True})

    def __call__(self, result: Any = None) -> None:
        if result is not None:
            self.show(result)


class TaskShell(InteractiveShell):
    """An IPython shell without terminal or input, and with no history on disk; its displays become events.

    What a cell raises travels to the notebook. What IPython catches itself (a `repr` that raises, ``%time``,
    ``%run``) it prints, here as everywhere.
    """

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        """Print a traceback to the task's log."""
        print(self.InteractiveTB.stb2text(stb), file=sys.stderr)

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
        self.shell.display_trap.__enter__()  # for good: a cell inside of %%capture must not set it anew
        self.shell.ask = ask
        builtins.input = self.shell.raw_input  # type: ignore[assignment]  # prompts are text here
        getpass.getpass = self.shell.getpass
        self.builtin_names = frozenset(self.namespace)
        self._loop: asyncio.AbstractEventLoop | None = None

    def run_source(self, source: str, filename: str, show: bool, prompt: int = 0) -> Any:
        """Run a cell; the value of its last expression, which is shown where `show` is set.

        Args:
            prompt: The notebook's number of the cell; 0 for the number after the last one.

        Raises:
            BaseException: Whatever the cell raises.
        """
        shell = self.shell
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        self._record(source, filename, prompt)
        if shell.events.callbacks["pre_run_cell"]:
            info = ExecutionInfo(source, True, False, True, None)
            shell.events.trigger("pre_run_cell", info)
        try:
            tree = shell.compile.ast_parse(source, filename)
            return self._run_statements(shell.transform_ast(tree).body, filename, show)
        finally:
            shell.events.trigger("post_execute")  # matplotlib's inline figures are shown here

    def _record(self, source: str, filename: str, prompt: int) -> None:
        """Note a cell in this task's history."""
        shell, history = self.shell, self.shell.history_manager
        inputs = history.input_hist_parsed, history.input_hist_raw
        prompt = prompt or len(inputs[0])
        for known in inputs:  # cells that ran elsewhere leave gaps; two in one cell of the notebook are one
            known[prompt:] = [""] * (prompt - len(known))
        shell.execution_count = prompt + 1
        shell.compile._filename_map[filename] = prompt
        history.store_inputs(prompt, source.lstrip("\n"))
        history.db_input_cache.clear()  # nobody writes it to a file

    def _run_statements(self, body: list[ast.stmt], filename: str, show: bool) -> Any:
        """Run one statement after the other; the value of the last one, if it is an expression."""
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        for statement in body:
            self._execute(ast.Module([statement], []), filename, "exec")
        if not isinstance(last, ast.Expr):
            return None
        value = self._execute(ast.Expression(last.value), filename, "eval")
        if show and value is not None:
            self.shell.displayhook.show(value)
        return value

    def _execute(self, tree: ast.Module | ast.Expression, filename: str, mode: str) -> Any:
        compiler = self.shell.compile
        with compiler.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
            code = compiler(tree, filename, mode)
        result = eval(code, self.namespace)
        return self.wait_for(result) if code.co_flags & inspect.CO_COROUTINE else result

    def wait_for(self, coroutine: Any) -> Any:
        """The result of a coroutine, on the task's own event loop; on a new one if a cell has closed it."""
        if self._loop is None or self._loop.is_closed():
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
