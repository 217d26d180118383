"""The IPython shell of a task: it runs cells, `%magics` and `!commands`, and shows displays and last values.

A cell does not go through `InteractiveShell.run_cell`, half a millisecond of hooks, history and
transformations that the notebook has already done. `run_source` compiles and executes with the shell's own
compiler, namespace and display hook. As in IPython, each statement is compiled by itself, ``from __future__``
holds for later cells, and In, Out, ``_`` and ``_N`` are those of the cells that this task has run, under the
notebook's numbers.
"""

import ast
import asyncio
import builtins
import contextlib
import getpass
import inspect
import json
import keyword
import linecache
import os
import re
import sys
import types
from collections.abc import Callable
from importlib import metadata
from typing import Any

from IPython.core.autocall import IPyAutocall
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import ExecutionInfo, InteractiveShell
from traitlets.config import Config

from tfmagic.task import notebook_packages, own_builtins
from tfmagic.task.received_names import ReceivedNames

_FIRST_WORD = re.compile(r"[^\W\d]\w*")
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

    def __call__(self, result: Any = None) -> None:
        """Show the value of a cell's last expression. If its `repr` raises, print the traceback."""
        if result is None:
            return
        self.check_for_underscore()
        data, metadata = self.compute_format_data(result)
        self.update_user_ns(result)
        if data:
            self.send({"data": data, "metadata": metadata, "transient": {}, "update": False, "value": True})


class TaskShell(InteractiveShell):
    """An IPython shell without terminal, input, or history on disk. Its displays become events.

    Exceptions of a cell travel to the notebook. Exceptions that IPython itself catches (of a `repr`,
    ``%time`` or ``%run``) are printed, as in IPython.
    """

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        """Print a traceback to the task's log."""
        print(self.InteractiveTB.stb2text(stb), file=sys.stderr)

    ask: Callable[[str, bool], str]
    received: ReceivedNames
    kernel: Any = None  # pandas takes a shell without this attribute for a terminal

    def transform_ast(self, node: Any) -> Any:
        """Transform a cell's code, and mark what it assigns. ``%%time`` calls it, too."""
        return self.received.marked(super().transform_ast(node))

    def raw_input(self, prompt: str = "") -> str:
        """Ask the user in the notebook: `input()` of a cell."""
        return self.ask(prompt, False)

    def getpass(self, prompt: str = "Password: ", stream: Any = None) -> str:
        """Ask the user for hidden input: `getpass.getpass()` of a cell."""
        return self.ask(prompt, True)

    def ask_exit(self) -> None:
        """Do as `sys.exit()` for `quit()` and `exit()`."""
        raise SystemExit

    def init_sys_modules(self) -> None:
        self._main_mod_cache: dict[str, Any] = {}

    def init_io(self) -> None:
        pass

    def enable_gui(self, gui: Any = None) -> None:
        pass


def make_shell() -> TaskShell:
    """Return the process' only shell. Starts no thread; the launcher makes it once for all its tasks."""
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
    shell.extension_manager.load_extension("storemagic")  # ``%store``, which every notebook has
    with contextlib.suppress(metadata.PackageNotFoundError):
        if metadata.version("ipywidgets").startswith("7."):  # its import needs a kernel that has comms
            comms = types.SimpleNamespace(register_target=lambda *_: None)
            shell.kernel = types.SimpleNamespace(comm_manager=comms)
    return shell


