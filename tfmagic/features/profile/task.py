"""Trace a cell with TensorFlow's profiler: ``%%tfcluster --profile``.

    start ── the user's code ── end: *.xplane.pb in the run folder ── trace_reader ──→ TaskProfile
               └─ the limit has passed: cut

The traces of a cell lie where TensorBoard's profile plugin looks for them:
``<run>/profile/plugins/profile/<cell>/<task>.xplane.pb``.

TensorFlow (2.21) has one profiler a process. It keeps every event in memory until its end, and has no limit
of its own: so a trace is cut after some seconds, or when the process has grown too much. A program that
starts the profiler itself gets it: tfmagic's trace ends without a result, and the report says why. Nothing
here raises: the cell's result is kept without a profile.
"""

import contextlib
import ctypes
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from tfmagic.features.profile.records import FOLDER, Asked, TaskProfile, Trace, decode_asked, encode
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.system import symbol_interposing
from tfmagic.system.patches import PatchTable
from tfmagic.task.cell_parts import Attempt, CellPart
from tfmagic.task.tensorflow import loopback_only
from tfmagic.task.tensorflow.patch_rows import tensorflow_row

_NEW_ACTIVITY_ID = "_ZN3tsl8profiler15TraceMeRecorder13NewActivityIdEv"
_LIBRARY = "libtensorflow_framework.so.2"
_OWN_PROFILER = (
    "the cell uses TensorFlow's profiler itself (tf.profiler, tf.summary.trace_on, or the profile_batch of "
    "Keras' TensorBoard callback), and a process has only one; leave --profile out, or that"
)
_RUNS_ALREADY = (
    "TensorFlow's profiler runs there already, since an earlier cell; end it with "
    "tf.profiler.experimental.stop()"
)
_LOOK_S = 0.25
PROFILES, WHOLE_TRACES = "profiles", "whole traces"
_GROWTH_BYTES = 1 << 30


class _Trace:
    """The trace of one cell."""

    def __init__(self, cell: RunCell, asked: Asked, boot: TaskBoot):
        from tensorflow.python.profiler import profiler_v2

        self._module, self._boot, self._asked = profiler_v2, boot, asked
        self._session: Any = None
        self._problem = ""
        self._is_cut = False
        self._lock = threading.Lock()  # of the session: the thread below can end it
        self._over = threading.Event()
        self._whole_events = _WholeEvents()
        folder = Path(boot.stacks_path).parent / FOLDER
        name = f"cell-{cell.prompt}" if cell.prompt else f"call-{cell.group or cell.cell}"
        self._path = folder / "plugins" / "profile" / name / f"{boot.task.name}.xplane.pb"
        self._scratch = folder / f"{boot.task.name}-{boot.attempt}"

    def begin(self) -> None:
        """Begin to trace. Must be followed by `end`."""
        if missing := _table().missing(PROFILES):
            self._problem = f"this TensorFlow's profiler is not as tfmagic knows it ({missing})"
            return
        module = self._module
        if module._profiler is not None:
            self._problem = _RUNS_ALREADY
            return
        try:
            self._whole_events.begin()
            self._session = module._pywrap_profiler.ProfilerSession()
            self._session.start(str(self._scratch), {})  # 2.21 ignores all options
        except Exception as error:
            self._session, self._problem = None, f"TensorFlow's profiler did not start: {error}"
            self._whole_events.end()
            return
        module._pywrap_profiler = _Giving(module._pywrap_profiler, self._give_way)
        threading.Thread(target=self._watch, name="tfmagic-profile", daemon=True).start()

    def end(self) -> TaskProfile:
        """End the trace, and return what it shows."""
        self._over.set()
        self._stop(is_cut=False)
        module = self._module
        if isinstance(module._pywrap_profiler, _Giving):
            module._pywrap_profiler = module._pywrap_profiler.real
        try:
            return self._read()
        except Exception as error:
            return TaskProfile(problem=f"its trace cannot be read: {type(error).__name__}: {error}")
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _read(self) -> TaskProfile:
        from tfmagic.features.profile import trace_reader

        if self._problem:
            return TaskProfile(problem=self._problem)
        written = next(self._scratch.rglob("*.xplane.pb"))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(written, self._path)
        return trace_reader.read_trace(self._path, self._is_cut)

    def _stop(self, is_cut: bool) -> None:
        with self._lock:
            session, self._session = self._session, None
            if session is None:
                return
            self._is_cut = is_cut
            try:
                session.export_to_tb()
            except Exception as error:
                self._problem = f"its trace could not be written: {error}"
            del session  # ends it, if it could not be written
            self._whole_events.end()

    def _give_way(self) -> None:
        """Leave the profiler to the user's code."""
        with self._lock:
            if self._session is not None:
                self._session, self._problem = None, _OWN_PROFILER
                self._whole_events.end()

    def _watch(self) -> None:
        """Cut the trace at its limits."""
        deadline, limit_bytes = time.monotonic() + self._asked.seconds, _memory_bytes() + _GROWTH_BYTES
        while not self._over.wait(min(_LOOK_S, max(deadline - time.monotonic(), 0))):
            if time.monotonic() >= deadline or _memory_bytes() > limit_bytes:
                self._stop(is_cut=True)
                return


