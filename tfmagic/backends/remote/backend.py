"""The backend of tasks on other machines, in the kernel: a client of the driver process of an engine.

allocate, open ── control channel, answered ──→ driver process      (`tfmagic.backends.remote`)
launch, send, signal ── Deliver ──────────────→
take_events ←── FrameArrived, HostLost ────────
"""

import contextlib
import os
import secrets
import selectors
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from tfmagic.backends.remote import driver_client, memory_files, own_modules
from tfmagic.backends.remote.messages import (
    AddressesReserved,
    AgentSetup,
    Deliver,
    FrameArrived,
    HostLost,
    HostOrder,
    HostReport,
    HostReports,
    HostRequest,
    KeptTask,
    LaunchTask,
    OpenHosts,
    OrderFailed,
    Orders,
    PrepareLaunch,
    ReadAgain,
    ReserveAddresses,
    SignalTask,
    TakenOver,
    TasksUsed,
    WatchClosely,
)
from tfmagic.backends.remote.own_modules import OwnModules
from tfmagic.errors import LaunchError, ProtocolError
from tfmagic.protocol.channel import Decoder, encode
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Command, MoveLog, RunCell, TaskBoot
from tfmagic.protocol.events import (
    CellRaised,
    CellReturned,
    Event,
    HostSilent,
    TaskExited,
    TaskLost,
    not_sent,
)
from tfmagic.protocol.payload import Handle, LostHandle
from tfmagic.runs.folder import RunFolder
from tfmagic.system import files
from tfmagic.system.usage import Usage

_Common = tuple[TaskBoot, OwnModules, Handle | None]
_TAKEN_OVER = "another notebook has attached to this run; its tasks go on there"


@dataclass(slots=True)
class _Process:
    attempt: int
    ended: bool = False


