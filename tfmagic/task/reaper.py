"""The reaper: a small process between the kernel and its launcher, which ends every process of a cluster.

    kernel ──→ reaper ──fork──→ launcher ──fork──→ task processes ──→ their children

The launcher becomes the parent of daemons that a task has put into sessions of their own when the task ends,
and the reaper when the launcher ends: both are subreapers. If kernel, reaper or launcher is killed, one that
is left ends all others: the reaper when the kernel or the launcher ends, the launcher when the reaper ends.
The reaper is forked before TensorFlow is imported, has one thread, and waits in one poll.
"""

import contextlib
import os
import resource
import select
import signal
from typing import NoReturn

from tfmagic.system import processes
from tfmagic.system.process_identity import Identity, identify, kill_all

_CLEANUP_S = 10.0  # for processes that end late: in a driver, on a lost disk


def split_off(kernel: int, parent: int = 0) -> int:
    """Split off the launcher; return in it, with a pidfd of the reaper. The reaper never returns.

    Args:
        kernel: A pidfd of the kernel.
        parent: The kernel's pid, if the kernel is our parent: it can have ended, and `kernel` be another
            process. 0 if a template has forked us, which ends when it wants to.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Jupyter's interrupt is for the kernel
    processes.set_parent_death_signal(signal.SIGCONT)  # if we are stopped then; see also the launcher
    if parent and os.getppid() != parent:
        os._exit(0)
    processes.become_subreaper()
    reaper = os.getpid()
    launcher = os.fork()
    if launcher != 0:
        _watch(kernel, launcher)
    processes.set_parent_death_signal(signal.SIGKILL)  # until the launcher watches the reaper's pidfd
    os.close(kernel)
    watched = os.pidfd_open(reaper)
    if os.getppid() != reaper:
        os._exit(0)
    return watched


def _watch(kernel: int, launcher: int) -> NoReturn:
    """Wait for the end of the kernel or of the launcher, end everything, and end as the launcher did."""
    launcher_fd = os.pidfd_open(launcher)
    processes.close_all_but(kernel, launcher_fd)
    poll = select.poll()
    poll.register(kernel, select.POLLIN)
    poll.register(launcher_fd, select.POLLIN)
    poll.poll()
    status = end_descendants(launcher)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # our own end shows the kernel why the launcher ended
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to be reset
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def end_descendants(watched: int = 0) -> int:
    """SIGKILL everything below this process until nothing is left; return the wait status of `watched`."""
    status = 0

    def reap_and_find() -> list[Identity] | None:
        nonlocal status
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = ended[1] if ended[0] == watched else status
        except ChildProcessError:
            return None
        return [process for pid in processes.descendants() if (process := identify(pid)) is not None]

    kill_all(reap_and_find, _CLEANUP_S)
    return status
