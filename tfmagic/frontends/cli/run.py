"""``tfmagic run``: run a script on every task of a cluster, each in a process that ends with the script.

main thread         starts the tasks, then waits: signals, the timeout, servers that are no longer needed
"tfmagic-one-shot"   ends and restarts tasks by the rules: see `tfmagic.clusters.one_shot_tasks`
"tfmagic-printer"   see `tfmagic.frontends.cli.printer`
"tfmagic-messages"  see `tfmagic.frontends.cli.outlet`
"""

from __future__ import annotations

import argparse
import io
import os
import pkgutil
import re
import shlex
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TextIO

from tfmagic.clusters.cells import features
from tfmagic.clusters.cells.cell_plan import Call
from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.launch.given_options import given_options
from tfmagic.clusters.launch.program import Program
from tfmagic.clusters.launch.task_settings import existing_folder
from tfmagic.clusters.one_shot_tasks import OneShotTasks
from tfmagic.errors import ClusterSpecError, LaunchError, TfmagicError
from tfmagic.failures import stacks
from tfmagic.failures.deaths import describe_end
from tfmagic.frontends import mistyped
from tfmagic.frontends.cli.outlet import Outlet, outlets
from tfmagic.frontends.cli.parsers import BAD_USAGE
from tfmagic.frontends.cli.printer import Printer, say
from tfmagic.frontends.cli.signals import SignalReceived, Signals
from tfmagic.frontends.cli.streams import show
from tfmagic.frontends.cli.summary import (
    SIGNALLED,
    StopReason,
    failed_tasks,
    format_summary,
    report_run,
    summarize,
)
from tfmagic.protocol.cluster_spec import ClusterShape, TaskId
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.given_hints import append_hint, read_hints
from tfmagic.runs.log_reader import log_lines
from tfmagic.runs.schemas import RunReport, as_json
from tfmagic.runs.stack_files import group_stacks
from tfmagic.supervisor.one_shot_rules import OneShotTask, Rules
from tfmagic.system import files
from tfmagic.system.advice import program_name
from tfmagic.system.features import halves
from tfmagic.system.own_code import OUR_FOLDER
from tfmagic.task.script import run_script
from tfmagic.views.hints import CellHints

_POLL_S = 0.1
_DRAIN_S = 0.01
_READER_S = 1.0  # a reader that takes nothing for so long has stopped reading
_MOST_LINES = 1000  # in memory
_SERVER_S = 1.0  # for a server to end after SIGTERM
_FOLLOW_S = 2.0  # for the other tasks to save and end too, after the leader asked them to


def again(target: str, is_module: bool) -> str:
    """Return the command that runs a script again, to copy; ``{}`` stands for a further option."""
    words = shlex.join(["-m", target] if is_module else [target]).replace("{", "{{").replace("}", "}}")
    return f"{program_name()} run {{}} {words}"


def main(args: argparse.Namespace) -> int:
    """Run the script. Return the exit code."""
    if problem := find_problem(args.target, args.is_module):
        code, why = problem
        return _refuse(args, code, why + mistyped.script(args.target, args.parser))
    if args.new_form:
        say(f"from 0.2 on all words after the script are the script's own; write:  {args.new_form}")
    leave_own_folder()
    streams = sys.stdout, sys.stderr
    with outlets() as messages, Signals() as signals:
        try:
            return ScriptRun(args, signals, messages).run(streams)
        except SignalReceived:
            return signals.reason.value
        except TfmagicError as error:
            is_usage = isinstance(error, ClusterSpecError)
            return _refuse(args, BAD_USAGE if is_usage else StopReason.NOT_STARTED.value, str(error))


def _refuse(args: argparse.Namespace, code: int, why: str) -> int:
    say(why)
    if args.json:
        print(as_json(RunReport(outcome="not started", exit_code=code, seconds=0.0, message=why)))
    return code