class RemoteBackend:
    """A `tfmagic.backends.protocol.Backend` for the hosts of an engine.

    Args:
        gpu_tasks: The tasks that get GPUs.
        timeout_s: Until every task must have a place, and its host an agent.
        waits_for: See `DriverProcess.open`.
        suspect_s: After so many seconds without an answer a host counts as silent.
        modules: The notebook's own modules, which hosts get.
        resumes: Take over the agents of a cluster that has outlived its kernel, instead of starting some.
        opened: The numbers of its cells whose results no kernel has taken.
        keep_s: Returns how long the hosts wait for the next cluster after this one, in seconds.

    Attributes:
        tasks: All tasks of the cluster.
        hosts: What is known of each host.
        setup: Of the agents.
        kept: The tasks that were taken over. A task that is missing was lost with its host.
        was_taken_over: Whether another kernel has taken the agents over since.

    Raises:
        LaunchError: The engine cannot be reached, or has no room.
    """

    runs_here = was_taken_over = False
    _code: tuple[OwnModules, Handle | None]

    def __init__(
        self,
        request: HostRequest,
        setup: AgentSetup,
        run: RunFolder,
        tasks: tuple[TaskId, ...],
        gpu_tasks: tuple[TaskId, ...],
        timeout_s: float,
        suspect_s: float,
        modules: OwnModules | None = None,
        resumes: bool = False,
        opened: tuple[int, ...] = (),
        waits_for: driver_client.Waits = lambda what: None,
        keep_s: Callable[[], float] = lambda: 0.0,
    ):
        self._run, self.tasks, self._keep_s = run, tasks, keep_s
        self._processes: dict[TaskId, _Process] = {}
        self._usage: dict[TaskId, Usage] = {}
        self._closely: tuple[TaskId, ...] = ()
        self.use_modules(modules or OwnModules())
        self._unreported: list[Event] = []
        self._unsent: list[Deliver] = []  # orders that leave together
        self._last_command: Command | None = None  # that of the last of them
        # what the last launches among them have in common, its number, and the tasks that get it
        self._prepared: tuple[_Common, int, list[TaskId]] | None = None
        self._lost: dict[str, int] = {}  # bytes of output that were not written, by task
        self._decoder = Decoder(HostReports)
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_full = False  # whether orders wait until the driver reads
        self._closed, self._wake_lock = False, threading.RLock()  # signal handlers call `wake` too
        self._timeout_s, self._is_open = timeout_s, True
        self._selector.register(self._wake, selectors.EVENT_READ, "wake")
        self._opening = opening = OpenHosts(
            request,
            tasks,
            gpu_tasks,
            str(run.folder),
            setup,
            timeout_s,
            suspect_s,
            resumes,
            opened,
        )
        self._driver = driver_client.take(request.address)
        self._reports = self._driver.reports
        self._selector.register(self._reports, selectors.EVENT_READ, "reports")
        try:
            reply = self._driver.open(opening, waits_for)
        except BaseException:
            self.leave()
            raise
        self.hosts, self.setup = reply.hosts, reply.setup
        decoder = Decoder(KeptTask)
        self.kept: tuple[KeptTask, ...] = tuple(
            decoder.decode_frame(frame, ()) for host in reply.hosts for frame in host.kept
        )
        if resumes:
            self._processes = {task: _Process(1, ended=True) for task in tasks}
            for known in self.kept:
                self._processes[known.task] = _Process(known.attempt)

    # -- the interface --

    def allocate(self, tasks: Iterable[TaskId]) -> Mapping[TaskId, str]:
        wanted = tuple(tasks)
        reply = self._driver.ask(ReserveAddresses(wanted), AddressesReserved, self._timeout_s)
        assert isinstance(reply, AddressesReserved)
        return dict(zip(wanted, reply.addresses, strict=True))

    @property
    def has_ended(self) -> bool:
        return self._reports.fileno() < 0

    def launch(self, boot: TaskBoot) -> None:
        self._processes[boot.task] = _Process(boot.attempt)
        self._usage.pop(boot.task, None)
        with contextlib.suppress(OSError):  # who follows a log finds it before the first line
            os.close(files.open_regular(str(self._run.log_path(boot.task)), os.O_WRONLY | os.O_CREAT))
        log_bytes = self._run.log_bytes(boot.task)
        common, end = _divide(boot)
        prepared = self._prepare(boot.task, common)
        order = LaunchTask(boot.task, boot.attempt, prepared, end, log_bytes)
        self._deliver([boot.task], order, launches=True)

    def send(self, task: TaskId, command: Command) -> None:
        if not self._lives(task):
            return
        if isinstance(command, MoveLog):
            self._deliver([task], ReadAgain(task))
            return
        if command is not self._last_command:  # that of a cell goes to many tasks, one after the other
            frame, handles = encode(command)
            cell = command.cell if isinstance(command, RunCell) else 0
            self._unsent.append(Deliver([], frame, tuple(handles), to_task=True, cell=cell))
            self._last_command = command
        self._unsent[-1].tasks.append(task)

    def signal(self, task: TaskId, number: int) -> None:
        if self._lives(task):
            self._deliver([task], SignalTask(task, number))

    def wait(self, timeout_s: float | None) -> None:
        self._send_orders()
        if not self._unreported:
            self._selector.select(timeout_s)

    def take_events(self) -> Sequence[Event]:
        with contextlib.suppress(OSError):
            os.eventfd_read(self._wake)
        found, self._unreported = self._unreported, []
        if self._reports.fileno() < 0:
            return found
        try:
            for report in self._reports.receive_ready():
                if isinstance(report, TakenOver):
                    self.was_taken_over = True
                    return found + self._part(_TAKEN_OVER)
                found += self._read(report)
        except (EOFError, OSError):
            found += self._driver_ended()
        except ProtocolError as error:
            found += self._part(f"the process that talks to Ray sent what cannot be read: {error}")
        return found

    def usage(self, closely: Collection[TaskId]) -> Mapping[TaskId, Usage]:
        if (wanted := tuple(sorted(closely))) != self._closely:
            self._closely = wanted
            self._deliver(list(self._processes), WatchClosely(wanted))
        return dict(self._usage)

    def own_pids(self) -> Mapping[str, int]:
        return {"ray": self._driver.process.pid} if self._driver.alive else {}

    def wake(self) -> None:
        with self._wake_lock:
            if not self._closed:
                with contextlib.suppress(OSError):
                    os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
        self._send_orders()
        if self._reports.fileno() >= 0:
            self._selector.unregister(self._reports)
            self._driver.release(self._keep_s())
        elif self._is_open and self._opening.setup.kept_as and not self.was_taken_over:
            self._end_kept()
        self._selector.close()
        os.close(self._wake)

    def _end_kept(self) -> None:
        """End what has outlived the driver process; where that fails, it ends after its time."""
        with contextlib.suppress(LaunchError, OSError):
            driver = driver_client.take(self._opening.request.address)
            driver.open(msgspec.structs.replace(self._opening, resumes=True), lambda what: None)
            driver.release(self._keep_s())

    def leave(self) -> None:
        """End the driver process alone: the hosts of a kept cluster wait for the next kernel."""
        self._is_open = False
        self._driver.close()
        self.close()

    def _driver_ended(self) -> list[Event]:
        return self._part(f"the process that talks to Ray ended{self._driver.how_it_ended()}")

    def _part(self, reason: str) -> list[Event]:
        """Lose all tasks, and the driver process."""
        self._selector.unregister(self._reports)
        self._driver.close()
        return self._lose(tuple(self._processes), reason)

    # -- tasks --

    def use_modules(self, modules: OwnModules) -> None:
        """Give these modules to each process that is started from now on: one code for all tasks.

        Called before the first process, and before all tasks get new ones. From any thread.
        """
        packed = modules.pack()
        self._code = modules, memory_files.write(packed) if packed else None

    def change_modules(self, now: OwnModules, names: Iterable[str]) -> dict[str, bytes]:
        """Give later processes these modules as they are now. Return their files that have changed."""
        modules, archive = self._code
        if not (changed := modules.changed(now, names)):
            return {}
        merged = own_modules.merge(memory_files.read(archive) if archive is not None else b"", changed)
        modules = replace(modules, sent={**modules.sent, **{file: now.sent[file] for file in changed}})
        self._code = modules, memory_files.write(merged)
        return changed

    @property
    def modules(self) -> OwnModules:
        """The notebook's own modules, as new processes get them."""
        return self._code[0]

    def _lives(self, task: TaskId) -> bool:
        process = self._processes.get(task)
        return process is not None and not process.ended

    def _prepare(self, task: TaskId, boot: TaskBoot) -> int:
        """Let the task's host have what this process has in common with others. Return its number."""
        now, prepared = (boot, *self._code), self._prepared
        if prepared is None or prepared[0] != now:
            modules, archive = self._code
            number = secrets.randbits(62)
            order = PrepareLaunch(number, boot, archive, modules.before, modules.after)
            self._deliver([], order, launches=True)
            self._prepared = prepared = now, number, self._unsent[-1].tasks
        prepared[2].append(task)
        return prepared[1]

    def _deliver(self, tasks: list[TaskId], order: HostOrder, launches: bool = False) -> None:
        frame, handles = encode(order)
        self._unsent.append(Deliver(tasks, frame, tuple(handles), launches=launches))
        self._last_command = None

    def _send_orders(self) -> None:
        """Send what can go without waiting: the driver might be stopped, and the supervisor never waits."""
        orders, self._unsent, self._last_command, self._prepared = self._unsent, [], None, None
        if not (orders or self._is_full):
            return
        try:
            if self._reports.fileno() < 0:
                raise ConnectionError("the process that talks to Ray has ended")
            gone = self._reports.post(Orders(tuple(orders))) if orders else self._reports.flush()
            if (is_full := not gone) != self._is_full:
                self._is_full = is_full
                more = selectors.EVENT_WRITE if is_full else 0
                self._selector.modify(self._reports, selectors.EVENT_READ | more, "reports")
        except OSError as error:
            self._is_full = False
            tasks = dict.fromkeys(task for order in orders for task in order.tasks)
            self._unreported += self._lose(tasks, str(error))

    def _read(self, report: FrameArrived | OrderFailed | HostLost | HostSilent) -> list[Event]:
        match report:
            case OrderFailed(tasks, 0, reason):
                return self._lose(tasks, f"it could not be started: {reason}")
            case OrderFailed(tasks, cell, reason):
                return [
                    not_sent(task, self._processes[task].attempt, cell, self._run.log_bytes(task), reason)
                    for task in filter(self._lives, tasks)
                ]
            case HostLost(tasks, reason):
                return self._lose(tasks, reason)
            case HostSilent():
                return [report]
            case FrameArrived(frame, came, ahead_s, lost, missing):
                for name, size in lost.items():
                    self._lost[name] = self._lost.get(name, 0) + size
                handles = list(came)
                for place, reason in sorted(missing.items()):
                    handles.insert(place, LostHandle(reason))
                reports = self._decoder.decode_frame(frame, handles).reports
                return [e for report in reports if (e := self._event_of(report, ahead_s)) is not None]

    def _event_of(self, event: HostReport, ahead_s: float) -> Event | None:
        match event:
            case TasksUsed(usage):
                by_name = {task.name: task for task in self._processes}
                self._usage.update({by_name[n]: used for n, used in usage.items() if n in by_name})
                return None
            case TaskExited(task, attempt) | TaskLost(task, attempt):
                process = self._processes.get(task)
                if process is None or process.attempt != attempt or process.ended:
                    return None
                process.ended = True
                self._usage.pop(task, None)
            case CellReturned() | CellRaised():
                lost_bytes = event.lost_bytes + self._lost.pop(event.task.name, 0)
                event = msgspec.structs.replace(event, lost_bytes=lost_bytes)
                if isinstance(event, CellRaised):
                    event = msgspec.structs.replace(event, raised_at=event.raised_at + ahead_s)
        return event

    def _lose(self, tasks: Iterable[TaskId], reason: str) -> list[Event]:
        events: list[Event] = []
        for task in tasks:
            process = self._processes.get(task)
            if process is not None and not process.ended:
                process.ended = True
                self._usage.pop(task, None)
                events.append(TaskLost(task, process.attempt, reason))
        return events


def _divide(boot: TaskBoot) -> tuple[TaskBoot, str]:
    """Return what processes that start together have in common, and the end of TF_CONFIG, the task's own."""
    begin, mark, end = boot.tf_config.rpartition('"task": ')
    common = msgspec.structs.replace(
        boot, task=boot.leader, attempt=0, tf_config=begin + mark, stacks_path=""
    )
    return common, end
