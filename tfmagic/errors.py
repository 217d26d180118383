"""The exceptions that tfmagic itself raises; all of them can be pickled.

    TfmagicError                catch this to handle anything tfmagic reports
    ├── ClusterSpecError        your shape, name or selector makes no sense
    ├── CaptureError            a notebook variable cannot travel; nothing was run
    ├── LaunchError             a cluster could not be started; no process is left
    ├── TaskDied                a task process ended without a Python exception
    ├── TaskTimeoutError        a time limit that you set has passed
    ├── RemoteError             a task raised an exception that cannot be rebuilt here
    ├── BackendError            the backend does not exist or refused a request
    └── ProtocolError           a control channel carried bytes that tfmagic did not write

An exception of the user's code is not in this tree: it is raised again with its own type.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tfmagic.system import own_code

_RED, _NO_RED = "\x1b[31m", "\x1b[39m"


def _is_plain() -> bool:
    """Check whether IPython's user has switched off colours."""
    module = sys.modules.get("IPython.core.getipython")
    shell = None if module is None else module.get_ipython()
    return str(getattr(shell, "colors", "")).lower() == "nocolor"


class TfmagicError(Exception):
    """Base of every error of tfmagic."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the message alone, since our frames would only hide it."""
        self.with_traceback(own_code.users_frames(self.__traceback__) or self.__traceback__)  # for %debug
        notes = getattr(self, "__notes__", ())
        name = type(self).__name__
        return [f"{name if _is_plain() else f'{_RED}{name}{_NO_RED}'}: {self}", *map(str, notes)]


class ClusterSpecError(TfmagicError, ValueError):
    """A cluster shape, task name or selector that makes no sense."""


class CaptureError(TfmagicError):
    """Notebook variables that cannot be sent to the tasks; nothing was run."""


class LaunchError(TfmagicError):
    """The cluster could not be started; no process is left."""


class TaskDied(TfmagicError):
    """A task process ended without raising.

    Attributes:
        task: Name of the task, such as ``worker-1``.
        exit_code: Its exit code; negative for the number of a signal; None if it is not known.
    """

    message: str
    task: str
    exit_code: int | None

    def __init__(self, message: str, task: str = "", exit_code: int | None = None):
        super().__init__(message, task, exit_code)
        self.message, self.task, self.exit_code = message, task, exit_code

    def __str__(self) -> str:
        return self.message


class TaskTimeoutError(TfmagicError, TimeoutError):
    """A time limit passed before every task was done. The message shows where the tasks were."""


class BackendError(TfmagicError):
    """The backend is unknown, not installed, or refused."""


class ProtocolError(TfmagicError):
    """Bytes on a control channel that tfmagic did not write."""


class RemoteError(TfmagicError):
    """Stands for a task's exception whose class cannot be rebuilt in this process.

    It also derives from the nearest base class that can be rebuilt, so ``except ValueError:`` still works.

    Attributes:
        type_name: Name of the original class, such as ``InvalidArgumentError``.
        text: The whole traceback as the task would have printed it.
    """

    message: str
    type_name: str
    text: str

    def __init__(self, message: str, type_name: str = "Exception", text: str = ""):
        Exception.__init__(self, message)
        self.message, self.type_name, self.text = message, type_name, text

    def __str__(self) -> str:
        return self.message

    def _render_traceback_(self) -> list[str]:
        return [
            self.text.rstrip() or f"{self.type_name}: {self.message}",
            *map(str, getattr(self, "__notes__", ())),
        ]

    def __reduce__(self) -> tuple[Callable[..., RemoteError], tuple[object, ...]]:
        if type(self) is RemoteError:
            return RemoteError, (self.message, self.type_name, self.text)
        bases = [b for b in type(self).__mro__ if b.__module__ != __name__ and b is not object]
        return remote_error, (self.message, self.type_name, self.text, bases[0] if bases else Exception)


def remote_error(
    message: str, type_name: str, text: str, base: type[BaseException] = Exception
) -> RemoteError:
    """Return a `RemoteError` whose class is named `type_name` and also derives from `base`.

    A base whose memory layout does not fit gives a plain `RemoteError`.
    """
    bases = (RemoteError,) if base in (Exception, BaseException) else (RemoteError, base)
    try:
        subclass = type(type_name, bases, {"__module__": __name__, "__doc__": RemoteError.__doc__})
        error = subclass(message, type_name, text)
    except TypeError:
        error = RemoteError(message, type_name, text)
    assert isinstance(error, RemoteError)
    return error
