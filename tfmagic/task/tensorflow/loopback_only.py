"""TensorFlow's servers, kept to loopback.

Each of them (a strategy's, `tf.distribute.Server`, the tf.data service, the profiler) binds every
interface of the machine, whatever its address says, and asks nobody for a password: who reaches the port
reads and writes the user's files. No option of TensorFlow 2.21 changes that. So the call by which its
libraries begin to listen goes through here, and the socket is bound to the loopback device first
(SO_BINDTODEVICE; unprivileged since Linux 5.7). The port was never open to others: there is no moment
between. What else a cell opens (an http server, gRPC's own package) is the user's and stays as it is.

Installed once in the launcher, whose forks have it, and in a task with a fresh interpreter. Code of the
user that serves other machines through TensorFlow on purpose calls `allow_other_machines` first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket

from tfmagic.system import symbol_interposing
from tfmagic.task import streams

_SO_BINDTODEVICE = 25
_SO_DOMAIN = 39
_LOOPBACK = b"lo\0"
_LIBRARIES = "/tensorflow/"

_libc = ctypes.CDLL(None, use_errno=True)

_slots = 0  # of TensorFlow's libraries that come through here
_loopback_only = True
_told = False


def install() -> None:
    """Let TensorFlow's libraries listen through us. TensorFlow is imported; a second call does nothing.

    What fails here is told by the task that would be exposed, not by the launcher.
    """
    global _slots
    if _slots == 0:
        with contextlib.suppress(OSError, KeyError):
            _slots = symbol_interposing.interpose(_LIBRARIES, "listen", _replacement)


def begin_task(loopback_only: bool) -> None:
    """Decide for this task process, and say in its log if it cannot be kept."""
    global _loopback_only
    _loopback_only = loopback_only
    install()
    if loopback_only and _slots == 0:
        _tell("this TensorFlow build's servers could not be reached from here")


def allow_other_machines() -> None:
    """Servers that TensorFlow starts from now on in this process listen on every interface, as it is."""
    global _loopback_only
    _loopback_only = False


def _listen(fd: int, backlog: int) -> int:
    """listen(2), on loopback. Called by TensorFlow's C++ on the thread of the Python call."""
    if _loopback_only:
        try:
            _pin(fd)
        except BaseException:  # a signal handler of the user's; above us is only C++, which cannot have it
            _pin(fd)
    return int(_libc.listen(fd, backlog))


_replacement = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, use_errno=True)(_listen)


def _pin(fd: int) -> None:
    domain, size = ctypes.c_int(), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    _libc.getsockopt(fd, socket.SOL_SOCKET, _SO_DOMAIN, ctypes.byref(domain), ctypes.byref(size))
    if domain.value not in (socket.AF_INET, socket.AF_INET6):
        return
    if _libc.setsockopt(fd, socket.SOL_SOCKET, _SO_BINDTODEVICE, _LOOPBACK, len(_LOOPBACK)) != 0:
        _tell(os.strerror(ctypes.get_errno()))


def _tell(why: str) -> None:
    """Say it once: the user may be on a network with others."""
    global _told
    if not _told:
        _told = True
        streams.write_line(
            f"tfmagic: TensorFlow's server on this task could not be kept to loopback ({why}): whoever "
            "reaches this machine's ports can read and write your files through it. Use --isolate, or a "
            "firewall"
        )
