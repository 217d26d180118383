"""A socket between the kernel and a task on another machine, for the writer of a shared HDF5 file.

    task: listens ── SocketSent with place and token, through the cluster's channel ──→ kernel: connects
                  ←────────────────────── token, then the writer's messages ───────────

The token keeps out others who connect to the task. The task listens until the kernel has come, on the address
that it has in the cluster. Where the kernel cannot connect to its hosts, the task gives up after `_REACH_S`.
"""

import hmac
import secrets
import socket
import time
from collections.abc import Callable

from tfmagic.protocol import task_context

_REACH_S = 10.0

Place = tuple[str, int, str]
"""The host and the port where a task listens, and its token."""


def await_kernel(send: Callable[[Place], object]) -> socket.socket:
    """Return the socket of the kernel that `send` tells the place. Raise OSError if it does not come."""
    me, token = task_context.current_task(), secrets.token_hex(16)
    host = me.cluster_spec[me.type][me.index].rpartition(":")[0].strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    until = time.monotonic() + _REACH_S
    with socket.create_server((host, 0), family=family) as server:
        send((host, server.getsockname()[1], token))
        while True:
            server.settimeout(max(until - time.monotonic(), 0.001))
            sock, _ = server.accept()
            sock.settimeout(_REACH_S)
            try:
                shown = b""
                while len(shown) < len(token) and (piece := sock.recv(len(token) - len(shown))):
                    shown += piece
                if hmac.compare_digest(shown, token.encode()):
                    sock.settimeout(None)
                    return sock
            except OSError:  # of one that has connected; the kernel can still come
                pass
            sock.close()


def connect(host: str, port: int, token: str) -> socket.socket:
    """Return a socket to a task that waits. Raise OSError if it cannot be reached."""
    sock = socket.create_connection((host, port), _REACH_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(token.encode())
        sock.settimeout(None)
    except OSError:
        sock.close()
        raise
    return sock
