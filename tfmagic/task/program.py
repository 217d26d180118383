"""The program of a task process: one control channel, two threads, one cell at a time.

    control channel ──→ main thread, between cells: runs them ──→ events, straight to the channel
                   └──→ side thread "tfmagic-control", during a long cell: interrupts, aborts, answers

The side thread answers while the main thread is busy, also inside TensorFlow, and frees it when a peer has
failed; `tfmagic.task.channel_reader` decides which of them reads. It ends with the process. When the channel
ends, the kernel or the supervisor is gone, and this process ends at once. Started by the launcher, in a fork
or in a fresh interpreter.
"""

import contextlib
import functools
import json
import linecache
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

from tfmagic.errors import ProtocolError
from tfmagic.hdf5 import guarding
from tfmagic.protocol import commands, task_context
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.comms import CommMessage
from tfmagic.protocol.events import (
    FIRST_STRATEGY,
    Displayed,
    FeatureRecorded,
    HintGiven,
    SocketSent,
    TaskReady,
)
from tfmagic.protocol.payload import Handle, Packed
from tfmagic.runs.folder import SCRATCH
from tfmagic.serialization import main_script, pickling, tracebacks
from tfmagic.system import features, signal_handlers
from tfmagic.task import exits, process_setup, streams
from tfmagic.task.barriers_and_input import Barriers, Keyboard
from tfmagic.task.cell_parts import Attempt, CellParts
from tfmagic.task.cell_position import PlaceWatch
from tfmagic.task.cell_reports import Reports
from tfmagic.task.channel_reader import ChannelReader, Work
from tfmagic.task.interrupt_delivery import InterruptDelivery
from tfmagic.task.shell import CellRunner, encode_bundle
from tfmagic.task.tensorflow import (
    collectives,
    function_calls,
    interrupts,
    keras_scopes,
    notices,
    patches,
    tf_config,
)
from tfmagic.task.widgets import Widgets

_LINE_MS = 150  # between two looks at the line that runs
_WATCH_MS = 20  # between two looks at a main thread whose peer has failed


def run_task(fd: int) -> NoReturn:
    """Run the task until the control channel ends. Never returns."""
    boot: commands.TaskBoot | None = None
    try:
        channel = Channel(socket.socket(fileno=fd), commands.Command)
        received = channel.receive()
        assert isinstance(received, commands.TaskBoot)
        boot = received
        process_setup.prepare(boot)
        TaskProgram(boot, channel).serve()
    except (EOFError, ConnectionError):
        pass  # the kernel is gone
    except BaseException as error:  # the log has the reason, and an error of the start quotes it
        exits.give_up(boot, error)
    finally:
        streams.flush_all()
        os._exit(0)  # TensorFlow's static destructors and its shutdown barrier can hang


