"""The agent of a host: starts tasks there as the kernel does on its own machine, and reports what they do.

    perform(number, instructions) ─→ orders ─→ LocalBackend ─→ launcher of this host ─→ tasks
    poll(number) ←── events, in frames; what is new in the tasks' logs and stacks; usage now and then

It knows no engine: any that can call two methods at a time on an object will do. Orders have numbers, so one
that is repeated is not performed twice. A batch of reports is kept until the second one after it is asked
for, so a driver can have two polls under way, and no event and no line is lost if an answer was. An event
follows the output that was written before it.

Without a call for the time of its lease, the agent ends its tasks. Its process stays for a while: a driver
that was cut off, or stopped, learns the reason.

A cluster that outlives its kernel has a long lease (`AgentSetup.keep_s`), and a `Journal` for the kernel that
attaches next. Each kernel that attaches begins an epoch, by which its orders and batches are numbered: those
of the kernel before are refused.
"""

import contextlib
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tfmagic.backends.held_ports import HeldPorts
from tfmagic.backends.launcher_client import Flavour
from tfmagic.backends.local import LocalBackend
from tfmagic.backends.remote import journal, memory_files, memory_guard, watched_tasks
from tfmagic.backends.remote.batches import Batch, Batches, Instruction
from tfmagic.backends.remote.host_boots import HostBoots
from tfmagic.backends.remote.host_usage import HostUsage
from tfmagic.backends.remote.journal import Journal
from tfmagic.backends.remote.memory_guard import MemoryRule
from tfmagic.backends.remote.messages import (
    EPOCH,
    LEASE_OVER,
    TAKEN_OVER,
    AgentSetup,
    HostOrder,
    HostReport,
    KeptTask,
    LaunchTask,
    PrepareLaunch,
    ReadAgain,
    SignalTask,
    WatchClosely,
)
from tfmagic.backends.remote.task_files import Piece, TaskFiles, create_run_folder
from tfmagic.backends.remote.versions import own_versions
from tfmagic.backends.remote.watched_tasks import Watched
from tfmagic.errors import LaunchError
from tfmagic.protocol import commands, events
from tfmagic.protocol.channel import Decoder, encode
from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.protocol.events import Event, TaskExited, TaskLost, TaskReady
from tfmagic.protocol.payload import LOST, Handle, OwnedHandle
from tfmagic.runs.folder import file_size

_BUSY_LOOK_ALL_S = 0.05  # between two at the other files
_TELL_S = 600.0  # so long a process whose lease has run out can still say so
_KEPT_BYTES = 256 << 20  # of what the tasks have returned and displayed, for a kernel that attaches


