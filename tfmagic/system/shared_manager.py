"""One `multiprocessing` manager for this process, in a server process of its own.

`multiprocessing.Manager()` forks this process, with all its threads, or imports its ``__main__`` anew,
which starts an unguarded script a second time. This one is a fresh interpreter that knows nothing of either.
It ends when its standard input does: with us.
"""

from __future__ import annotations

import atexit
import multiprocessing
import subprocess
import sys
import threading
from multiprocessing.managers import SyncManager

_SERVE = (
    "import os, sys, threading\n"
    "from multiprocessing.managers import SyncManager\n"
    "server = SyncManager(authkey=bytes.fromhex(sys.stdin.readline())).get_server()\n"
    "print(server.address, flush=True)\n"
    "def end():\n"
    "    sys.stdin.read()\n"
    "    os.unlink(server.address)\n"
    "    os.rmdir(os.path.dirname(server.address))\n"
    "    os._exit(0)\n"
    "threading.Thread(target=end, daemon=True).start()\n"
    "server.serve_forever()\n"
)

_lock = threading.Lock()
_manager: SyncManager | None = None
_server: subprocess.Popen[str] | None = None


def shared_manager() -> SyncManager:
    """The manager, made by the first call; again where its server has been killed."""
    global _manager, _server
    with _lock:
        if _manager is None or _server is None or _server.poll() is not None:
            _manager, _server = _make_manager()
        return _manager


def end_shared_manager() -> None:
    """End the manager, if there is one. What waits for an object of it gets an error, in any process."""
    global _manager, _server
    with _lock:
        server, _manager, _server = _server, None, None
    if server is not None:
        _end(server)


def _make_manager() -> tuple[SyncManager, subprocess.Popen[str]]:
    key = bytes(multiprocessing.current_process().authkey)
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(key.hex() + "\n")
    server.stdin.flush()
    address = server.stdout.readline().strip()
    manager = SyncManager(address=address, authkey=key)
    manager.connect()
    atexit.register(_end, server)
    return manager, server


def _end(server: subprocess.Popen[str]) -> None:
    """Reap the server at exit, where it would end by itself. Harmless when it is done."""
    assert server.stdout is not None
    if not server.stdout.closed:
        with server:
            server.stdout.close()