class _Giving:
    """TensorFlow's module of profiler sessions: a further session ends the one of tfmagic first."""

    def __init__(self, real: Any, give_way: Any):
        self.real, self._give_way = real, give_way

    def ProfilerSession(self) -> Any:  # as TensorFlow names it
        self._give_way()
        return self.real.ProfilerSession()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class _WholeEvents:
    """Gives no numbers to events, so that none can begin in one thread and end in another.

    TensorFlow 2.21 joins both halves at the end of a trace through pointers into a list whose copy it keeps
    (TraceMeRecorder::Consume). One in six traces of a training with collectives ended the process so, also
    without tfmagic. Without a number such events are not recorded; what is lost besides are the arrows
    between threads in TensorBoard. TensorFlow's libraries call the function that numbers events through
    slots, in which another function of the C library is meanwhile: a thread that has one or the other
    goes on.
    """

    def __init__(self) -> None:
        self._slots: list[int] = []
        self._function: Any = None

    def begin(self) -> None:
        """Give no numbers from now on, if this TensorFlow has such slots."""
        if not _table().fits(WHOLE_TRACES):
            return
        self._function, folders = _numbering(), loopback_only.tensorflow_folders()
        with contextlib.suppress(OSError):  # the system does not allow it
            self._slots = symbol_interposing.interpose(folders, self._function, _zero())

    def end(self) -> None:
        """Give numbers again."""
        for slot in self._slots:
            symbol_interposing.write_word(slot, symbol_interposing.address_of(self._function))
        self._slots = []


def _numbering() -> Any:
    """Return the function of TensorFlow that numbers events."""
    folder = loopback_only.tensorflow_folders()[0]
    return getattr(ctypes.CDLL(os.path.join(folder, _LIBRARY)), _NEW_ACTIVITY_ID)


def _zero() -> Any:
    """Return a function of the C library that returns 0, since nothing sets what it reads."""
    zero = ctypes.CDLL(None).pthread_getconcurrency
    zero.restype = ctypes.c_int64
    return zero


