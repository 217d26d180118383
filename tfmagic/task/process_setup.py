"""Set up a task process from its boot message: environment, folder, streams, signals and stacks."""

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import threading

from tfmagic.protocol import module_origins
from tfmagic.protocol.commands import TaskBoot
from tfmagic.runs.folder import STDERR, attempt_mark
from tfmagic.system import advice, files, memory, process_options
from tfmagic.task import import_conditions, streams


def prepare(boot: TaskBoot) -> None:
    """Set environment (but TF_CONFIG), folder, streams and signals, before any user code runs."""
    memory.be_killed_first()
    process_options.obey(boot.options)
    os.environ.clear()
    os.environ.update({**import_conditions.set_by_imports, **boot.environ})
    advice.set_front_end(boot.front_end, boot.cluster)
    sys.path[:] = boot.sys_path
    module_origins.install(boot.origins)
    sys.argv = [""]
    os.chdir(boot.cwd)
    streams.attach_streams(os.path.splitext(boot.stacks_path)[0] + STDERR)
    open_stacks(boot)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.register_at_fork(before=_hold_sigterm, after_in_parent=_pass_sigterm, after_in_child=_reset_sigterm)
    gc.enable()
    multiprocessing.current_process().authkey = boot.authkey
    if "numpy" in sys.modules:  # a fork shares the generator's state with its siblings
        sys.modules["numpy"].random.seed()
    if "matplotlib" in sys.modules and "MPLBACKEND" in os.environ:  # it has read the launcher's
        sys.modules["matplotlib"].rcParams["backend"] = os.environ["MPLBACKEND"]


_held = threading.local()


def _hold_sigterm() -> None:
    """Hold SIGTERM back until a process that the program forks has its own handler."""
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _pass_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, getattr(_held, "mask", ()))


def _reset_sigterm() -> None:
    """Give SIGTERM the handler that Python knows, in a process that the program has forked.

    A strategy sets one in C++, which notes the signal for a thread of TensorFlow's, and a fork has no such
    thread. So ``Process.terminate()`` did nothing, and the end of a pool waited for its processes for ever.
    """
    handler = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)
    _pass_sigterm()


def open_stacks(boot: TaskBoot) -> None:
    """Let stacks be written to the file of this task, when it crashes or gets SIGUSR1."""
    stacks = files.open_to_append(boot.stacks_path)
    os.write(stacks, f"{attempt_mark(boot.attempt)}\n".encode())
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