class TaskProgram:
    """The state of a task process, and its two loops."""

    def __init__(self, boot: commands.TaskBoot, channel: Channel):
        self.boot, self.channel = boot, channel
        self.reader = ChannelReader()
        self.barriers = Barriers(boot, channel)
        self.keyboard = Keyboard(boot, channel)
        self.runner = CellRunner(self._send_display, self._ask, boot.is_interactive)
        self.reports = Reports(boot, channel, self.runner)
        self.widgets = Widgets(boot, channel, self._send_bundle)
        self.parts = CellParts(
            self.widgets,
            self.barriers,
            function_calls.CALLS,
            collectives.STATE,
            *(half.make(boot) for half in features.halves("task")),
            interrupts.STATE,
            keras_scopes.KerasScopes(),
            notices.Notices(self._send_hint),
        )
        self.cell = commands.RunCell(0)
        self.pid = os.getpid()
        run = os.path.dirname(boot.stacks_path)
        self.scratch = os.path.join(run, f"{boot.task.name}-{boot.attempt}{SCRATCH}")
        self.interrupt = InterruptDelivery(functools.partial(exits.give_up, boot))
        self.ended_cell = 0
        self.place_watch = PlaceWatch(boot)
        self.side_thread = threading.Thread(target=self._listen, name="tfmagic-control", daemon=True)
        self.interrupt.side_thread = self.side_thread
        self.servers: list[Any] = []

    def serve(self) -> NoReturn:
        """Set up, report ready, and run the cells that come."""
        signal.signal(signal.SIGINT, self.interrupt.on_signal)
        sys.unraisablehook = functools.partial(self.interrupt.note_unraisable, sys.unraisablehook)
        self._install_context(self.boot.tf_config)
        self._prepare_tensorflow()
        self.side_thread.start()
        self.channel.send(TaskReady(self.boot.task, self.boot.attempt, os.getpid(), socket.gethostname()))
        while True:
            command = self._next_command()
            match command:
                case commands.EndTask():
                    self._end(None)
                case commands.HandleComm(message):
                    self._handle_comm(message)
                case commands.RunCell():
                    self._run(command)

    def _next_command(self) -> Work:
        is_ours = False
        while True:
            try:
                if not is_ours:  # the last cell can have set its own
                    signal_handlers.set_handler(signal.SIGINT, self.interrupt.on_signal)
                    is_ours = True
                if (work := self.reader.next_work()) is not None:
                    return work
                for command in self.channel.receive_some():
                    self._obey(command)
            except KeyboardInterrupt:  # meant for the cell that has just ended
                continue
            except Exception as error:
                if not tracebacks.comes_from_user(error):
                    if isinstance(error, EOFError | ConnectionError):
                        os._exit(0)  # the kernel is gone
                    raise
                traceback.print_exc()  # of a signal handler that a cell has installed, as for an alarm

    # -- side thread --

    def _listen(self) -> None:
        """Serve the control channel during long cells. The process ends with the channel."""
        ready = select.poll()
        ready.register(self.channel.fileno(), select.POLLIN)
        try:
            while True:
                self.reader.wait_for_alarm(lambda: self.ended_cell)
                while self.reader.side_reads:  # until a cell is handed over
                    self._serve_channel(ready)
        except (EOFError, ConnectionError):
            os._exit(0)  # the kernel is gone
        except BaseException as error:  # without this thread the task would hang
            exits.give_up(self.boot, error)

    def _serve_channel(self, ready: select.poll) -> None:
        """Obey the next commands, or look at the main thread while none comes."""
        urgent = self.interrupt.is_urgent
        if not urgent and not self.reader.is_busy(self.ended_cell):
            came = self.channel.receive_some()
        elif ready.poll(_WATCH_MS if urgent else _LINE_MS):
            came = self.channel.receive_ready()
        else:
            came = []
            caught = interrupts.STATE.is_raised
            if self.interrupt.running and (place := self.place_watch.look(self.cell, caught)) is not None:
                self.channel.send(place)
            self.parts.tick()
            if urgent:
                self.interrupt.free_main_thread(self.ended_cell)
        for command in came:
            self._obey(command)

    def _obey(self, command: Any) -> None:
        match command:
            case commands.RunCell() | commands.EndTask():
                self.reader.deliver(command)
            case commands.HandleComm():
                self.reader.forward(command)
            case commands.ReleaseBarrier(name, place):
                if name.startswith(FIRST_STRATEGY):
                    interrupts.STATE.is_held = True
                self.barriers.open(name, "", place)
            case commands.BreakBarrier(name, reason):
                self.barriers.open(name, reason)
            case commands.InterruptCell(number):
                self.interrupt.interrupt(number)
            case commands.CancelOps():
                collectives.note_cancel()
                interrupts.STATE.cancel_ops()
            case commands.AbortCollectives(message, when_stuck_in=0):
                collectives.abort_collectives(message)
            case commands.AbortCollectives():
                self.interrupt.release = (command, interrupts.StuckWatch())
            case commands.AnswerInput():
                self.keyboard.type(command)
            case commands.CloseLog(limit_bytes):
                streams.close_log(limit_bytes)
            case commands.MoveLog():
                with contextlib.suppress(OSError):  # the new disk is full, too
                    streams.move_log(f"{self.boot.stacks_path.removesuffix('.stacks')}.log")
                    process_setup.open_stacks(self.boot)
            case commands.WriteFlood(size):
                threading.Thread(None, streams.flood, "tfmagic-flood", (size,), daemon=True).start()

    # -- set-up --

    def _install_context(self, given: str) -> None:
        tf_config.give(given)
        cluster, task = json.loads(given)["cluster"], self.boot.task
        me = task_context.TaskContext(task.type, task.index, cluster, task == self.boot.leader)
        services = task_context.TaskServices(
            lambda timeout, name=task_context.BARRIER: self._meet(name, self.cell.tasks, timeout),
            lambda timeout: self._meet(task_context.TRAINERS_BARRIER, self._trainers(), timeout),
            self.scratch,
            self._send_socket,
            self._run_mark,
            self._record,
            self.boot.cluster,
        )
        task_context.install(me, services)

    def _run_mark(self) -> str:
        trainers = {task for task in self.boot.shape_tasks if task.type in ("chief", "worker")}
        if not trainers <= set(self.cell.tasks):
            return ""
        run = os.path.basename(os.path.dirname(self.boot.stacks_path))
        return f"{run}/{self.cell.group or self.cell.cell}"

    def _trainers(self) -> tuple[TaskId, ...]:
        return tuple(task for task in self.cell.tasks if task.type in ("chief", "worker"))

    def _prepare_tensorflow(self) -> None:
        from tfmagic.task.tensorflow import graph_settings, loopback_only

        loopback_only.begin_task(self.boot.loopback_only)
        if self.boot.is_interactive:
            graph_settings.log_as_interactive()
        for line in patches.install_all(self.boot, meet=self._meet, folder=self.scratch):
            streams.write_line(f"tfmagic: {line}")
        guarding.begin_task()
        has_ps = any(t.type == "ps" for t in self.boot.shape_tasks)
        if self.boot.starts_servers and has_ps and self.boot.task.type in ("ps", "worker"):
            self.servers.append(collectives.start_server(self.boot))
        if self.boot.script is not None:
            main_script.load_script(self.boot.script, self.runner.namespace)

    # -- running --

    def _meet(self, kind: str, members: tuple[TaskId, ...], timeout_s: float | None = None) -> int:
        self.reader.call_side_thread()
        return self.barriers.wait(self.cell, kind, members, timeout_s)

    def _send_socket(self, request: str, fd: int | None) -> None:
        if self.boot.is_relayed and fd is not None:
            raise ProtocolError("an agent passes no sockets on")
        cell, me = self.cell, (self.boot.task, self.boot.attempt)
        handle = None if fd is None else Handle(fd)
        self.channel.send(SocketSent(*me, cell.cell, cell.group, cell.tasks, request, handle))

    def _ask(self, prompt: str, hidden: bool) -> str:
        self.reader.call_side_thread()
        return self.keyboard.ask(self.cell.cell, prompt, hidden)

    def _send_display(self, content: dict[str, Any]) -> None:
        if shown := self.widgets.note_display(content):
            self._send_bundle(shown, self.cell.cell, streams.log_offset())

    def _record(self, feature: str, cell: int, record: bytes) -> None:
        self.channel.send(FeatureRecorded(self.boot.task, self.boot.attempt, cell, feature, record))

    def _send_hint(self, name: str, advice: str) -> None:
        advice = advice.encode("utf-8", "replace").decode()  # a layer can have any name
        self.channel.send(HintGiven(self.boot.task, self.boot.attempt, self.cell.cell, name, advice))

    def _send_bundle(self, content: dict[str, Any], cell: int, offset: int) -> None:
        bundle, is_update = encode_bundle(content), bool(content.get("update"))
        self.channel.send(Displayed(self.boot.task, self.boot.attempt, cell, offset, bundle, is_update))

    def _run(self, cell: commands.RunCell) -> None:
        """Run a cell and report how it ended. What cannot be reported is a failure of the cell."""
        started = time.perf_counter()
        try:
            self._run_and_report(cell)
        except ConnectionError:
            raise  # the kernel is gone
        except BaseException as failure:  # code of the user's classes, a value that is too long, a full disk
            self.interrupt.running = False
            self.reports.report_failure(cell, failure, time.perf_counter() - started)

    def _run_and_report(self, cell: commands.RunCell) -> None:
        self.cell, self.interrupt.cell = cell, cell.cell
        attempt = Attempt()
        try:
            self.parts.begin(cell)
            started = time.perf_counter()
            self._attempt(cell, attempt)
            error, seconds = attempt.error, time.perf_counter() - started
            if os.getpid() != self.pid:
                exits.end_child(error)
            streams.flush_all()
        finally:
            self.parts.end(cell, attempt)
        if cell.kind is commands.CellKind.EXIT and issubclass(type(error), SystemExit):
            pass  # the exit code is the report
        elif error is None:
            self.reports.report_return(cell, attempt, seconds)
        else:
            self.reports.report_error(cell, attempt, seconds)
        if cell.kind is commands.CellKind.EXIT:
            self._end(error)

    def _handle_comm(self, message: CommMessage) -> None:
        """Let a widget handle a message of the page; an interrupt of a later cell ends that."""
        self.reader.begin_callback()
        self.interrupt.running = self.interrupt.in_callback = True
        try:
            self.widgets.handle(message)
        except BaseException:  # of a callback: also SystemExit, and the interrupt
            traceback.print_exc()
        finally:
            self.interrupt.running = self.interrupt.in_callback = False
        self.reader.end_callback()
        streams.flush_all()

    def _end(self, error: BaseException | None) -> NoReturn:
        self.reader.leave()
        exits.end_program(error)

    def _attempt(self, cell: commands.RunCell, attempt: Attempt) -> None:
        """Run the user's code. Interrupts arrive only here."""
        try:
            self.interrupt.running = True
            if self.interrupt.interrupted == cell.cell:
                self.interrupt.pending = 0
                raise KeyboardInterrupt
            for file, text in cell.carried.sources:
                linecache.cache[file] = (len(text), None, text.splitlines(True), file)
            self.reports.bind(cell)
            attempt.bound = True
            if isinstance(cell.kind, commands.Rejoin):
                attempt.value = self._rejoin(cell.kind.tf_config)
            elif cell.call is not None:
                attempt.value = self._call(cell.call)
            elif cell.source:
                attempt.value = self.runner.run_source(
                    cell.source, cell.filename, cell.show_value, cell.prompt
                )
            else:
                self.parts.run(cell)
        except BaseException as raised:  # user code can raise anything, and that is the result
            self.interrupt.running = False  # before any call, out of which an interrupt would be raised
            attempt.error, attempt.raised_at = raised, time.monotonic()
        finally:
            self.interrupt.running = False
            self.ended_cell = cell.cell

    def _rejoin(self, given: str) -> int:
        """Enter another cluster; return how often this process has done so."""
        interrupts.STATE.is_held = True  # TensorFlow's context would be half replaced
        try:
            resets = collectives.leave_cluster()
        finally:
            interrupts.STATE.is_held = False
        self._install_context(given)
        return resets

    def _call(self, packed: Packed) -> Any:
        function, args, kwargs = pickling.loads(packed, self.runner.namespace)
        self.runner.received.note_call(function)
        result = function(*args, **kwargs)
        return self.runner.wait_for(result) if hasattr(result, "__await__") else result
