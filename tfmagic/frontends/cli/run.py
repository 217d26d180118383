"""``tfmagic run``: a script on every task of a cluster, each in a process that ends with it.

    main thread         starts the tasks, then waits: signals, the timeout, servers that nobody needs any more
    "tfmagic-errands"   ends and restarts tasks by the rules: see `tfmagic.clusters.one_shot_tasks`
    "tfmagic-printer"   follows the logs and writes them to standard output, and ends when the tasks have

Three, since whoever reads our output may stop reading, and the rules apply all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfmagic.clusters.arguments import shape_of
from tfmagic.clusters.one_shot_tasks import Call, OneShotTasks
from tfmagic.errors import ClusterSpecError, LaunchError, TfmagicError
from tfmagic.failures import stacks
from tfmagic.failures.deaths import describe_end
from tfmagic.frontends.cli import targets
from tfmagic.frontends.cli.doctor import case_of
from tfmagic.frontends.cli.judging import failed_tasks, judge
from tfmagic.frontends.cli.parsers import BAD_USAGE
from tfmagic.frontends.cli.verdicts import Ending, summarize
from tfmagic.protocol.cluster_spec import ClusterShape, TaskId
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import log_lines
from tfmagic.supervisor.one_shot_rules import Errand, Rules
from tfmagic.task.script import run_script
from tfmagic.views.text import TextView

_LOOK_S = 0.1
_SERVER_S = 1.0  # for what a server does at its end, from SIGTERM on
_FOLLOW_S = 2.0  # for who saves at the leader's word to end, too


def main(found: argparse.Namespace) -> int:
    """Run it; the exit code."""
    complaint = targets.find_complaint(found.target, found.is_module)
    if complaint is not None:
        say(complaint[1])
        return complaint[0]
    targets.leave_own_folder()
    with Signals() as signals:
        try:
            return ScriptRun(found, signals).run()
        except Asked:
            return signals.ending.value
        except ClusterSpecError as error:
            say(str(error))
            return BAD_USAGE
        except TfmagicError as error:
            say(str(error))
            return Ending.NOT_STARTED.value


def say(text: str) -> None:
    """Tell the user, beside the script's own output."""
    sys.stderr.write(f"tfmagic: {text}\n")
    sys.stderr.flush()


class Asked(BaseException):
    """A signal came before there was anything to pass it on to. Not an Exception: nobody is to hold it."""


class Signals:
    """SIGINT and SIGTERM of this process: counted for whoever looks. One that is ignored stays so.

    While `raising`, a signal raises `Asked`, too.
    """

    def __init__(self) -> None:
        self.taken: list[int] = []
        self._is_raising = False
        self._before: dict[int, Any] = {}

    @property
    def ending(self) -> Ending:
        """What the first signal makes of the run."""
        return Ending.INTERRUPTED if self.taken[:1] == [signal.SIGINT] else Ending.TERMINATED

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """For what takes its time, and may be left half-way."""
        if self.taken:
            raise Asked
        self._is_raising = True
        try:
            yield
        finally:
            self._is_raising = False

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: object) -> None:
        self.taken.append(number)
        if self._is_raising:
            raise Asked


class Printer:
    """The thread that writes what the tasks write.

    Attributes:
        broken: Nobody reads on.
    """

    def __init__(self, run: RunFolder, tasks: Sequence[TaskId]):
        is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        starts = [(task, 0) for task in tasks]
        self._view = TextView(run, starts, deque(), self._write, terminal=is_terminal)
        self.broken = False
        self._is_lost = False
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._serve, name="tfmagic-printer", daemon=True)
        self.thread.start()

    def finish(self) -> None:
        """All has been written that there will be. `thread` ends when it has shown that."""
        self._over.set()

    def _serve(self) -> None:
        while not self._over.wait(self._view.interval_s):
            self._view.update()
        self._view.finish(None)

    def _write(self, text: str) -> None:
        if self.broken or self._is_lost:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            self.broken = True
        except OSError as error:  # a full disk, behind a redirection: the run is worth more
            self._is_lost = True
            say(f"the output cannot be written any more ({error}); the logs of the tasks have it")