def find_problem(target: str, is_module: bool) -> tuple[int, str] | None:
    """Return an exit code and a message, or None if the target can be run.

    No code of the user's is imported, so only the first part of a dotted name is looked for.
    """
    if is_module:
        name = target.partition(".")[0]
        found = PathFinder.find_spec(name, [existing_folder(), *sys.path])
        return None if found or name in sys.stdlib_module_names else (BAD_USAGE, f"No module named {name}")
    if os.path.isdir(target):
        is_program = os.path.exists(os.path.join(target, "__main__.py"))
        return None if is_program else (BAD_USAGE, f"can't find '__main__' module in {target!r}")
    try:
        with io.open_code(os.path.abspath(target)) as file:
            if pkgutil.get_importer(target) is not None or pkgutil.read_code(file) is not None:
                return None  # an archive, or a .pyc
            file.seek(0)
            source = file.read()
    except OSError as error:
        return BAD_USAGE, f"can't open file {target!r}: {error.strerror or error}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each task will show them
            compile(source, os.path.abspath(target), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return 1, "".join(traceback.format_exception_only(error)).rstrip()
    return None


def leave_own_folder() -> None:
    """Remove this program's own folder from `sys.path`; the tasks put the script's folder there.

    With ``python -m`` it is the working directory, with the installed script the script's folder.
    """
    own = {"", existing_folder(), os.path.dirname(os.path.realpath(sys.argv[0]))}
    if sys.flags.safe_path or not sys.path or sys.path[0] not in own:
        return
    folder = os.path.abspath(sys.path.pop(0))
    if os.path.dirname(os.path.dirname(OUR_FOLDER)) == folder:
        sys.path.append(folder)  # a checkout, last on the path: the tasks need tfmagic


class ScriptRun:
    """One run, from its start to its summary. All methods but `_rules` run on the main thread."""

    def __init__(self, args: argparse.Namespace, signals: Signals, outlets: tuple[Outlet, Outlet]):
        self._args, self._signals, self._outlets = args, signals, outlets
        options = given_options(args, args.parser)
        asked = Cluster(**options.values)
        assert isinstance(asked.shape, ClusterShape)  # always, of a command line
        self._shape, self._restarts = asked.shape, asked.task_settings.auto_restart
        if args.no_chief:
            self._shape = replace(asked.shape, chief=False, adds_chief=False)
        self._reason = StopReason.TASKS_ENDED
        self._kill_at = float("inf")
        self._pass_on_at: float | None = None  # when the tasks without a SIGTERM get one
        self._handled = 0  # number of signals
        self._reported = 0  # number of restarts
        if sys.stderr.isatty():
            say(f"starting {self._shape}")
        task_settings = replace(asked.task_settings, purpose="script", auto_restart=0)  # `_rules` has it
        target, is_module = args.target, args.is_module
        program = Program(lambda: again(target, is_module), target=target, is_module=is_module)
        for text in features.remarks(program, {**os.environ, **task_settings.env}, True, set()):
            say(text)
        task_settings = features.adapt(program, task_settings, options.values.get("keras"))
        name = name_of(args.target, args.is_module)
        self._one_shot = OneShotTasks(self._shape, task_settings, self._rules, name=name)

    def run(self, streams: tuple[TextIO, TextIO]) -> int:
        """Start the tasks, wait for them, and print the summary. Return the exit code.

        Args:
            streams: Where the output of the tasks goes.
        """
        one_shot, run, tasks = self._one_shot, self._one_shot.cluster.run, self._shape.tasks
        call: Call = (run_script, (self._args.target, self._args.argv, self._args.is_module), {})
        try:
            calls: Mapping[TaskId, Call] = dict.fromkeys(tasks, call)
            for half in halves("scripts"):
                calls = half.change_calls(self._args, calls)
            if self._args.log_dir:
                put_logs(run, tasks, Path(self._args.log_dir))
            with self._signals.raising():
                one_shot.begin(calls)
        except BaseException:
            one_shot.close()
            raise
        printer = None if self._args.quiet else Printer(run, tasks, streams)
        began, is_broken, hints = time.monotonic(), False, CellHints(run, None, lambda: True)
        while not one_shot.wait(_POLL_S):
            self._handle_signals()
            if is_broken and self._reason is StopReason.TASKS_ENDED:
                self._stop(StopReason.BROKEN_PIPE)
            # Ctrl-C ends the reader, too: the signal, sent before, is handled before the next look
            is_broken = printer is not None and printer.broken
            self._check_time(began)
            self._end_servers()
            self._report_restarts()
            for hint in hints.due():
                say(hint.note)
        return self._finish(printer, time.monotonic() - began)

    def _rules(self) -> Rules:
        """Return the rules as they are now. Called on the thread "tfmagic-one-shot"."""
        is_running = self._reason is StopReason.TASKS_ENDED
        return Rules(
            auto_restart=self._restarts if is_running else 0,
            together=not self._shape.ps,  # collectives are made again by all tasks or by none
            watched_since=0.0 if is_running and not self._args.keep_going else None,
            failure_grace_s=self._args.grace,
        )

    # -- ending it --

    def _handle_signals(self) -> None:
        for number in self._signals.received[self._handled :]:
            self._handled += 1
            if self._reason is StopReason.TASKS_ENDED:
                self._stop(self._signals.reason)
            elif self._reason is StopReason.BROKEN_PIPE and self._handled == 1:  # perhaps of the same Ctrl-C
                left_s = max(self._kill_at - time.monotonic(), 0)
                say(f"the tasks end already; they have {left_s:.0f} s, or until the next signal")
            elif not self._signals.is_echo(number, self._handled):
                self._end(self._reason, signal.SIGKILL)
        self._pass_on()

    def _stop(self, reason: StopReason) -> None:
        """Ask the tasks to end, and give them time to save."""
        grace_s = self._args.term_grace
        self._kill_at = time.monotonic() + grace_s
        if reason is StopReason.INTERRUPTED:
            self._end(reason, signal.SIGINT)
            how = "KeyboardInterrupt in every task; they"
        else:
            self._end(reason, signal.SIGTERM, (self._shape.leader,))
            self._pass_on_at = time.monotonic() + grace_s / 2
            how = "SIGTERM is passed on; the tasks"
            if reason is not StopReason.TERMINATED:
                how = f"{signal.Signals(reason.value - SIGNALLED).name}: the tasks get SIGTERM, and"
        say(f"{how} have {grace_s:g} s, or until the next signal")

    def _pass_on(self) -> None:
        """Send SIGTERM to the other tasks if they still run some time after the leader got it.

        TensorFlow's PreemptionCheckpointHandler lets all tasks save at one step when one of them gets the
        signal. It hangs when two get it at once (2.21), since each of them then wants to choose the step.
        """
        if self._pass_on_at is None:
            return
        leader = self._known()[self._shape.leader]
        due = self._pass_on_at
        if leader.end is not None:
            has_handled = leader.exit_code != -signal.SIGTERM
            due = min(due, leader.ended_at + _FOLLOW_S * has_handled)
        if time.monotonic() < due:
            return
        self._pass_on_at = None
        others = [task for task in self._shape.tasks if task != self._shape.leader]
        self._one_shot.signal(others, signal.SIGTERM, dismiss=True)

    def _end(self, reason: StopReason, number: int, tasks: Sequence[TaskId] | None = None) -> None:
        """Signal tasks, by default all, to end the run. The first reason is kept."""
        if self._reason is StopReason.TASKS_ENDED:
            self._reason = reason
        self._one_shot.signal(tasks or self._shape.tasks, number, dismiss=True)

    def _check_time(self, began: float) -> None:
        now, timeout_s = time.monotonic(), self._args.timeout
        is_late = timeout_s is not None and now - began >= timeout_s
        if now >= self._kill_at:
            self._end(self._reason, signal.SIGKILL)
        elif is_late and self._reason is StopReason.TASKS_ENDED:
            running = [name for name, task in self._known().items() if task.end is None]
            cluster = self._one_shot.cluster
            taken = stacks.take_stacks(cluster.supervisor, cluster.run, running)
            if taken:
                say(f"the time is up; where the tasks were:\n{group_stacks(taken)}")
            self._end(StopReason.TIMEOUT, signal.SIGKILL)

    def _end_servers(self) -> None:
        """End the tasks that serve for ever, once those that used them have ended.

        These are ps and worker tasks, which the chief uses, or without a chief the ps tasks alone.
        """
        if not self._shape.ps:
            return
        known = self._known()
        users = [task for t, task in known.items() if t in self._shape.cell_tasks]
        if any(task.end is None for task in users):
            return
        if self._reason is StopReason.TASKS_ENDED and any(task.exit_code for task in users):
            return
        kinds = ("ps", "worker") if self._shape.chief else ("ps",)
        serving = [t for t, task in known.items() if t.type in kinds and task.end is None]
        is_late = time.monotonic() - max(task.ended_at for task in users) > _SERVER_S
        if not is_late:  # a second SIGTERM would break the clean-up that the first one began
            serving = [task for task in serving if not known[task].terminated]
        self._one_shot.signal(serving, signal.SIGKILL if is_late else signal.SIGTERM, dismiss=True)

    # -- reporting --

    def _report_restarts(self) -> None:
        for former in self._one_shot.restarted[self._reported :]:
            self._reported += 1
            failed = {
                task: seen.end for task, seen in former.items() if not seen.terminated and seen.exit_code
            }
            why = "; ".join(f"{task} {describe_end(end)}" for task, end in failed.items() if end is not None)
            number = 1 + max(seen.restarts for seen in former.values())
            names = ", ".join(map(str, former))
            say(f"{why or 'a task failed'}: new processes for {names} (restart {number} of {self._restarts})")

    def _known(self) -> dict[TaskId, OneShotTask]:
        return dict(self._one_shot.known)

    def _finish(self, printer: Printer | None, seconds: float) -> int:
        self._report_restarts()  # the tasks can have ended since the last look
        is_shown = printer is None or self._drain(printer)
        self._one_shot.close()
        code = self._report(printer, seconds)
        if not self._drain(None) or not is_shown:
            os._exit(code)  # as above
        return code

    def _report(self, printer: Printer | None, seconds: float) -> int:
        """Print how the run has ended. Return the exit code."""
        if self._one_shot.crashed is not None:
            lines = traceback.format_exception(self._one_shot.crashed)
            say(f"{''.join(lines)}the run was ended by a failure of tfmagic itself; please report it")
            return StopReason.NOT_STARTED.value
        if printer is None:
            for task in failed_tasks(self._one_shot):
                for line in log_lines(self._one_shot.cluster.run.log_path(task), task):
                    show(line, self._outlets[0])
                    if self._outlets[0].waiting > _MOST_LINES and not self._drain(None):
                        break
        summary = summarize(self._one_shot, self._reason, self._args.timeout or seconds)
        show(format_summary(summary), sys.stderr)
        run = self._one_shot.cluster.run
        for hint in features.find_hints(self._one_shot.reports):
            append_hint(run, 0, hint)
        for hint in read_hints(run):
            say(hint.note)
        if self._args.json:
            show(f"{as_json(report_run(self._one_shot, summary))}\n", self._outlets[0])
        return summary.code

    def _drain(self, printer: Printer | None) -> bool:
        """Wait until the output of the tasks is shown, by a printer, or else our own; return whether it is.

        Another Ctrl-C ends the wait: perhaps the reader has stopped reading. A run that was stopped waits for
        such a reader no longer than for the tasks.
        """
        if printer is not None:
            printer.finish()
        writers: Sequence[Printer | Outlet] = self._outlets if printer is None else (printer,)
        moved_at = time.monotonic()
        done, give_up_at = -1, min(self._kill_at, moved_at + self._args.term_grace)
        while not all(writer.is_empty for writer in writers):
            time.sleep(_DRAIN_S)
            if len(self._signals.received) > self._handled:
                os._exit(self._signals.reason.value)  # a thread can hold the stream for ever
            now, before = time.monotonic(), done
            done = sum(writer.done for writer in writers)
            moved_at = now if done != before else moved_at
            if self._reason is not StopReason.TASKS_ENDED and now >= max(give_up_at, moved_at + _READER_S):
                return False
        if printer is not None and printer.broken and self._reason is StopReason.TASKS_ENDED:
            self._reason = StopReason.BROKEN_PIPE
        return True


def name_of(target: str, is_module: bool) -> str:
    """Return the name of the run, from the script or the last part of the module."""
    name = target.rpartition(".")[2] if is_module else Path(target).stem
    return re.sub(r"[^\w-]+", "_", name) or "script"


def put_logs(run: RunFolder, tasks: Sequence[TaskId], folder: Path) -> None:
    """Let the tasks write their logs into the user's folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run.put_logs(folder.absolute())
        for task in tasks:
            os.close(files.open_regular(run.log_path(task), os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    except OSError as error:
        raise LaunchError(f"--log-dir {folder} cannot be written ({error.strerror or error})") from error
