"""The interface of an engine: it finds hosts, lets us in, places tasks, and calls the agents on the hosts.

``agent`` is what the engine knows an agent by. To write one, begin with `tfmagic.backends.remote.ray_driver`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tfmagic.backends.remote import memory_files
from tfmagic.backends.remote.messages import OpenHosts
from tfmagic.errors import BackendError
from tfmagic.protocol.cluster_spec import TaskId

Opened = tuple[str, Mapping[str, str], bool]
"""The address of a host, the versions of what is installed there, and whether it shares memory with us."""


class HostUnreachable(Exception):
    """The agent could not be reached at this moment."""


class HostGone(Exception):
    """The agent on `node` has ended, and why."""

    def __init__(self, reason: str, node: str = ""):
        super().__init__(reason)
        self.node = node


class Engine(Protocol):
    """What a driver needs of an engine. Other exceptions than those named are told to the user."""

    def connect(self, address: str, name: str, step: Callable[[], object]) -> None:
        """Connect under a name, unless that is done; call `step` when the head answers, and once in."""

    def place(
        self, opening: OpenHosts, left_out: Collection[str], say: Callable[[str], object]
    ) -> Mapping[TaskId, str]:
        """Return a node for each task. Raise `BackendError` where there is no room for all.

        Args:
            left_out: Nodes that are not taken.
            say: Called with a sentence if the present hosts can never have room.
        """

    def take_over(self, opening: OpenHosts) -> Mapping[str, Any]:
        """Return the living agents of a kept cluster by node."""

    def resume(self, opening: OpenHosts) -> None:
        """Go on with the places of a kept cluster."""

    @property
    def own_node(self) -> str: ...

    def node_of(self, task: TaskId) -> str:
        """Return the node of a task's place; "" as long as that is a lost one."""

    def leave_out(self, task: TaskId, node: str) -> bool:
        """Give a task a place on another node than this one, for good; return False if none has room now."""

    def shortage(self, waited_s: float) -> str:
        """Say what the tasks need, and what there is."""

    def agent_at(self, node: str) -> Any:
        """Return the agent's process on a node, a new one if there is none."""

    def open(
        self, nodes: Sequence[str], trial: memory_files.Question, timeout_s: float
    ) -> Iterator[tuple[str, Opened]]:
        """Let the agents on these nodes serve the cluster; only those on our own node get the trial.

        Yields a node when its agent serves, whose lease runs from then on. Raises `HostGone` where one ends.
        """

    def ask(self, method: str, args: Mapping[Any, Sequence[Any]], timeout_s: float) -> list[Any]:
        """Call a method of each `HostAgent`; `args` by agent."""

    def close(self, agents: Sequence[Any], timeout_s: float) -> None:
        """End the cluster of these agents, and give the places back."""

    def end(self) -> None:
        """End the agents' processes, but those of a kept cluster."""

    def reason_of(self, error: BaseException) -> str:
        """Return why an agent has ended, by an error of the engine."""

    def call(self, agent: Any, method: str, *args: Any) -> Any:
        """Call ``perform``, ``poll`` or ``heartbeat`` of a `HostAgent`; return the handle of the answer.

        Does not wait. None of the three waits for another one there.
        """

    def answer(self, call: Any) -> Any:
        """Wait for the answer of a call. Raise `HostUnreachable` or `HostGone`."""

    def has_answer(self, call: Any) -> bool:
        """Check whether a call is answered, without waiting."""

    def put(self, content: memoryview) -> Any:
        """Return the engine's handle of a content, for calls. Raise where the engine has no room for it."""

    def get(self, content: Any) -> memory_files.Content:
        """Return a content of an agent's answer."""

    def forget(self, agent: Any) -> None:
        """Have no more to do with an agent, and end it if it lives."""

    def lives(self, node: str) -> bool:
        """Check whether a node is still there."""


def words_of(error: BaseException) -> str:
    """Return the text of an error and of what led to it: an engine's reason is often only there."""
    text = str(error).strip().encode("utf-8", "replace").decode()  # half a character could not be sent
    if isinstance(error, BackendError):
        return text
    cause = f" ({words_of(error.__cause__)})" if error.__cause__ is not None else ""
    return f"{type(error).__name__}: {text}{cause}"
