"""The agent of a host: starts tasks there as the kernel does on its own machine, and reports what they do.

    perform(number, frames) ─→ orders ─→ LocalBackend ─→ launcher of this host ─→ tasks
    poll(number) ←── events, in frames; what is new in the tasks' logs and stacks; usage now and then

It knows no engine: any that can call two methods at a time on an object will do. Orders have numbers, so one
that is repeated is not performed twice. A batch of reports is kept until the second one after it is asked
for, so a driver can have two polls under way, and no event and no line is lost if an answer was. An event
follows the output that was written before it.

Without a call for the time of its lease, the agent ends its tasks and its process. A cluster that outlives
its kernel has a long lease (`AgentSetup.keep_s`), and a `Journal` for the kernel that attaches next. Each
kernel that attaches begins an epoch, by which its orders and batches are numbered: those of the kernel before
are refused.
"""

import contextlib
import os
import platform
import shutil
import socket
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import psutil

from tfmagic.backends.held_ports import HeldPorts
from tfmagic.backends.launcher_client import Flavour
from tfmagic.backends.local import LocalBackend
from tfmagic.backends.remote import journal, memory_files
from tfmagic.backends.remote.journal import Journal
from tfmagic.backends.remote.messages import (
    EPOCH,
    TAKEN_OVER,
    AgentSetup,
    HostOrder,
    LaunchTask,
    SendCommand,
    SignalTask,
    TasksUsed,
    WatchClosely,
)
from tfmagic.backends.remote.own_modules import Unpacked
from tfmagic.errors import LaunchError
from tfmagic.protocol import commands, events
from tfmagic.protocol.channel import Decoder, encode
from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.protocol.events import Event, TaskExited, TaskLost, TaskReady, TaskStarted
from tfmagic.protocol.payload import Handle
from tfmagic.runs import folder
from tfmagic.runs.folder import STDERR, RunFolder, file_size
from tfmagic.runs.kernels import KernelState, kernel_state
from tfmagic.system import files
from tfmagic.system.usage import Sampler

_PIECE_BYTES = 4 << 20  # of one file in one batch
_BUSY_LOOK_S = 0.01  # between two looks at the logs while a cell runs
_IDLE_LOOK_S = 0.25
_GATHER_S = 0.001  # tasks that end a cell at the same time are reported in one answer, not in one each
_SAMPLE_S, _IDLE_SAMPLE_S = 0.5, 5.0
_KEPT_BYTES = 256 << 20  # of what the tasks have returned and displayed, for a kernel that attaches
_OWN = ("tensorflow", "keras", "tfmagic", "dill", "ray")

Frame = tuple[bytes, list[Any]]
"""An encoded message, and the contents of its handles, or their places for a driver on this machine."""
Piece = tuple[str, int | None, bytes]
"""The name of a file, an offset in it or None for its end, and what is to be written there."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is new on a host.

    Attributes:
        number: From 1 on; a poll asks for it.
        performed: The number of the last order that was performed.
        clock: The monotonic clock of the host, in seconds.
        files: What the tasks have written to their files in the run folder.
        handles: Of the frames; they stay open as long as the batch is kept.
    """

    number: int
    performed: int
    clock: float
    files: list[Piece]
    frames: list[Frame]
    handles: list[Handle]


@dataclass(slots=True)
class _Watched:
    """A task of this host: how much of its files was reported, and the events that wait for output."""

    task: TaskId
    sent: dict[str, int] = field(default_factory=dict)  # by the ending of the file's name
    held: deque[tuple[int, Event]] = field(default_factory=deque)
    pid: int = 0
    cells: int = 0  # sent and not yet ended
    journal: Journal | None = None
    is_log_closed: bool = False


def read_setup(packed: bytes) -> AgentSetup:
    """Return the setup that a kernel has encoded."""
    return msgspec.msgpack.decode(packed, type=AgentSetup)


