"""One `multiprocessing` manager for this process, in a server process of its own (see `helper_process`).

The server ends when its standard input does, and so with this process.
"""

import atexit
import multiprocessing
import subprocess
import threading
from multiprocessing.managers import SyncManager

from tfmagic.system.helper_process import start_interpreter

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
_running: tuple[SyncManager, subprocess.Popen[bytes]] | None = None


def shared_manager() -> SyncManager:
    """Return the manager; start one at the first call, and again after its server was killed."""
    global _running
    with _lock:
        if _running is None or _running[1].poll() is not None:
            _running = _make_manager()
        return _running[0]


def end_shared_manager() -> None:
    """End the manager, if any. Code that waits for one of its objects gets an error, in any process."""
    global _running
    with _lock:
        ended, _running = _running, None
    if ended is not None:
        _end(ended[1])


def _make_manager() -> tuple[SyncManager, subprocess.Popen[bytes]]:
    key = bytes(multiprocessing.current_process().authkey)
    server = start_interpreter(_SERVE, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(key.hex().encode() + b"\n")
    server.stdin.flush()
    address = server.stdout.readline().decode().strip()
    manager = SyncManager(address=address, authkey=key)
    manager.connect()
    atexit.register(_end, server)
    return manager, server


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and reap it; do nothing if that is done."""
    assert server.stdout is not None
    if not server.stdout.closed:
        with server:
            server.stdout.close()
