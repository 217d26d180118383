"""Runs a program in this interpreter as it finds itself on Windows or macOS, as far as Linux can show that.

    python elsewhere.py win32 "import tfmagic"

`sys.platform` has the other system's name, modules that it does not have cannot be imported, and attributes of
`os`, `signal`, `select` and `socket` are gone. What Python itself and other packages do there is not tried: they
are imported before. So are paths, which stay those of Linux.
"""

import multiprocessing.managers  # noqa: F401
import os
import select
import shutil
import signal
import socket
import sys

import IPython.core.interactiveshell
import pytest  # noqa: F401

MODULES = {
    "win32": "_posixshmem _posixsubprocess crypt curses fcntl grp nis posix pty pwd readline resource spwd syslog "
    "termios tty",
    "darwin": "spwd",
}
ATTRIBUTES = {
    "win32": {
        os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK P_PIDFD RTLD_GLOBAL RTLD_NOW WEXITSTATUS WIFEXITED "
        "WIFSIGNALED WNOHANG WTERMSIG chown copy_file_range eventfd fchdir fchmod fchown fork forkpty get_blocking "
        "getegid geteuid getgid getgroups getloadavg getpgid getpgrp getpriority getresuid getsid getuid getxattr "
        "killpg lchown memfd_create mkfifo mknod nice openpty pidfd_open posix_fallocate posix_spawn pread preadv "
        "pwrite pwritev register_at_fork sched_getaffinity sched_setaffinity sched_yield sendfile set_blocking "
        "setns setpgid setpriority setsid setxattr splice statvfs sysconf ttyname uname unshare wait3 wait4 waitid",
        signal: "SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 "
        "SIGWINCH SIGXCPU SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm getitimer pidfd_send_signal pthread_kill "
        "pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait sigwaitinfo",
        select: "PIPE_BUF POLLERR POLLHUP POLLIN epoll poll",
        socket: "AF_NETLINK AF_UNIX CMSG_LEN CMSG_SPACE MSG_CMSG_CLOEXEC MSG_DONTWAIT SCM_CREDENTIALS SCM_RIGHTS "
        "SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED SO_REUSEPORT recv_fds send_fds",
    },
    "darwin": {
        os: "P_PIDFD copy_file_range eventfd getresuid getxattr memfd_create pidfd_open posix_fallocate "
        "sched_getaffinity sched_setaffinity setns setxattr splice unshare",
        signal: "SIGPWR SIGRTMAX SIGRTMIN pidfd_send_signal sigtimedwait sigwaitinfo",
        select: "epoll",
        socket: "AF_NETLINK MSG_CMSG_CLOEXEC SCM_CREDENTIALS SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED",
    },
}


def move_to(system: str) -> None:
    """Make this interpreter one of another system."""
    assert not [name for name in sys.modules if name.partition(".")[0] == "tfmagic"]
    for module, names in ATTRIBUTES[system].items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.modules.update(dict.fromkeys(MODULES[system].split()))  # type: ignore[arg-type]
    shutil._USE_CP_SENDFILE = shutil._USE_CP_SENDFILE and system != "win32"  # type: ignore[attr-defined]
    sys.platform = system


if __name__ == "__main__":
    _, system, program = sys.argv
    sys.argv = ["-c"]
    shell = IPython.core.interactiveshell.InteractiveShell.instance()
    move_to(system)
    exec(program, {"shell": shell})
