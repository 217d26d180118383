"""The program of a task process: one control channel, two threads, one cell at a time.

    control channel ──→ main thread, between cells: runs them ──→ events, straight to the channel
                   └──→ side thread "tfmagic-control", during a long cell: interrupts, aborts, answers

The side thread answers while the main thread is busy, also inside TensorFlow, and frees it when a peer has
failed; `tfmagic.task.channel_reader` decides which of them reads. It ends with the process. When the channel
ends, the kernel or the supervisor is gone, and this process ends at once. Started by the launcher, in a fork
or in a fresh interpreter.
"""

import faulthandler
import gc
import linecache
import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from tfmagic.errors import TfmagicError
from tfmagic.hdf5 import guarding
from tfmagic.protocol import commands, module_origins, task_context
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Displayed, TaskReady, WriterWanted
from tfmagic.protocol.payload import Handle, Packed
from tfmagic.runs.folder import GAVE_UP, SCRATCH, attempt_mark, write_end_reason
from tfmagic.serialization import main_script, pickling
from tfmagic.system import advice, files
from tfmagic.task import debugger, exits, streams
from tfmagic.task.barriers_and_input import Barriers, Keyboard
from tfmagic.task.cell_position import PlaceWatch
from tfmagic.task.cell_reports import HOST, Attempt, Reports
from tfmagic.task.channel_reader import Turns
from tfmagic.task.shell import CellRunner, encode_bundle
from tfmagic.task.tensorflow import collectives, interrupts
from tfmagic.task.tensorflow.interrupts import StuckWatch

_LINE_MS = 150  # between two looks at the line that runs
_BROKEN_FROM_INSIDE = "most likely the cell has closed or replaced something that is not its own"
_WATCH_MS = 20  # between two looks at a main thread whose peer has failed


def run_task(fd: int) -> NoReturn:
    """Run the task until the control channel ends. Never returns."""
    boot: commands.TaskBoot | None = None
    try:
        channel = Channel(socket.socket(fileno=fd), commands.Command)
        received = channel.receive()
        assert isinstance(received, commands.TaskBoot)
        boot = received
        _prepare_process(boot)
        TaskProgram(boot, channel).serve()
    except (EOFError, ConnectionError):
        pass  # the kernel is gone
    except BaseException as error:  # the log has the reason, and an error of the start quotes it
        _give_up(boot, error)
    finally:
        streams.flush_all()
        os._exit(0)  # TensorFlow's static destructors and its shutdown barrier can hang


def _give_up(boot: commands.TaskBoot | None, error: BaseException) -> NoReturn:
    """End this process after an error of tfmagic's own code, and note the error."""
    if boot is not None:
        what = f"{type(error).__qualname__}: {error}"
        write_end_reason(
            boot.stacks_path, f"its own part in the task failed with {what}; {_BROKEN_FROM_INSIDE}"
        )
    try:
        import traceback

        traceback.print_exc()
        streams.flush_all()
    finally:
        os._exit(GAVE_UP)


def _prepare_process(boot: commands.TaskBoot) -> None:
    """Set environment, folder, streams and signals, before any user code runs."""
    os.environ.clear()
    os.environ.update(boot.environ)
    os.environ["TF_CONFIG"] = boot.tf_config
    advice.translate_for(boot.in_notebook)
    sys.path[:] = boot.sys_path
    module_origins.install(boot.origins)
    sys.argv = [""]
    os.chdir(boot.cwd)
    streams.attach_streams()
    stacks = files.open_to_append(boot.stacks_path)
    os.write(stacks, f"{attempt_mark(boot.attempt)}\n".encode())
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.enable()
    multiprocessing.current_process().authkey = boot.authkey
    if "numpy" in sys.modules:  # a fork shares the generator's state with its siblings
        sys.modules["numpy"].random.seed()


