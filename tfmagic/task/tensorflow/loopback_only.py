"""Keep TensorFlow's servers to the loopback interface.

Each of them (of a strategy, `tf.distribute.Server`, the tf.data service, the profiler) binds every interface
of the machine, for any address, and has no password: a program that reaches the port can read and write the
user's files. No option of TensorFlow 2.21 changes that. So the call by which its libraries start to listen
goes through here, and the socket is bound to the loopback device first (SO_BINDTODEVICE; unprivileged since
Linux 5.7). The port is never open to other machines. Other servers of a cell (http, gRPC's own package) are
not changed.

Installed once in the launcher, whose forks have it, and in a task with a fresh interpreter. User code that
must serve other machines through TensorFlow calls `allow_other_machines` first.
"""

import contextlib
import ctypes
import os
import socket
import sys

from tfmagic.system import symbol_interposing
from tfmagic.task import streams

_SO_BINDTODEVICE = 25
_SO_DOMAIN = 39
_LOOPBACK = b"lo\0"

_libc = ctypes.CDLL(None, use_errno=True)


class _State:
    """What holds for the TensorFlow of this process."""

    slots: list[int] = []  # noqa: RUF012  of TensorFlow's libraries, through which they call our function
    loopback_only = True
    was_warned = False


def install() -> None:
    """Let TensorFlow's libraries listen through us. Needs TensorFlow imported; a second call does nothing."""
    if not _State.slots:
        with contextlib.suppress(OSError, KeyError):
            _State.slots = symbol_interposing.interpose(tensorflow_folders(), _libc.listen, _replacement)


def tensorflow_folders() -> tuple[str, ...]:
    """Return TensorFlow's folder, by the path of its import and by its real one.

    A part of the path would not do: an environment can be called tensorflow, with all of Python in it.
    """
    folder = os.path.dirname(sys.modules["tensorflow"].__file__ or "")
    return tuple({os.path.join(folder, ""), os.path.join(os.path.realpath(folder), "")})


def missing() -> str:
    """Return why TensorFlow's servers cannot be kept to loopback here, or ""."""
    install()
    return "" if _State.slots else "no library of this TensorFlow can be told where to listen"


def begin_task(loopback_only: bool) -> None:
    """Set it for this task process."""
    _State.loopback_only = loopback_only
    install()


def allow_other_machines() -> None:
    """Let servers that TensorFlow starts from now on in this process listen on every interface."""
    _State.loopback_only = False


def _listen(fd: int, backlog: int) -> int:
    """listen(2), on loopback. Called by TensorFlow's C++ on the thread of the Python call."""
    if _State.loopback_only:
        try:
            _pin(fd)
        except BaseException:  # of a signal handler of the user's; our caller is C++, which cannot take it
            _pin(fd)
    return int(_libc.listen(fd, backlog))


_replacement = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, use_errno=True)(_listen)


def _pin(fd: int) -> None:
    domain, size = ctypes.c_int(), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    _libc.getsockopt(fd, socket.SOL_SOCKET, _SO_DOMAIN, ctypes.byref(domain), ctypes.byref(size))
    if domain.value not in (socket.AF_INET, socket.AF_INET6):
        return
    if _libc.setsockopt(fd, socket.SOL_SOCKET, _SO_BINDTODEVICE, _LOOPBACK, len(_LOOPBACK)) != 0:
        _warn(os.strerror(ctypes.get_errno()))


def _warn(why: str) -> None:
    """Print a warning, once: other machines might reach this one."""
    if not _State.was_warned:
        _State.was_warned = True
        streams.write_line(
            f"tfmagic: TensorFlow's server on this task could not be kept to loopback ({why}): a program "
            "that reaches this machine's ports can read and write your files through it. Use --isolate, or a "
            "firewall"
        )
