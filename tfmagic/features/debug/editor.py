"""An editor's debugger in a task: debugpy, which listens on loopback for one client at a time.

    VS Code, Neovim ... ══ the adapter, a process ══ pydevd in the task: threads, a trace function

Nothing of it is imported before the user asks. When the task ends, the adapter tells the editor, and ends as
soon as that has disconnected. The launcher ends what is left of a cluster.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tfmagic.errors import TfmagicError
from tfmagic.features.debug import cell_files, debugger, pydevd_parts
from tfmagic.features.debug.records import HOST, Listening, loopback
from tfmagic.features.debug.words import how_to_attach
from tfmagic.protocol import task_context
from tfmagic.protocol.commands import RunCell
from tfmagic.system import notices
from tfmagic.system.advice import Step
from tfmagic.system.own_code import OUR_FOLDER

_VARIABLES = {  # read by pydevd when it is imported
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # else a warning that Python's own modules are frozen
    # the statements of a cell have a frame each: a step goes to the next one
    "PYDEVD_IPYTHON_COMPATIBLE_DEBUGGING": "1",
    "PYDEVD_IPYTHON_CONTEXT": "shell.py,_execute,_run_statements",
}
_HAS_TRACE_FUNCTION = sys.version_info < (3, 12)  # else `sys.monitoring`, which costs next to nothing


class Editor:
    """The debugger of one task. Used by the main thread, `tick` by the side thread.

    Without an editor the trace function is taken away: with it, functions take some times as long.
    """

    def __init__(self, task: str, run: Path):
        self._task, self._cells = task, run / cell_files.FOLDER
        self._port = 0
        self._debugpy: Any = None
        self._is_traced = not _HAS_TRACE_FUNCTION

    @property
    def listens(self) -> bool:
        """Whether an editor can attach."""
        return self._port > 0

    def listen(self, wanted: str) -> Listening:
        """Listen, unless it has begun before.

        Args:
            wanted: The loopback device of the user's machine, as `loopback` identifies it.

        Raises:
            TfmagicError: This task has another one; or debugpy is missing or cannot listen.
        """
        if wanted != loopback():
            raise TfmagicError(
                f"{self._task} is on another machine, or in a network of its own, so an editor here does not "
                "reach its loopback device. The debugger listens on no other one: it has no password. Use a "
                "cluster on this machine, or pdb, without --editor"
            )
        if self.listens:
            is_attached = bool(self._debugpy.is_client_connected())
            return Listening(self._port, str(self._cells), known=True, attached=is_attached)
        self._start()
        for name, text in cell_files.known_cells():
            self._show(name, text)
        lacks = "; ".join(pydevd_parts.TABLE.left_out())
        known = f" (debugpy {self._debugpy.__version__}; 1.8.22 has all)" if lacks else ""
        return Listening(self._port, str(self._cells), lacks=lacks + known)

    def _start(self) -> None:
        for thread in threading.enumerate():
            if thread.name.startswith("tfmagic-"):  # never stopped with the user's; ipykernel does the same
                vars(thread).update(is_pydev_daemon_thread=True, pydev_do_not_trace=True)
        try:
            with _variables(_VARIABLES):
                import debugpy

                debugpy.configure(subProcess=False)  # processes that a cell starts run as ever
                port = debugpy.listen((HOST, 0))[1]
        except ImportError as error:
            raise TfmagicError(
                f"the debugger of an editor is the package debugpy, which {self._task} cannot import "
                f"({error}):  {Step('install', 'debugpy')}"
            ) from error
        except RuntimeError as error:
            raise TfmagicError(f"debugpy cannot listen in {self._task}: {error}") from error
        self._debugpy = debugpy
        pydevd_parts.leave_by_interrupts()
        pydevd_parts.hide_folders(os.path.dirname(debugpy.__file__), OUR_FOLDER)
        sys.breakpointhook = self._break
        os.register_at_fork(after_in_child=self._leave)
        self._port = port  # from now on the side thread calls `tick`

    def _leave(self) -> None:
        """Let a child process pass breakpoints: it has no thread that would talk to the editor."""
        self._port = 0
        sys.breakpointhook = debugger.break_here
        self._debugpy.trace_this_thread(False)

    def wait(self) -> None:
        """Wait until an editor has attached and set its breakpoints."""
        self._debugpy.wait_for_client()
        self._debugpy.trace_this_thread(True)
        sys.__breakpointhook__ = self._debugpy.breakpoint  # `run_script` puts it back in place

    def with_failure(self, answer: Listening, error: BaseException) -> Listening:
        """Return the answer with the failure that an editor can look at, or with the reason why it cannot."""
        if hasattr(self._debugpy, "trigger_exception_handler"):
            return msgspec.structs.replace(answer, failure=type(error).__name__)
        pdb = Step("debug", self._task)
        lacks = (
            f"debugpy {self._debugpy.__version__} is too old to show its last failure; {pdb} opens pdb on it"
        )
        return msgspec.structs.replace(answer, lacks=lacks)

    def look_at(self, error: BaseException) -> None:
        """Wait for an editor, and stop it at the innermost frame of an exception."""
        self._debugpy.wait_for_client()
        self._debugpy.trigger_exception_handler(error, as_uncaught=False)

    def begin(self, cell: RunCell) -> None:
        """Write the sources of a cell, and let its code stop at breakpoints."""
        for name, text in [(cell.filename, cell.source), *cell.carried.sources]:
            if text and not os.path.exists(name):
                self._show(name, text)
        self._is_traced = not _HAS_TRACE_FUNCTION or bool(self._debugpy.is_client_connected())
        self._debugpy.trace_this_thread(
            self._is_traced
        )  # an interrupt, pdb or the last cell can have ended it

    def tick(self) -> None:
        """Let a cell that runs stop for an editor that has attached since it began. On the side thread."""
        if not self._is_traced and self._debugpy.is_client_connected():
            self._is_traced = True
            with contextlib.suppress(Exception):  # private parts of another debugpy must not end the task
                pydevd_parts.trace_main_thread()

    def end(self) -> None:
        """Let an editor stop nothing between two cells, where its user cannot see what stands."""
        self._debugpy.trace_this_thread(False)

    def _show(self, name: str, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk
            pydevd_parts.set_file(name, str(cell_files.write_cell(self._cells, name, text)))

    def _break(self, *args: Any, **kwargs: Any) -> None:
        """Stop in the editor if one is attached, else open pdb: the hook of `breakpoint()`."""
        if self._debugpy.is_client_connected():
            self._debugpy.breakpoint()
        else:
            debugger.TaskDebugger().set_trace(sys._getframe(1))


def run_debugged(
    wanted: str, function: Callable[..., Any], args: tuple[Any, ...], **kwargs: Mapping[str, Any]
) -> Any:
    """Call a function of a task as soon as an editor has attached; print how to do that.

    Raises:
        TfmagicError: As `Editor.listen`.
    """
    task = task_context.current_task().name
    editor = Editor(task, Path())
    notices.tell(how_to_attach(task, editor.listen(wanted), waits=True))
    editor.wait()
    return function(*args, **kwargs)


@contextlib.contextmanager
def _variables(given: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