class TaskProgram:
    """The state of a task process, and its two loops."""

    def __init__(self, boot: commands.TaskBoot, channel: Channel):
        self.boot, self.channel = boot, channel
        self.turns = Turns()
        self.barriers = Barriers(boot, channel)
        self.keyboard = Keyboard(boot, channel)
        self.runner = CellRunner(self._send_display, self._ask)
        self.reports = Reports(boot, channel, self.runner)
        self.cell = commands.RunCell(0)
        self.running = False
        self.pid = os.getpid()
        self.scratch = os.path.join(
            os.path.dirname(boot.stacks_path), f"{boot.task.name}-{boot.attempt}{SCRATCH}"
        )
        self.interrupted_cell = self.interrupting = self.sending = (
            0  # numbers of cells, from 1 on; 0 for none
        )
        self.last_error: BaseException | None = None
        self.ended_cell = 0
        self.place_watch = PlaceWatch(boot)
        # to obey when this task is stuck
        self.release: tuple[commands.AbortCollectives, StuckWatch] | None = None
        self.servers: list[Any] = []

    def serve(self) -> NoReturn:
        """Set up, report ready, and run the cells that come."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        sys.breakpointhook = debugger.break_here
        self._install_context()
        self._prepare_tensorflow()
        threading.Thread(target=self._listen, name="tfmagic-control", daemon=True).start()
        self.channel.send(TaskReady(self.boot.task, self.boot.attempt, os.getpid(), HOST))
        while True:
            command = self._next_command()
            if isinstance(command, commands.EndTask):
                self._end(None)
            self._run(command)

    def _next_command(self) -> commands.RunCell | commands.EndTask:
        while True:
            try:
                signal.signal(signal.SIGINT, self._on_interrupt)  # the last cell can have set its own
                if (cell := self.turns.next_cell()) is not None:
                    return cell
                for command in self.channel.receive_some():
                    self._obey(command)
            except KeyboardInterrupt:  # meant for the cell that has just ended
                continue
            except (EOFError, ConnectionError):
                os._exit(0)  # the kernel is gone

    def _on_interrupt(self, number: int, frame: Any) -> None:
        """Raise KeyboardInterrupt in the cell, if it can be raised here; else the side thread tries again."""
        meant = self.sending or self.cell.cell  # 0: the signal is not from the side thread
        if not self.running or meant != self.cell.cell:
            return
        if interrupts.can_interrupt(frame):
            self.interrupting = 0
            raise KeyboardInterrupt
        self.interrupting = self.cell.cell

    # -- side thread --

    def _listen(self) -> None:
        """Serve the control channel during long cells. The process ends with the channel."""
        ready = select.poll()
        ready.register(self.channel.fileno(), select.POLLIN)
        try:
            while True:
                self.turns.wait_for_alarm(lambda: self.ended_cell)
                while self.turns.side_reads:  # until a cell is handed over
                    self._serve_channel(ready)
        except (EOFError, ConnectionError):
            os._exit(0)  # the kernel is gone
        except BaseException as error:  # without this thread the task would hang
            _give_up(self.boot, error)

    def _serve_channel(self, ready: select.poll) -> None:
        """Obey the next commands, or look at the main thread while none comes."""
        urgent = self.release is not None or self.interrupting > 0
        if not urgent and not self.turns.is_busy(self.ended_cell):
            came = self.channel.receive_some()
        elif ready.poll(_WATCH_MS if urgent else _LINE_MS):
            came = self.channel.receive_ready()
        else:
            came = []
            if self.running and (place := self.place_watch.look(self.cell)) is not None:
                self.channel.send(place)
            if urgent:
                self._free_main_thread()
        for command in came:
            self._obey(command)

    def _obey(self, command: Any) -> None:
        match command:
            case commands.RunCell() | commands.EndTask():
                self.turns.bring(command)
            case commands.ReleaseBarrier(name, place):
                self.barriers.open(name, "", place)
            case commands.BreakBarrier(name, reason):
                self.barriers.open(name, reason)
            case commands.InterruptCell(number):
                self._interrupt(number)
            case commands.CancelOps():
                interrupts.cancel_ops()
                collectives.note_cancel()
            case commands.AbortCollectives(message, when_stuck_in=0):
                collectives.abort_collectives(message)
            case commands.AbortCollectives():
                self.release = (command, StuckWatch())
            case commands.AnswerInput():
                self.keyboard.type(command)
            case commands.CloseLog(limit_bytes):
                notice = (
                    f"\n[tfmagic: this log reached its limit of {limit_bytes} bytes "
                    "(TFCluster.max_log_bytes); what follows is not kept. A new cluster has new logs:  "
                    "%tfcluster stop, then start]\n"
                )
                streams.discard_output(advice.here(notice))
            case commands.WriteFlood(size_bytes):
                arguments = (size_bytes,)
                threading.Thread(None, streams.flood, "tfmagic-flood", arguments, daemon=True).start()

    def _interrupt(self, cell: int) -> None:
        """Interrupt this cell and its child processes; a cell that has not begun does not begin."""
        self.interrupted_cell = self.interrupting = cell
        self._signal(cell, lambda: os.killpg(0, signal.SIGINT))

    def _signal(self, cell: int, send: Callable[[], None]) -> None:
        """Signal the main thread for this cell, which can end at any moment."""
        self.sending = cell
        if self.running and self.cell.cell == cell:
            send()
        self.sending = 0

    def _free_main_thread(self) -> None:
        """Repeat an interrupt that has not arrived, and free a main thread that waits for a failed peer."""
        if self.interrupting <= self.ended_cell:
            self.interrupting = 0
        if self.interrupting:  # os.system() ignores it; see also _on_interrupt
            main = threading.main_thread().ident or 0
            self._signal(self.interrupting, lambda: signal.pthread_kill(main, signal.SIGINT))
        if self.release is not None:
            command, watch = self.release
            if command.when_stuck_in <= self.ended_cell:
                self.release = None
            elif watch.is_stuck():
                collectives.abort_collectives(command.message)
                self.release = None

    # -- set-up --

    def _install_context(self) -> None:
        import json

        config = json.loads(os.environ["TF_CONFIG"])
        task = self.boot.task
        me = task_context.TaskContext(task.type, task.index, config["cluster"], task == self.boot.leader)
        services = task_context.TaskServices(
            lambda timeout: self._meet(task_context.BARRIER, self.cell.tasks, timeout),
            lambda timeout: self._meet(task_context.TRAINERS_BARRIER, self._trainers(), timeout),
            self.scratch,
            self._want_writer,
            self._run_mark,
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
        from tfmagic.task.tensorflow import graph_settings, keras_repair, loopback_only

        loopback_only.begin_task(self.boot.loopback_only)
        interrupts.install()
        graph_settings.hide_our_frames()
        if not self.boot.is_plain:
            collectives.install(self.boot, self._meet)
        graph_settings.know_print()
        graph_settings.keep_files_in(self.scratch)
        if self.boot.keras_fix:
            keras_repair.install()
        guarding.begin_task()
        has_ps = any(t.type == "ps" for t in self.boot.shape_tasks)
        if self.boot.starts_servers and has_ps and self.boot.task.type in ("ps", "worker"):
            self.servers.append(collectives.start_server(self.boot))
        if self.boot.script is not None:
            main_script.load_script(self.boot.script, self.runner.namespace)

    # -- running --

    def _meet(self, kind: str, members: tuple[TaskId, ...], timeout_s: float | None = None) -> int:
        self.turns.call_side_thread()
        return self.barriers.wait(self.cell, kind, members, timeout_s)

    def _want_writer(self, path: str, mode: str, copy_of: int, fd: int) -> None:
        cell, boot = self.cell, self.boot
        self.channel.send(
            WriterWanted(
                boot.task,
                boot.attempt,
                cell.cell,
                group=cell.group,
                members=cell.tasks,
                path=path,
                mode=mode,
                copy_of=copy_of,
                handle=Handle(fd),
            )
        )

    def _ask(self, prompt: str, hidden: bool) -> str:
        self.turns.call_side_thread()
        return self.keyboard.ask(self.cell.cell, prompt, hidden)

    def _send_display(self, content: dict[str, Any]) -> None:
        bundle, offset = encode_bundle(content), streams.log_offset()
        self.channel.send(Displayed(self.boot.task, self.boot.attempt, self.cell.cell, offset, bundle))

    def _run(self, cell: commands.RunCell) -> None:
        self.cell = cell
        interrupts.begin_cell()
        self.barriers.begin_cell()
        if cell.source or cell.call:
            self.last_error = None  # its frames hold memory that this cell can need
            if notice := collectives.take_notice():
                streams.write_line(notice)
        started = time.perf_counter()
        entered = interrupts.take_scopes()
        attempt = self._attempt(cell)
        error = attempt.error
        if os.getpid() != self.pid:
            exits.end_child(error)
        seconds = time.perf_counter() - started
        streams.flush_all()
        if cell.exits and issubclass(type(error), SystemExit):
            pass  # the exit code is the report
        elif error is None:
            self.reports.report_return(cell, attempt.value, seconds)
        else:
            if interrupts.is_interrupt(error):
                interrupts.put_back(entered)
            if not cell.debug:
                self.last_error = error
            self.reports.report_error(cell, attempt, seconds)
        if cell.exits:
            self._end(error)

    def _end(self, error: BaseException | None) -> NoReturn:
        self.turns.leave()
        exits.end_program(error)

    def _attempt(self, cell: commands.RunCell) -> Attempt:
        """Run the user's code. Interrupts arrive only here."""
        error: BaseException | None = None
        value, raised_at, bound = None, 0.0, False
        try:
            self.running = True
            if self.interrupted_cell == cell.cell:
                self.interrupting = 0
                raise KeyboardInterrupt
            for file, text in cell.sources:
                linecache.cache[file] = (len(text), None, text.splitlines(True), file)
            for packed in cell.names:
                self.reports.bind(packed)
            bound = True
            if cell.debug:
                self._debug()
            elif cell.tf_config:
                value = self._rejoin(cell.tf_config)
            elif cell.call is not None:
                value = self._call(cell.call)
            elif cell.source:
                value = self.runner.run_source(cell.source, cell.filename, cell.show_value, cell.prompt)
        except BaseException as raised:  # user code can raise anything, and that is the result
            error = raised
            raised_at = time.monotonic()
        finally:
            self.running = False
            self.ended_cell = cell.cell
        return Attempt(value, error, raised_at, bound)

    def _debug(self) -> None:
        if self.last_error is None:
            raise TfmagicError(
                f"{self.boot.task} has no failure to look at: its last cell did not fail in this process. "
                "The frames are kept until the next cell."
            )
        debugger.look_at(self.last_error)

    def _rejoin(self, tf_config: str) -> int:
        """Enter another cluster; return how often this process has done so."""
        resets = collectives.leave_cluster()
        os.environ["TF_CONFIG"] = tf_config
        self._install_context()
        return resets

    def _call(self, packed: Packed) -> Any:
        function, args, kwargs = pickling.loads(packed, self.runner.namespace)
        result = function(*args, **kwargs)
        if hasattr(result, "__await__"):
            return self.runner.wait_for(result)
        return result