def name_by_task(boot: TaskBoot) -> None:
    """Name the traces that a program makes itself by the task instead of the host, as tfmagic names its own.

    TensorFlow's names are ``plugins/profile/<second>/<host>.xplane.pb``, so the tasks of a machine write one
    file. Here the trace is written beside that folder, and renamed into it.
    """
    if len(boot.shape_tasks) < 2:
        return
    from tensorflow.python.profiler.profiler_v2 import _pywrap_profiler as module

    class ProfilerSession(module.ProfilerSession):  # TensorFlow is untyped
        """A session of TensorFlow's profiler, for `tf.profiler`, `tf.summary` and callbacks of Keras."""

        def start(self, logdir: Any, options: Any) -> None:
            self._base, self._written = os.fspath(logdir), ""
            if self._base and "://" not in self._base:
                self._written = os.path.join(self._base, f".{boot.task.name}-{os.getpid()}")
            super().start(self._written or logdir, options)

        def export_to_tb(self) -> None:
            super().export_to_tb()
            if not self._written:
                return
            for path in [path for path in Path(self._written).rglob("*") if path.is_file()]:
                folder = self._base / path.parent.relative_to(self._written)
                folder.mkdir(parents=True, exist_ok=True)
                os.replace(path, folder / f"{boot.task.name}{path.name.removeprefix(socket.gethostname())}")
            shutil.rmtree(self._written, ignore_errors=True)

    module.ProfilerSession = ProfilerSession


def missing_for_whole_traces() -> str:
    """Return why events cannot go without numbers here, or ""."""
    if not symbol_interposing.find_slots(loopback_only.tensorflow_folders(), _numbering()):
        return f"no library calls {_NEW_ACTIVITY_ID} through a slot"
    return "" if _zero()() == 0 else "pthread_getconcurrency is set"


def _memory_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


class Tracing(CellPart):
    """The traces of a task, one at a time."""

    def __init__(self, boot: TaskBoot):
        self._boot = boot
        self._trace: _Trace | None = None

    def begin(self, cell: RunCell) -> None:
        """Begin to trace, if the cell is the beginning of a trace."""
        asked = _asked_by(cell)
        if asked is not None and asked.part is not Trace.END:
            if self._trace is not None:  # of a cell whose kernel has not ended it
                self._trace.end()
            self._trace = _Trace(cell, asked, self._boot)
            self._trace.begin()

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """Give the attempt what the trace shows, if the cell is the end of one."""
        asked = _asked_by(cell)
        if self._trace is not None and asked is not None and asked.part is not Trace.BEGIN:
            trace, self._trace = self._trace, None
            attempt.extras["profile"] = encode(trace.end())


def _asked_by(cell: RunCell) -> Asked | None:
    asked = cell.extras.get("profile")
    return decode_asked(asked) if asked else None


def _table() -> PatchTable:
    from tfmagic.task.tensorflow import patches  # which has the rows below

    return patches.TABLE


def make(boot: TaskBoot) -> CellPart:
    """Return the part of a task."""
    return Tracing(boot)


PATCHES = (
    tensorflow_row(
        PROFILES,
        (
            "tensorflow.python.profiler.profiler_v2:_profiler",
            "tensorflow.python.profiler.profiler_v2:start uses _pywrap_profiler, ProfilerSession",
            "tensorflow.python.profiler.profiler_v2:_pywrap_profiler.ProfilerSession.export_to_tb()",
            "tensorflow.tsl.profiler.protobuf.xplane_pb2:XSpace",
        ),
        "--profile traces a cell, and gives way to a profiler of the cell's own",
        "--profile shows no profile",
    ),
    tensorflow_row(
        WHOLE_TRACES,
        (),
        "TensorFlow's fault at the end of a trace with collectives ends the process",
        "a task that is traced with --profile can end by SIGSEGV or SIGABRT at the end of a cell with "
        "collectives, by a fault of TensorFlow",
        needs=(PROFILES,),
        probe=f"{__name__}:missing_for_whole_traces",
    ),
    tensorflow_row(
        "a name for each task's profile",
        ("tensorflow.python.profiler.profiler_v2:_pywrap_profiler.ProfilerSession.export_to_tb()",),
        "traces of one second have one file",
        "tasks that use tf.profiler at one moment need a folder each",
        install=f"{__name__}:name_by_task(boot)",
        only="strategies",
    ),
)