class CellRunner:
    """Runs cells and calls in the task's namespace, in the main thread.

    Args:
        send: Called with each display as {"data", "metadata", "transient", "update", ...}.
        ask: Returns what the user types, given a prompt and whether the input is hidden.
        is_notebook: Whether modules find `get_ipython` among Python's own names, and no `exit`.
    """

    def __init__(self, send: Publish, ask: Callable[[str, bool], str], is_notebook: bool = False):
        self.shell = make_shell()
        self.shell.display_pub.send = send
        self.shell.displayhook.send = send
        self.namespace: dict[str, Any] = self.shell.user_ns
        self.received = self.shell.received = ReceivedNames(self.namespace)
        sys.modules["__main__"] = self.shell.user_module
        self.shell.display_trap.__enter__()  # for good: a cell inside %%capture must not set it again
        if is_notebook:
            self.shell.builtin_trap.__enter__()
            notebook_packages.adapt()
        self.shell.ask = ask
        builtins.input = self.shell.raw_input  # type: ignore[assignment]  # prompts are text here
        getpass.getpass = self.shell.getpass
        own_builtins.note()
        self.builtin_names = frozenset(self.namespace)
        self._loop: asyncio.AbstractEventLoop | None = None
        history = self.shell.history_manager
        self._inputs: tuple[list[str], list[str]] = (history.input_hist_parsed, history.input_hist_raw)
        self._last_inputs = ("", "", "")

    def run_source(self, source: str, filename: str, show: bool, prompt: int = 0) -> Any:
        """Run a cell and return the value of its last expression. Raises what the cell raises.

        Args:
            source: The cell.
            filename: Under which its lines stand in tracebacks.
            show: Whether the value is shown.
            prompt: The notebook's number of the cell; 0 for the number after the last one.
        """
        shell, source = self.shell, self._with_automagic(source)
        _note_lines(filename, source)
        self._record(source, filename, prompt)
        shell.events.trigger("pre_execute")  # each cell shows its warnings again, also equal ones
        if shell.events.callbacks["pre_run_cell"]:
            info = ExecutionInfo(source, True, False, True, None)
            shell.events.trigger("pre_run_cell", info)
        try:
            tree = shell.compile.ast_parse(source, filename)
            if shell.ast_node_interactivity == "last_expr_or_assign":
                tree.body += _read_assigned(tree.body[-1:])
            return self._run_statements(shell.transform_ast(tree).body, filename, show)
        finally:
            shell.events.trigger("post_execute")  # matplotlib's inline figures are shown here

    def _with_automagic(self, source: str) -> str:
        """Return the source. Make one line that begins with a magic's name a call, as IPython does.

        Only the task knows which names are variables. The same is done for `exit`.
        """
        text = source.strip()
        word = _FIRST_WORD.match(text)
        if word is None or "\n" in text or keyword.iskeyword(word[0]) or not self.shell.automagic:
            return source
        known = self.namespace.get(word[0], getattr(builtins, word[0], None))
        is_magic = known is None and self.shell.find_line_magic(word[0]) is not None
        if not is_magic and not isinstance(known, IPyAutocall):
            return source
        padding = source[: len(source) - len(source.lstrip("\n"))]
        return padding + str(self.shell.prefilter_manager.prefilter_lines(text))

    def _record(self, source: str, filename: str, prompt: int) -> None:
        """Note a cell in this task's history, as `HistoryManager.store_inputs` does, but not in a file.

        That method takes ten times as long as an empty cell.
        """
        shell, text = self.shell, source.strip("\n")
        parsed, raw = self._inputs
        prompt = prompt or len(parsed)
        # cells that ran elsewhere leave gaps; two in one cell of the notebook count as one
        for known in (parsed, raw):
            known[prompt:] = [*[""] * (prompt - len(known)), text]
        before = self._last_inputs
        self._last_inputs = (text, *before[:2])
        self.namespace.update({"_i": before[0], "_ii": before[1], "_iii": before[2], f"_i{prompt}": text})
        if shell.execution_count != prompt + 1:  # to set a trait takes six calls
            shell.execution_count = prompt + 1
        getattr(shell.compile, "_filename_map", {})[filename] = prompt  # private: "Cell In[3]" in tracebacks

    def _run_statements(self, body: list[ast.stmt], filename: str, show: bool) -> Any:
        """Run one statement after the other; return the value of the last one, if it is an expression.

        IPython's setting `ast_node_interactivity` decides which values are shown: by default this one.
        """
        which, value = self.shell.ast_node_interactivity, None
        for statement in body:
            is_last = statement is body[-1]
            if isinstance(statement, ast.Expr) and (is_last or which == "all"):
                value = self._execute(ast.Expression(statement.value), filename, "eval")
                if show and which != "none":
                    self.shell.displayhook(value)
            else:
                self._execute(ast.Module([statement], []), filename, "exec")
                value = None
        return value

    def _execute(self, tree: ast.Module | ast.Expression, filename: str, mode: str) -> Any:
        compiler = self.shell.compile
        compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as `extra_flags` does, in six calls
        try:
            code = compiler(tree, filename, mode)
        finally:
            compiler.flags &= ~ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        if code.co_flags & inspect.CO_COROUTINE:
            return self.wait_for(eval(code, self.namespace))
        asyncio._set_running_loop(self._open_loop())  # as in a notebook: create_task() works, run() does not
        try:
            return eval(code, self.namespace)
        finally:
            asyncio._set_running_loop(None)

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        """Return the task's own event loop; a new one if a cell has closed it."""
        if self._loop is None:
            _undo_terminal_of_pandas()
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop

    def wait_for(self, coroutine: Any) -> Any:
        """Return the result of a coroutine, run on the task's own event loop.

        An interrupt cancels it and waits for its end, as `asyncio.run` does: its ``except`` and ``finally``
        run now, and it can go on. A second interrupt does not wait.
        """
        loop = self._open_loop()
        future = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(future)
        except KeyboardInterrupt:
            if future.done():  # raised by the coroutine
                raise
            future.cancel()
        try:
            return loop.run_until_complete(future)
        except asyncio.CancelledError as cancelled:
            raise KeyboardInterrupt().with_traceback(cancelled.__traceback__) from None
        finally:
            future.cancel()


def _note_lines(filename: str, source: str) -> None:
    """Let `linecache` find a cell by its name, and where rich looks for it: in the folder of its import."""
    found = (len(source), None, source.splitlines(True), filename)
    linecache.cache[filename] = found
    folder = getattr(sys.modules.get("rich"), "_IMPORT_CWD", "")  # private
    if folder and not filename.startswith("<"):
        linecache.cache[os.path.join(folder, filename)] = found


def _undo_terminal_of_pandas() -> None:
    """Give tables as many columns as in a notebook: Keras has imported pandas before the shell was made."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and pandas.get_option("display.max_columns") == 0:
        pandas.set_option("display.max_columns", 20)


def _read_assigned(last: list[ast.stmt]) -> list[ast.stmt]:
    """Return a statement that reads the variable which the last one assigns, if it does."""
    match last:
        case [ast.Assign(targets=[*_, ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name))]:
            pass
        case [ast.AnnAssign(target=ast.Name(id=name))]:
            pass
        case _:
            return []
    read = ast.copy_location(ast.Expr(ast.Name(name, ast.Load())), last[0])
    return [ast.fix_missing_locations(read)]


def encode_bundle(content: dict[str, Any]) -> bytes:
    """Encode a display as JSON: bytes (images) become base64, objects that JSON does not know their repr."""
    import base64

    def convert(value: Any) -> Any:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else repr(value)

    return json.dumps(content, default=convert).encode()