class HostAgent:
    """Serves one cluster on one host.

    Args:
        address: The address of this host that the other hosts reach.
        gpus: The GPUs that each task may use, as CUDA_VISIBLE_DEVICES names them.
        give_up: Ends the process of the agent when its lease has run out.
        shares_memory: Whether this process and the driver can open each other's memory files.
    """

    def __init__(
        self,
        setup: AgentSetup,
        address: str,
        gpus: Mapping[str, Sequence[str]],
        give_up: Callable[[], object],
        shares_memory: bool = False,
    ):
        self._shares_memory = shares_memory
        self._setup, self._address, self._gpus, self._give_up = setup, address, gpus, give_up
        os.environ.update(setup.environ)
        self._run = _create_run_folder(setup)
        early = tuple(sorted(setup.early.items()))
        self._lock, self._waiting = threading.Lock(), threading.Lock()
        self._backend = LocalBackend(Flavour(setup.legacy_keras, early=early), self._run)
        self._decoder = Decoder(HostOrder)
        self._watched: dict[TaskId, _Watched] = {}
        self._unsent: list[Event] = []  # of tasks without output
        self._performed = self._epoch = self._resumed = 0
        self._batches: deque[Batch] = deque()  # that might not have arrived
        self._last_batch = 0
        self._ports: HeldPorts | None = None
        self._sampler: Sampler[TaskId] = Sampler()
        self._closely: tuple[TaskId, ...] = ()
        self._modules: tuple[bytes, Unpacked] | None = None
        self._next_sample = 0.0
        self._heard, self._closed = time.monotonic(), threading.Event()
        threading.Thread(target=self._keep_lease, name="tfmagic-lease", daemon=True).start()

    def facts(self) -> dict[str, str]:
        """Return the versions of what is installed here."""
        self._heard = time.monotonic()
        found = {"python": platform.python_version()}
        for name in _OWN:
            with contextlib.suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
        return found

    def reserve(self, tasks: Sequence[str]) -> dict[str, str]:
        """Hold a port of this host for each task, until the next call; return the addresses."""
        self._heard = time.monotonic()
        old, self._ports = self._ports, HeldPorts([parse_task(name) for name in tasks], self._address)
        if old is not None:
            old.close()
        return {task.name: address for task, address in self._ports.addresses.items()}

    def perform(self, number: int, frames: Sequence[tuple[bytes, Sequence[int]]], *contents: Any) -> None:
        """Perform orders.

        Args:
            number: Of the first one.
            frames: Each order, and which of the contents are those of its handles.
            *contents: Buffers, or places of memory files.
        """
        self._heard = time.monotonic()
        opened: dict[int, Handle] = {}
        with self._lock:
            for place, (frame, which) in enumerate(frames, number):
                if place == self._performed + 1:
                    for i in set(which).difference(opened):
                        opened[i] = memory_files.receive(contents[i])
                    self._obey(self._decoder.decode_frame(frame, [opened[i] for i in which]))
                    self._performed = place
        self._backend.wake()

    def poll(self, number: int, timeout_s: float) -> Batch:
        """Return a batch, as soon as something is new, or when the time has passed.

        Two polls can be under way, so all batches but the one before this have arrived.
        """
        found: list[Piece] = []
        frames: list[tuple[bytes, list[Handle]]] = []
        deadline = time.monotonic() + min(timeout_s, self._setup.lease_s / 2)
        while True:
            with self._lock:
                if number <= self._epoch * EPOCH:
                    return Batch(TAKEN_OVER, 0, 0.0, [], [], [])
                self._heard = now = time.monotonic()
                while self._batches and self._batches[0].number < number - 1:
                    self._batches.popleft()
                for batch in self._batches:
                    if batch.number == number:  # its answer was lost
                        return batch
                if not self._closed.is_set():
                    self._collect(found, frames)
                busy = any(watched.cells for watched in self._watched.values())
                if found or frames:
                    deadline = min(deadline, now + _GATHER_S) if busy else now
                if now >= deadline or self._closed.is_set():
                    return self._new_batch(now, found, frames)
            with self._waiting, contextlib.suppress(OSError, ValueError):  # closed meanwhile
                self._backend.wait(min(deadline - now, _BUSY_LOOK_S if busy else _IDLE_LOOK_S))

    def _new_batch(self, now: float, found: list[Piece], frames: list[tuple[bytes, list[Handle]]]) -> Batch:
        self._last_batch += 1
        handles = [handle for _, needed in frames for handle in needed]
        contents = memory_files.place_of if self._shares_memory else memory_files.read
        named = [(frame, [*map(contents, needed)]) for frame, needed in frames]
        self._batches.append(Batch(self._last_batch, self._performed, now, found, named, handles))
        return self._batches[-1]

    def claim(self) -> int:
        """Begin a new epoch, and return its number. The driver that was served until now is refused.

        The epoch of a cluster is the highest of its agents'.
        """
        with self._lock:
            self._epoch += 1
        self._backend.wake()
        return self._epoch

    def resume(
        self, epoch: int, sizes: Mapping[str, int], opened: Sequence[int], trial: Any = None
    ) -> tuple[str, dict[str, str], bytes, list[Any], bool]:
        """Serve the kernel of this epoch from now on.

        Args:
            sizes: The sizes of the files in its run folder, in bytes.
            opened: The numbers of the cells whose results no kernel has taken.
            trial: The question of a driver on this node, else None; see `memory_files`.

        Returns:
            The address and versions of this host, its setup, a name and a frame for each task, and whether
            this process shares memory with the driver.

        Raises:
            LaunchError: Another kernel has begun a later epoch.
        """
        with self._lock:
            if epoch < self._epoch or epoch == self._resumed:
                raise LaunchError("another notebook attached to this run at the same time, and has it now")
            self._epoch = self._resumed = epoch
            self._shares_memory = trial is not None and memory_files.can_open(trial)
            self._heard, self._unsent = time.monotonic(), []
            self._performed = self._last_batch = epoch * EPOCH
            self._batches.clear()
            kept = []
            for watched in self._watched.values():
                assert watched.journal is not None
                for ending, sent in watched.sent.items():
                    there = sizes.get(f"{watched.task.name}.{ending}", 0)
                    own = file_size(self._run.folder / f"{watched.task.name}.{ending}")
                    watched.sent[ending] = there if there <= own else sent
                known = watched.journal.resume(opened)
                watched.held = deque(watched.journal.told)
                kept.append((watched.task.name, encode(known)[0]))
        self._backend.wake()
        return self._address, self.facts(), msgspec.msgpack.encode(self._setup), kept, self._shares_memory

    def close(self) -> None:
        """End the tasks, and delete what they have written here: it was reported."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._backend.wake()
        with self._waiting, self._lock:  # a wait on what was closed would last its time
            self._backend.close()
            if self._ports is not None:
                self._ports.close()
        shutil.rmtree(self._run.folder.parent.parent, ignore_errors=True)

    # -- inside --

    def _keep_lease(self) -> None:
        while not self._closed.wait(min(self._setup.lease_s / 4, 1.0)):
            has_orders = self._performed > 0  # before, no kernel could find it
            lease_s = self._setup.keep_s if self._setup.keep_s and has_orders else self._setup.lease_s
            unheard_s = time.monotonic() - self._heard
            if unheard_s > lease_s:
                self.close()
                self._give_up()
            elif self._setup.keep_s:
                with self._waiting, self._lock:
                    self._tend()

    def _tend(self) -> None:
        """Do for the tasks what they need even while no kernel is attached."""
        if self._closed.is_set():
            return
        self._backend.wait(0)
        self._take_events()
        journal.limit((w.journal for w in self._watched.values() if w.journal is not None), _KEPT_BYTES)
        if time.monotonic() - self._heard > self._setup.lease_s:  # seen with the lock: a kernel may have come
            limit = self._setup.max_log_bytes
            for task, watched in self._watched.items():
                watched.held.clear()  # the journal has what the next kernel needs
                if file_size(self._run.log_path(task)) > limit and not watched.is_log_closed:
                    watched.is_log_closed = True
                    self._backend.send(task, commands.CloseLog(limit))

    def _obey(self, order: HostOrder) -> None:
        match order:
            case LaunchTask():
                self._launch(order)
            case SendCommand(task, commands.MoveLog()):  # the kernel has lost its copy
                self._watched[task].sent = dict.fromkeys(self._watched[task].sent, 0)
            case SendCommand(task, command):
                watched = self._watched[task]
                if watched.journal is not None:
                    watched.journal.note_command(command, file_size(self._run.log_path(task)))
                if isinstance(command, commands.RunCell):
                    watched.cells += 1
                    self._next_sample = min(self._next_sample, time.monotonic() + _SAMPLE_S)
                self._backend.send(task, command)
            case SignalTask(task, number):
                self._backend.signal(task, number)
            case WatchClosely(tasks):
                self._closely = tasks

    def _launch(self, order: LaunchTask) -> None:
        """Start a process here: with the folder, environment and import path of this host."""
        boot, log = order.boot, self._run.log_path(order.boot.task)
        watched = self._watched.setdefault(boot.task, _Watched(boot.task))
        watched.cells, watched.pid, watched.is_log_closed = 0, 0, False
        if self._setup.keep_s:
            watched.journal = watched.journal or Journal(boot.task)
            watched.journal.note_launch(boot.attempt)
        try:
            if file_size(log) < order.log_bytes:  # offsets in the log are the same here and there
                os.close(files.open_to_append(log))
                os.truncate(log, order.log_bytes)
            watched.sent["log"] = order.log_bytes  # again what is on its way, or what the kernel has lost
            boot = self._with_modules(order)
        except OSError as error:
            reason = f"its log and modules on {self._address} could not be made: {error}"
            lost = TaskLost(boot.task, boot.attempt, reason)
            self._unsent.append(lost)
            if watched.journal is not None:
                watched.journal.note_event(lost, 0)
            return
        here = msgspec.structs.replace(
            boot,
            environ={**_host_environ(), **self._presets(boot.task), **boot.environ},
            stacks_path=str(self._run.stacks_path(boot.task)),
            cwd=boot.cwd if os.path.isdir(boot.cwd) else str(self._run.folder),
            is_relayed=True,
        )
        self._backend.launch(here)

    def _with_modules(self, order: LaunchTask) -> commands.TaskBoot:
        """Return the boot with this host's import path, and the notebook's own modules on it."""
        boot: commands.TaskBoot = order.boot
        here: Callable[[str], str] = _unchanged
        if order.modules is not None:
            here = self._unpacked(memory_files.read(order.modules))
        path = (*map(here, order.before), *sys.path, *map(here, order.after))
        origins = tuple(_origin_at(origin, here) for origin in boot.origins)
        script = boot.script and msgspec.structs.replace(boot.script, file=here(boot.script.file))
        return msgspec.structs.replace(
            boot,
            sys_path=tuple(dict.fromkeys(path)),
            origins=tuple(o for o in origins if not o.file or os.path.isfile(o.file)),
            script=script,
        )

    def _unpacked(self, archive: memoryview) -> Callable[[str], str]:
        content = bytes(archive)
        if self._modules is None or self._modules[0] != content:
            self._modules = content, Unpacked(content, self._run.folder)
        return self._modules[1].here

    def _presets(self, task: TaskId) -> dict[str, str]:
        presets = {}
        if self._gpus:  # "" for tasks that compute nothing
            presets["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus.get(task.name, ()))
        computing = sum(1 for other in self._watched if other.type != "ps")
        if computing > 1:
            presets["TF_NUM_INTRAOP_THREADS"] = str(max((os.cpu_count() or 1) // computing, 1))
        return presets

    def _take_events(self) -> None:
        for event in self._backend.take_events():
            watched = self._watched[event.task]  # type: ignore[union-attr]  # all of a backend have one
            self._note(watched, event)
            event, log_bytes = self._with_address(event), file_size(self._run.log_path(watched.task))
            watched.held.append((log_bytes, event))
            if watched.journal is not None:
                watched.journal.note_event(event, log_bytes)

    def _collect(self, found: list[Piece], frames: list[tuple[bytes, list[Handle]]]) -> None:
        """Add what is new in the files, and the events whose output was reported."""
        self._take_events()
        for watched in self._watched.values():
            found += self._read_new(watched)
        ready, self._unsent = self._unsent, []
        for watched in self._watched.values():
            while watched.held and watched.sent.get("log", 0) >= watched.held[0][0]:
                ready.append(watched.held.popleft()[1])
        if (used := self._sample()) is not None:
            ready.append(used)
        frames += map(encode, ready)

    def _note(self, watched: _Watched, event: Event) -> None:
        match event:
            case TaskStarted(pid=pid):
                watched.pid = pid
            case TaskReady():
                self._next_sample = 0.0
            case TaskExited() | TaskLost():
                watched.pid = watched.cells = 0
            case events.CellReturned() | events.CellRaised():
                watched.cells -= 1

    def _with_address(self, event: Event) -> Event:
        if isinstance(event, TaskReady):
            return msgspec.structs.replace(event, host=self._address)
        return event

    def _read_new(self, watched: _Watched) -> list[Piece]:
        found = []
        for ending in ("log", STDERR[1:], "stacks"):
            path = self._run.folder / f"{watched.task.name}.{ending}"
            sent = watched.sent.setdefault(ending, 0)
            if file_size(path) > sent:
                with contextlib.suppress(OSError):
                    new = files.read_bytes(path, _PIECE_BYTES, sent)
                    watched.sent[ending] += len(new)
                    # the kernel's log has the same offsets; its other files can have more, of other hosts
                    found.append((path.name, sent if ending == "log" else None, new))
        return found

    def _sample(self) -> Any:
        """Return the usage of the tasks, if it is due."""
        now = time.monotonic()
        pids = {task: watched.pid for task, watched in self._watched.items() if watched.pid}
        if now < self._next_sample or not pids:
            return None
        busy = any(watched.cells for watched in self._watched.values())
        self._next_sample = now + (_SAMPLE_S if busy else _IDLE_SAMPLE_S)
        used = self._sampler.sample(pids, self._closely)
        for task, pid in pids.items():
            with contextlib.suppress(psutil.Error, KeyError):
                age_s = round(time.time() - psutil.Process(pid).create_time(), 1)
                used[task] = replace(used[task], uptime_s=age_s)
        return TasksUsed({task.name: usage for task, usage in used.items()})


def _unchanged(path: str) -> str:
    return path


def _origin_at(origin: commands.Origin, here: Callable[[str], str]) -> commands.Origin:
    search = None if origin.search is None else tuple(map(here, origin.search))
    file = here(origin.file) if origin.file else ""
    return msgspec.structs.replace(origin, file=file, search=search)


def _host_environ() -> dict[str, str]:
    """Return this process' environment without what is Ray's own, such as its token."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def _create_run_folder(setup: AgentSetup) -> RunFolder:
    """Make a folder for this run, and delete those of agents of this machine that were killed."""
    hosts = folder.state_dir() / "hosts"
    for old in hosts.glob("*"):
        if {kernel_state(run) for run in folder.find_runs(old)} == {KernelState.GONE}:
            shutil.rmtree(old, ignore_errors=True)
    # containers can share the folder, and the host name, and each has a process of this pid
    base = hosts / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return folder.create_run(base, setup.cluster, {}, Path(setup.run).name)