class ScriptRun:
    """One run, from its start to its verdict."""

    def __init__(self, found: argparse.Namespace, signals: Signals):
        self._found, self._signals = found, signals
        asked = shape_of(found, found.parser)
        case = case_of(asked)
        assert isinstance(case.shape, ClusterShape)  # of a command line
        self._shape, self._restarts = case.shape, asked.auto_restart or 0
        self._ending = Ending.ITSELF
        self._kill_at = float("inf")  # what is left then
        self._pass_on_at: float | None = None  # SIGTERM, to those that have not got it yet
        self._obeyed = 0  # how many signals
        self._seen: dict[TaskId, Errand] = {}
        if sys.stderr.isatty():
            say(f"starting {self._shape}")
        make = replace(case.make, purpose="script", auto_restart=0)  # by the rules, instead
        self._errands = OneShotTasks(
            self._shape, make, self._rules, name=name_of(found.target, found.is_module)
        )

    def run(self) -> int:
        """Start it, wait for it, tell how it went."""
        errands, run, tasks = self._errands, self._errands.life.run, self._shape.tasks
        call: Call = (run_script, (self._found.target, self._found.argv, self._found.is_module), {})
        try:
            if self._found.log_dir:
                put_logs(run, tasks, Path(self._found.log_dir))
            with self._signals.raising():
                errands.begin(dict.fromkeys(tasks, call))
        except BaseException:
            errands.close()
            raise
        printer = None if self._found.quiet else Printer(run, tasks)
        began = time.monotonic()
        while not errands.wait(_LOOK_S):
            self._obey_signals()
            self._mind_the_time(began)
            self._end_servers()
            self._tell_restarts()
            if printer is not None and printer.broken:
                self._end(Ending.BROKEN_PIPE, signal.SIGKILL)
        return self._finish(printer, time.monotonic() - began)

    def _rules(self) -> Rules:
        """On the errands' thread."""
        is_watched = self._ending is Ending.ITSELF and not self._found.keep_going
        return Rules(
            auto_restart=self._restarts if self._ending is Ending.ITSELF else 0,
            together=not self._shape.ps,  # collectives are made anew by all or by none
            watched_since=0.0 if is_watched else None,
            failure_grace_s=self._found.grace,
        )

    # -- ending it --

    def _obey_signals(self) -> None:
        for number in self._signals.taken[self._obeyed :]:
            self._obeyed += 1
            if self._ending is not Ending.ITSELF:
                self._end(self._ending, signal.SIGKILL)
                continue
            grace_s = self._found.term_grace
            self._kill_at = time.monotonic() + grace_s
            if number == signal.SIGINT:
                self._end(self._signals.ending, number)
                say(f"KeyboardInterrupt in every task; they have {grace_s:g} s, or until the next signal")
            else:
                self._end(self._signals.ending, number, (self._shape.leader,))
                self._pass_on_at = time.monotonic() + grace_s / 2
                say(f"SIGTERM is passed on; the tasks have {grace_s:g} s, or until the next signal")
        self._pass_on()

    def _pass_on(self) -> None:
        """SIGTERM for the others once the leader has ended and they have not, or it takes its time.

        TensorFlow's PreemptionCheckpointHandler lets all save at one step when one of them is told, and
        hangs when two are told at once (2.21): each wants to be the one who says at which.
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
        self._errands.signal(others, signal.SIGTERM, dismiss=True)

    def _end(self, ending: Ending, number: int, tasks: Sequence[TaskId] | None = None) -> None:
        """Let tasks end, by default all; why is what was said first."""
        if self._ending is Ending.ITSELF:
            self._ending = ending
        self._errands.signal(tasks or self._shape.tasks, number, dismiss=True)

    def _mind_the_time(self, began: float) -> None:
        now, timeout_s = time.monotonic(), self._found.timeout
        if now >= self._kill_at:
            self._end(self._ending, signal.SIGKILL)
        elif timeout_s is not None and now - began >= timeout_s and self._ending is Ending.ITSELF:
            running = [task for task, errand in self._known().items() if errand.end is None]
            life = self._errands.life
            taken = stacks.take_stacks(life.supervisor, life.run, running)
            if taken:
                say(f"the time is up; where the tasks were:\n{stacks.group_stacks(taken)}")
            self._end(Ending.TIMEOUT, signal.SIGKILL)

    def _end_servers(self) -> None:
        """End ps and worker tasks once the chief that used them has ended: they serve for ever."""
        if not self._shape.ps:
            return
        known = self._known()
        chief = known[TaskId("chief", 0)]
        if chief.end is None or (chief.exit_code and self._ending is Ending.ITSELF):
            return
        serving = [t for t, errand in known.items() if t.type in ("ps", "worker") and errand.end is None]
        is_late = time.monotonic() - chief.ended_at > _SERVER_S
        if not is_late:  # a second SIGTERM would come into the clean-up that the first one began
            serving = [task for task in serving if not known[task].terminated]
        self._errands.signal(serving, signal.SIGKILL if is_late else signal.SIGTERM, dismiss=True)

    # -- telling --

    def _tell_restarts(self) -> None:
        known = self._known()
        again = [task for task, seen in self._seen.items() if known[task].restarts > seen.restarts]
        failed = [task for task in again if not self._seen[task].terminated and self._seen[task].exit_code]
        if again:
            why = "; ".join(f"{t} {describe_end(end)}" for t in failed if (end := self._seen[t].end))
            which = f"restart {known[again[0]].restarts} of {self._restarts}"
            say(f"{why or 'a task failed'}: new processes for {', '.join(map(str, again))} ({which})")
        self._seen = known

    def _known(self) -> dict[TaskId, Errand]:
        return dict(self._errands.known)

    def _finish(self, printer: Printer | None, seconds: float) -> int:
        if printer is not None:
            self._drain(printer)
        self._errands.close()
        if self._errands.crashed is not None:
            traceback.print_exception(self._errands.crashed)
            say("the run was ended by a failure of tfmagic itself; please report it")
            return Ending.NOT_STARTED.value
        if printer is None:
            for task in failed_tasks(self._errands):
                sys.stdout.writelines(log_lines(self._errands.life.run.log_path(task), task))
            sys.stdout.flush()
        verdict = judge(self._errands, self._ending, self._found.timeout or seconds)
        sys.stderr.write(summarize(verdict))
        return verdict.code

    def _drain(self, printer: Printer) -> None:
        """Wait until all is shown; who presses Ctrl-C meanwhile has seen enough, or nobody reads."""
        printer.finish()
        while printer.thread.is_alive():
            printer.thread.join(_LOOK_S)
            if len(self._signals.taken) > self._obeyed:
                os._exit(self._signals.ending.value)  # the thread may hold the stream for ever
        if printer.broken and self._ending is Ending.ITSELF:
            self._ending = Ending.BROKEN_PIPE


def name_of(target: str, is_module: bool) -> str:
    """What the run is called after."""
    name = target.rpartition(".")[2] if is_module else Path(target).stem
    return re.sub(r"[^\w-]+", "_", name) or "script"


def put_logs(run: RunFolder, tasks: Sequence[TaskId], folder: Path) -> None:
    """Let the logs be written into a folder of the user's; the run folder has links to them.

    Raises:
        LaunchError: That cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for task in tasks:
            path = folder.absolute() / f"{task}.log"
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
            run.log_path(task).symlink_to(path)
    except OSError as error:
        raise LaunchError(f"--log-dir {folder} cannot be written ({error.strerror or error})") from error
