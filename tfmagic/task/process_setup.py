"""Set up a task process from its boot message: environment, folder, streams, signals and stacks."""

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys

from tfmagic.protocol import module_origins
from tfmagic.protocol.commands import TaskBoot
from tfmagic.runs.folder import STDERR, attempt_mark
from tfmagic.system import advice, files, memory
from tfmagic.task import streams


def prepare(boot: TaskBoot) -> None:
    """Set environment, folder, streams and signals, before any user code runs."""
    memory.be_killed_first()
    os.environ.clear()
    os.environ.update(boot.environ)
    os.environ["TF_CONFIG"] = boot.tf_config
    advice.set_front_end(boot.front_end, boot.cluster)
    sys.path[:] = boot.sys_path
    module_origins.install(boot.origins)
    sys.argv = [""]
    os.chdir(boot.cwd)
    streams.attach_streams(os.path.splitext(boot.stacks_path)[0] + STDERR)
    open_stacks(boot)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.enable()
    multiprocessing.current_process().authkey = boot.authkey
    if "numpy" in sys.modules:  # a fork shares the generator's state with its siblings
        sys.modules["numpy"].random.seed()
    if "matplotlib" in sys.modules and "MPLBACKEND" in os.environ:  # it has read the launcher's
        sys.modules["matplotlib"].rcParams["backend"] = os.environ["MPLBACKEND"]


def open_stacks(boot: TaskBoot) -> None:
    """Let stacks be written to the file of this task, when it crashes or gets SIGUSR1."""
    stacks = files.open_to_append(boot.stacks_path)
    os.write(stacks, f"{attempt_mark(boot.attempt)}\n".encode())
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
