"""The actor on a node of Ray, and how large contents travel to and from it.

The class travels by value, so a host needs no tfmagic for it. Facts about Ray (2.60): ``max_concurrency``
reorders calls, concurrency groups do not; what an actor starts inherits a mask that blocks SIGINT, and gets
OMP_NUM_THREADS; a large content as a separate object is four times as fast as inside another one.
"""

import sys
from typing import Any

import ray

from tfmagic.backends.remote import own_source
from tfmagic.backends.remote.own_source import unpack_source


class RayAgent:
    """The actor of a node. It needs nothing of tfmagic before it is made: `source` can bring that.

    It stays when a cluster ends, and its process keeps the launcher for the next one.
    """

    def __init__(self, source: bytes):
        import contextlib
        import importlib.util
        import os
        import signal
        import sys

        import ray

        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for name in ("OMP_NUM_THREADS", "PYTHONBREAKPOINT"):  # which Ray has set
            os.environ.pop(name, None)
        with contextlib.suppress(OSError):  # Ray's actors have niceness 15; only root can take it back
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address  # of several on a machine
        if importlib.util.find_spec("tfmagic") is None:
            sys.path.append(unpack_source(source))
        self.agent: Any = None

    def open(self, setup: bytes, gpus: dict[str, list[str]], trial: Any) -> tuple[str, dict[str, str], bool]:
        """Serve a cluster from now on.

        Args:
            trial: The question of a driver on this node, else None; see `memory_files`.

        Returns:
            The address of this host, the versions on it, and whether it shares memory with the driver.
        """
        import contextlib
        import os

        import ray

        from tfmagic.backends.remote import agent, memory_files, memory_guard, messages
        from tfmagic.system import advice

        self.close()
        shares = trial is not None and memory_files.can_open(trial)
        address = ray.util.get_node_ip_address()
        read = messages.read_setup(setup)
        advice.set_front_end(read.front_end)

        def give_up() -> None:
            known = ray.util.placement_group_table().values() if read.kept_as else ()
            for name in {group["name"] for group in known}:
                if name == read.known_as or name.startswith(f"{read.known_as}/"):
                    with contextlib.suppress(Exception):  # another host's agent has removed the places
                        ray.util.remove_placement_group(ray.util.get_placement_group(name))
            os._exit(0)

        rule = memory_guard.rule_of(os.environ)
        self.agent = agent.HostAgent(read, address, gpus, give_up, shares, rule)
        return address, self.agent.facts(), shares

    def ask(self, method: str, *args: Any) -> Any:
        return getattr(self.agent, method)(*args)

    def perform(self, number: int, instructions: Any, contents: Any) -> None:
        self.agent.perform(number, instructions, *map(fetch, contents))

    def heartbeat(self) -> None:
        if self.agent is not None:
            self.agent.heartbeat()

    def poll(self, number: int, timeout_s: float) -> Any:
        """Return a batch; its large contents are objects of their own."""
        found = self.agent.poll(number, timeout_s)
        contents = list(map(as_object, found.contents))
        return found.number, found.performed, found.clock, found.files, found.frame, contents

    def close(self) -> None:
        """End the tasks of the cluster."""
        if self.agent is not None:
            self.agent.close()


def as_object(content: Any) -> Any:
    """Return small contents as bytes, put large ones into Ray's object store, pass the rest through.

    Returns the reason where a content cannot be put there.
    """
    import pickle

    import ray

    if isinstance(content, tuple | str):
        return content
    if len(content) < 100_000:
        return bytes(content)
    try:
        return ray.put(pickle.PickleBuffer(content))  # numpy would cost each agent 10 MB
    except Exception as error:
        return _why_not(error)


def fetch(content: Any) -> Any:
    """Return the value of an object, or the reason why it cannot come here; pass the rest through."""
    import ray

    if not isinstance(content, ray.ObjectRef):
        return content
    try:
        return memoryview(ray.get(content))
    except Exception as error:
        return _why_not(error)


def _why_not(error: Exception) -> str:
    from ray import exceptions, util

    if not isinstance(error, exceptions.ObjectStoreFullError | exceptions.OutOfDiskError):
        return f"could not be sent ({type(error).__name__}: {error})"
    host = util.get_node_ip_address()
    return (
        f"could not be sent: Ray's object store on {host} is full, and so is the disk to which it spills. "
        "Make room there (ray memory and df show what takes it), start that node with a larger "
        "--object-store-memory, or send less at once"
    )


def actor_class() -> Any:
    """Return the class of actors. Its code travels by value, so that a host needs no tfmagic for it."""
    for module in (sys.modules[__name__], own_source):
        ray.cloudpickle.register_pickle_by_value(module)
    for name in (groups := ("poll", "heartbeat")):
        setattr(RayAgent, name, ray.method(concurrency_group=name)(getattr(RayAgent, name)))
    return ray.remote(num_cpus=0, concurrency_groups=dict.fromkeys(groups, 1))(RayAgent)
