"""Namespaces of Linux (namespaces(7)): networks, host names and mounts that only some processes see.

A process without root first makes a user namespace, in which it may make the others. It keeps its user id
there. What enters one gives the rights over it back: a program must find the files that it may not read as
unreadable as before.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from tfmagic.system.processes import call_libc

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_CAPABILITY_VERSION_3 = 0x20080522
_HOSTS_FILE = b"/etc/hosts"
_SETTINGS = (  # (setting, the value that forbids, one that allows)
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
    ("user.max_net_namespaces", "0", "10000"),
)  # fmt: skip


def enter_own_network() -> None:
    """Move this process into a network namespace of its own, over which it has all rights.

    Raise OSError where the machine does not allow it; see `explain_refusal`.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        call_libc("unshare", _CLONE_NEWNET)
    except PermissionError:
        call_libc("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
        for name, text in maps.items():
            Path(f"/proc/self/{name}").write_text(text)


def start_loopback() -> None:
    """Start the loopback interface of this process' network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def enter_new_host(name: str) -> None:
    """Move this process into a further network namespace, and one with this host name."""
    call_libc("unshare", _CLONE_NEWNET | _CLONE_NEWUTS)
    encoded = name.encode()
    call_libc("sethostname", encoded, len(encoded))


def open_own(names: Sequence[str]) -> list[int]:
    """Return descriptors of this process' namespaces of these kinds, such as ``net``."""
    return [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]


def enter(fds: Sequence[int], hosts_file: str = "") -> None:
    """Move this process into these namespaces, a user namespace first. It needs to have one thread.

    It and its children see `hosts_file` as /etc/hosts, if the system allows it.
    """
    for fd in fds:
        call_libc("setns", fd, 0)
    if hosts_file:
        with contextlib.suppress(OSError):  # names of hosts are then not known, addresses are
            call_libc("unshare", _CLONE_NEWNS)
            call_libc("mount", None, b"/", None, _MS_REC | _MS_SLAVE, None)
            call_libc("mount", hosts_file.encode(), _HOSTS_FILE, None, _MS_BIND, None)


def drop_rights() -> None:
    """Give up the rights over the user namespace of this process; root keeps those that it has."""
    if os.geteuid() != 0:
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        call_libc("capset", header, (ctypes.c_uint32 * 6)())


def explain_refusal(error: OSError, settings: Path = Path("/proc/sys")) -> str:
    """Return why the system refuses namespaces, and the line that allows them; "" for another error."""
    if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSPC):
        return ""
    for name, forbids, allows in _SETTINGS:
        with contextlib.suppress(OSError):
            if (settings / name.replace(".", "/")).read_text().strip() == forbids:
                line = f"sysctl -w {name}={allows}"
                return f"this machine forbids network namespaces ({error}); as root, this allows them: {line}"
    return (
        f"this machine forbids network namespaces ({error}); in a container, its options allow them: "
        "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    )