class HostAgent:
    """Serves one cluster on one host.

    Args:
        address: The address of this host that the other hosts reach.
        gpus: The GPUs that each task may use, as CUDA_VISIBLE_DEVICES names them.
        give_up: Ends the process of the agent, some time after its lease has run out.
        shares_memory: Whether this process and the driver can open each other's memory files.
        memory_rule: When the engine ends processes for want of memory; None if it does not.
    """

    def __init__(
        self,
        setup: AgentSetup,
        address: str,
        gpus: Mapping[str, Sequence[str]],
        give_up: Callable[[], object],
        shares_memory: bool = False,
        memory_rule: MemoryRule | None = None,
    ):
        self._shares_memory = shares_memory
        self._setup, self._address, self._give_up = setup, address, give_up
        os.environ.update(setup.environ)
        self._run = create_run_folder(setup)
        self._boots = HostBoots(self._run, gpus)
        early = tuple(sorted(setup.early.items()))
        self._lock, self._waiting = threading.Lock(), threading.Lock()
        self._backend = LocalBackend(Flavour(setup.legacy_keras, early=early), self._run)
        self._decoder, self._command_decoder = Decoder(HostOrder), Decoder(commands.Command)
        self._watched: dict[TaskId, Watched] = {}
        self._unsent: list[Event] = []  # of tasks without output
        self._performed = self._epoch = self._resumed = 0
        self._looked = self._looked_at_all = 0.0
        self._batches = Batches()
        self._ports: HeldPorts | None = None
        self._usage = HostUsage()
        self._heard, self._closed = time.monotonic(), threading.Event()
        self._dismissed, self._is_lease_over = threading.Event(), False
        self._ended: dict[tuple[TaskId, int], str] = {}  # attempts that were ended here, and why
        threading.Thread(target=self._keep_lease, name="tfmagic-lease", daemon=True).start()
        if memory_rule is not None:
            watching = (memory_rule, address, self._pids, self._end_task, self._closed.wait)
            threading.Thread(None, memory_guard.watch, "tfmagic-memory", watching, daemon=True).start()

    def heartbeat(self) -> None:
        """Note that the kernel is there, while a large value keeps it from asking for reports."""
        self._heard = time.monotonic()

    def facts(self) -> dict[str, str]:
        """Return the versions of what is installed here."""
        self._heard = time.monotonic()
        return own_versions()

    def reserve(self, tasks: Sequence[str]) -> dict[str, str]:
        """Hold a port of this host for each task, until the next call; return the addresses."""
        self._heard = time.monotonic()
        old, self._ports = self._ports, HeldPorts([parse_task(name) for name in tasks], self._address)
        if old is not None:
            old.close()
        return {task.name: address for task, address in self._ports.addresses.items()}

    def perform(self, number: int, instructions: Sequence[Instruction], *contents: Any) -> None:
        """Perform orders. One that fails is answered for its task.

        Args:
            number: Of the first one.
            instructions: The tasks that get the frame, none for an order to this agent; the number of the
                cell that it begins, or 0; the frame; and which of the contents are those of its handles.
            *contents: Buffers, or places of memory files.
        """
        self._heard = time.monotonic()
        opened: dict[int, Handle] = {}
        with self._lock:
            for place, instruction in enumerate(instructions, number):
                if place != self._performed + 1:
                    continue
                self._performed = place
                names, cell, frame, which = instruction
                left = [w for name in names if (w := self._watched.get(parse_task(name))) is not None]
                try:
                    for i in set(which).difference(opened):
                        opened[i] = memory_files.receive(contents[i])
                    handles = [opened[i] for i in which]
                    if not names:
                        self._obey(self._decoder.decode_frame(frame, handles))
                    while left:
                        self._pass_on(left[0], cell, frame, handles)
                        del left[0]
                except Exception as error:  # no memory, for example; the next orders are performed
                    self._report_failed(error, instruction, left)
        self._backend.wake()

    def poll(self, number: int, timeout_s: float) -> Batch:
        """Return a batch, as soon as something is new, or when the time has passed."""
        found: list[Piece] = []
        ready: list[HostReport] = []
        now = time.monotonic()
        deadline = now + min(timeout_s, self._setup.lease_s / 2)
        look = max(now, self._looked + watched_tasks.gather_s(self._watched.values()))
        while True:
            with self._lock:
                if number <= self._epoch * EPOCH or self._is_lease_over:
                    return Batch(LEASE_OVER if self._is_lease_over else TAKEN_OVER, 0, 0.0, [])
                self._heard = now = time.monotonic()
                for arrived in self._batches.arrived(number):
                    for watched in self._watched.values() if arrived.files else ():
                        watched.files.note_arrived(arrived.files)
                if (batch := self._batches.again(number)) is not None:
                    return batch
                if not self._closed.is_set():
                    self._take_events()
                    look = min(look, self._looked + watched_tasks.pace_s(self._watched.values()))
                    if self._unsent or any(watched.held for watched in self._watched.values()):
                        gather_s = watched_tasks.gather_s(self._watched.values())
                        look = min(look, now if self._unsent else now + gather_s)
                    if now >= look:
                        self._collect(found, ready, now)
                        look = now + watched_tasks.pace_s(self._watched.values())
                if found or ready or now >= deadline or self._closed.is_set():
                    return self._batches.add(self._performed, now, found, ready, self._shares_memory)
            with self._waiting, contextlib.suppress(OSError, ValueError):  # closed meanwhile
                self._backend.wait(min(deadline, look) - now)

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
            self._performed = epoch * EPOCH
            self._batches.begin(self._performed)
            kept = []
            for watched in self._watched.values():
                assert watched.journal is not None
                watched.files.resume(sizes)
                known = watched.journal.resume(opened)
                watched.held = deque(watched.journal.told)
                kept.append((watched.task.name, encode(known)[0]))
        self._backend.wake()
        return self._address, self.facts(), msgspec.msgpack.encode(self._setup), kept, self._shares_memory

    def close(self) -> None:
        """End the tasks, and delete what they have written here: it was reported."""
        self._dismissed.set()
        self._end_tasks()

    # -- inside --

    def _end_tasks(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._backend.wake()
        with self._waiting, self._lock:  # a wait on what was closed would last its time
            self._backend.close()
            if self._ports is not None:
                self._ports.close()
        shutil.rmtree(self._run.folder.parent.parent, ignore_errors=True)

    def _keep_lease(self) -> None:
        while not self._closed.wait(min(self._setup.lease_s / 4, 1.0)):
            has_orders = self._performed > 0  # before, no kernel could find it
            lease_s = self._setup.keep_s if self._setup.keep_s and has_orders else self._setup.lease_s
            unheard_s = time.monotonic() - self._heard
            if unheard_s > lease_s:
                self._is_lease_over = True
                self._end_tasks()
                if self._setup.keep_s or not self._dismissed.wait(_TELL_S):
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
            case PrepareLaunch():
                self._boots.prepare(order)
            case LaunchTask():
                self._launch(order)
            case ReadAgain(task):
                self._watched[task].files.read_again()
            case SignalTask(task, number):
                self._backend.signal(task, number)
            case WatchClosely(tasks):
                self._usage.closely = tasks

    def _pass_on(self, watched: Watched, cell: int, frame: bytes, handles: list[Handle]) -> None:
        """Send a command to the task's present process."""
        if watched.journal is not None:
            command = self._command_decoder.decode_frame(frame, handles)
            watched.journal.note_command(command, file_size(self._run.log_path(watched.task)))
        self._backend.send_frame(watched.task, frame, handles)
        if cell:
            watched.cells += 1
            self._usage.expect(soon=True)

    def _report_failed(self, error: Exception, instruction: Instruction, left: Sequence[Watched]) -> None:
        """Report the end of a cell on these tasks, or of a process, that this host could not start."""
        names, cell, frame, which = instruction
        reason = f"{type(error).__name__}: on {self._address} ({self._run.folder}): {error}"
        for watched in left if cell else ():
            log_end = file_size(self._run.log_path(watched.task))
            self._hold(
                watched, events.not_sent(watched.task, watched.attempt, cell, log_end, reason), log_end
            )
        if not names:
            order = self._decoder.decode_frame(frame, [OwnedHandle(LOST) for _ in which])
            if isinstance(order, PrepareLaunch):
                self._boots.prepare(order, error)
            if isinstance(order, LaunchTask):
                self._unsent.append(lost := TaskLost(order.task, order.attempt, reason))
                if (known := self._watched.get(order.task)) is not None:
                    known.note(lost)
                    if known.journal is not None:
                        known.journal.note_event(lost, 0)

    def _launch(self, order: LaunchTask) -> None:
        """Start a process here: with the folder, environment and import path of this host."""
        task = order.task
        watched = self._watched.setdefault(task, Watched(task, TaskFiles(self._run, task)))
        watched.begin(order.attempt)
        if self._setup.keep_s:
            watched.journal = watched.journal or Journal(KeptTask(task))
            watched.journal.note_launch(order.attempt)
        watched.files.begin(order.log_bytes)
        coming = self._ports.addresses if self._ports is not None else {}  # those that start with it, too
        computing = sum(1 for other in {*self._watched, *coming} if other.type != "ps")
        boot = self._boots.here(order, computing)
        self._usage.of_tasks = len(boot.shape_tasks)
        self._backend.launch(boot)

    def _take_events(self) -> None:
        for event in self._backend.take_events():
            watched = self._watched[event.task]  # type: ignore[union-attr]  # all of a backend have one
            watched.note(event)
            if isinstance(event, TaskReady):
                self._usage.expect(soon=False)
            self._hold(watched, self._with_place(event), file_size(self._run.log_path(watched.task)))

    def _hold(self, watched: Watched, event: Event, log_bytes: int) -> None:
        """Report an event after the output before it."""
        watched.held.append((log_bytes, event))
        if watched.journal is not None:
            watched.journal.note_event(event, log_bytes)

    def _collect(self, found: list[Piece], ready: list[HostReport], now: float) -> None:
        """Add what is new in the files, and the events whose output was reported."""
        is_busy, self._looked = watched_tasks.are_busy(self._watched.values()), now
        log_only = is_busy and now < self._looked_at_all + _BUSY_LOOK_ALL_S
        for watched in self._watched.values():
            found += watched.files.read_new(log_only and not watched.held)
        if not log_only:
            self._looked_at_all = now
        ready += self._unsent  # type: ignore[arg-type]  # a `TaskLost`
        self._unsent = []
        for watched in self._watched.values():
            while watched.held and watched.files.sent["log"] >= watched.held[0][0]:
                ready.append(watched.held.popleft()[1])  # type: ignore[arg-type]
        if (used := self._usage.sample(self._pids(), is_busy)) is not None:
            ready.append(used)

    def _pids(self) -> dict[TaskId, int]:
        return {task: watched.pid for task, watched in list(self._watched.items()) if watched.pid}

    def _end_task(self, task: TaskId, pid: int, reason: str) -> None:
        """End a task that takes the memory of its host."""
        with self._lock:
            if (watched := self._watched[task]).pid == pid and not self._closed.is_set():
                self._ended[task, watched.attempt] = reason
                self._backend.signal(task, signal.SIGKILL)

    def _with_place(self, event: Event) -> Event:
        if isinstance(event, TaskExited) and (reason := self._ended.pop((event.task, event.attempt), "")):
            return msgspec.structs.replace(event, reason=reason)
        if isinstance(event, TaskReady):
            return msgspec.structs.replace(event, host=self._address)
        if isinstance(event, events.CellReturned | events.CellRaised) and event.lost_bytes:
            return msgspec.structs.replace(event, lost_where=f"{self._address}:{self._run.folder}")
        return event
