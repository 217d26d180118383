"""A client of the debug adapter protocol, as an editor has one: messages of JSON with a length before each."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any


class DapClient:
    """A connection to a debug adapter. Its requests are those of VS Code, in that order."""

    def __init__(self, port: int, timeout_s: float = 60.0):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._file = self._socket.makefile("rb")
        self._sent = 0
        self._unread: list[dict[str, Any]] = []  # events and replies that nothing has waited for yet

    def __enter__(self) -> DapClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection without a word, as an editor that is killed."""
        self._file.close()
        self._socket.close()

    def send(self, command: str, **arguments: Any) -> int:
        """Send a request; return its number."""
        self._sent += 1
        request = {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return self._sent

    def request(self, command: str, **arguments: Any) -> Any:
        """Return the body of the reply to a request."""
        number = self.send(command, **arguments)
        reply = self._next(lambda message: message.get("request_seq") == number)
        assert reply["success"], reply
        return reply.get("body")

    def event(self, name: str) -> Any:
        """Return the body of the next event of that name."""
        return self._next(lambda message: message.get("event") == name).get("body")

    def attach(self, breakpoints: dict[str, list[int]] | None = None, **arguments: Any) -> list[bool]:
        """Attach; return whether each breakpoint was found, by file and line."""
        self.request("initialize", adapterID="tfmagic", pathFormat="path", linesStartAt1=True)
        attached = self.send("attach", name="test", justMyCode=True, **arguments)
        self.event("initialized")
        found = []
        for path, lines in (breakpoints or {}).items():
            found += self.set_breakpoints(path, *lines)
        self.request("configurationDone")
        reply = self._next(lambda message: message.get("request_seq") == attached)
        assert reply["success"], reply
        return found

    def set_breakpoints(self, path: str, *lines: int) -> list[bool]:
        """Set the breakpoints of a file."""
        places = [{"line": line} for line in lines]
        body = self.request("setBreakpoints", source={"path": path}, breakpoints=places)
        return [each["verified"] for each in body["breakpoints"]]

    def stop(self) -> tuple[int, str, list[tuple[str, int, str]]]:
        """Wait until a thread stops; return it, the reason, and its frames: file, line, function."""
        stopped = self.event("stopped")
        thread = stopped["threadId"]
        return (
            thread,
            stopped["reason"],
            [
                (frame["source"].get("path", ""), frame["line"], frame["name"])
                for frame in self.frames(thread)
            ],
        )

    def frames(self, thread: int) -> list[dict[str, Any]]:
        """Return the frames of a thread that has stopped, the innermost first."""
        return list(self.request("stackTrace", threadId=thread)["stackFrames"])

    def evaluate(self, expression: str, thread: int) -> str:
        """Return what an expression is in the innermost frame."""
        frame = self.frames(thread)[0]["id"]
        return str(self.request("evaluate", expression=expression, frameId=frame, context="repl")["result"])

    def variables(self, thread: int) -> dict[str, str]:
        """Return the variables of the innermost frame."""
        scopes = self.request("scopes", frameId=self.frames(thread)[0]["id"])["scopes"]
        found = self.request("variables", variablesReference=scopes[0]["variablesReference"])["variables"]
        return {each["name"]: each["value"] for each in found}

    def detach(self) -> None:
        """Detach as VS Code does when its user stops debugging: the process goes on."""
        self.request("disconnect", restart=False, terminateDebuggee=False)
        self.close()

    def _next(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for message in self._unread:
            if is_wanted(message):
                self._unread.remove(message)
                return message
        while True:
            message = self._receive()
            if is_wanted(message):
                return message
            self._unread.append(message)

    def _receive(self) -> dict[str, Any]:
        size = 0
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        if not size:
            raise EOFError("the debug adapter has closed the connection")
        return dict(json.loads(self._file.read(size)))
