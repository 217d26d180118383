"""Ports for the servers of tasks, held until the tasks take them."""

import contextlib
import socket
from collections.abc import Iterable

from tfmagic.protocol.cluster_spec import TaskId


class HeldPorts:
    """One address of this machine for each task, which no other process gets until `close`.

    A socket that is bound and does not listen keeps its port: the system gives it to no other bind(0) and no
    outgoing connection. TensorFlow's server, which sets SO_REUSEADDR too, can listen on it, also after a
    restart (measured on Linux 6).
    """

    def __init__(self, tasks: Iterable[TaskId], host: str = "127.0.0.1"):
        self.addresses: dict[TaskId, str] = {}
        with contextlib.ExitStack() as sockets:
            for task in tasks:
                held = sockets.enter_context(socket.socket())
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                # elsewhere TensorFlow listens on every network device, so the port must be free on each
                held.bind((host if host == "127.0.0.1" else "", 0))
                self.addresses[task] = f"{host}:{held.getsockname()[1]}"
            self.close = sockets.pop_all().close  # releases the ports
