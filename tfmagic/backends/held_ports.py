"""Reserve the ports of a cluster against other processes.

A socket that is bound and does not listen keeps its port: the system gives it to no other bind(0) and no
outgoing connection. TensorFlow's server, which sets SO_REUSEADDR too, can listen on it, also after a restart
(measured on Linux 6).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from tfmagic.protocol.cluster_spec import TaskId


class HeldPorts:
    """One loopback address for each task, held until `close`."""

    def __init__(self, tasks: Iterable[TaskId]):
        self._sockets: list[socket.socket] = []
        self.addresses: dict[TaskId, str] = {}
        try:
            for task in tasks:
                held = socket.socket()
                self._sockets.append(held)
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(("127.0.0.1", 0))
                self.addresses[task] = f"127.0.0.1:{held.getsockname()[1]}"
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Release the ports."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()
