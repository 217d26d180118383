"""Several hosts on this machine: network namespaces with an address each, joined by a bridge. No root is needed.

    with NetworkHosts(3, private=["/dev/shm", "/tmp/ray"]) as hosts:
        server = hosts.popen(1, ["python", "server.py"])     # at 10.77.0.2
        hosts.cut(1)        # as a pulled cable: packets are dropped, nothing is refused
        hosts.join(1)
        hosts.limit(1, bits_per_s=100_000_000)

    this process ── holder: a user namespace (not for root), a network namespace with the bridge
                      ├── host 0: a network namespace with lo and eth0 = 10.77.0.1; a mount namespace
                      └── host 1 ...                       with a tmpfs of its own on each private folder

`popen` enters the namespaces of a host and executes the command there, so that the child's pid is the one we know.
Nothing outside can reach a host, and a host reaches only the others: the bridge has no other link.

Everything ends with this process, however that ends: the holder sees the end of its pipe and sends SIGKILL to all
processes in the namespaces, which are then gone. `close` does the same.

Linux forbids user namespaces in some installations; the error then names the setting.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from tfmagic.system.namespaces import explain_refusal

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_NAMESPACES = ("user", "net", "mnt")  # in this order: the first gives the right to enter the others
_ENDED_S = 20.0
_TC_H_ROOT = 0xFFFFFFFF
_TBF_BURST_BYTES = 32_000
_TBF_LATENCY = "50ms"
_ENTER = """\
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
parent, fds, folder = int(sys.argv[1]), sys.argv[2].split(","), os.getcwd()
for fd in map(int, fds):
    if libc.setns(fd, 0):
        raise OSError(ctypes.get_errno(), "setns: " + os.strerror(ctypes.get_errno()))
    os.close(fd)
libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL: with the thread that called `popen`
if os.getppid() != parent:
    os._exit(1)
os.chdir(folder)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def address_of(host: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{host + 1}"


class NetworkHosts:
    """Hosts that run until the context ends.

    Args:
        count: How many, at most 250.
        private: Folders that each host has for itself, empty at first; they must exist on this machine.

    Raises:
        OSError: This machine forbids namespaces; the message has the line that allows them.
    """

    def __init__(self, count: int, private: Sequence[str] = ("/dev/shm",)):
        self.count = count
        self._lock = threading.Lock()
        self._fds: list[list[int]] = []
        words = [sys.executable, __file__, str(count), *private]
        self._holder = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            pids = self._ask()
            self._fds = [_open_namespaces(pid) for pid in pids]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> NetworkHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command on a host; it gets SIGKILL when the calling thread ends.

        Args:
            host: The number of the host, from 0.
            command: The command and its arguments.
            **options: Those of `subprocess.Popen`.
        """
        fds = self._fds[host]
        enter = [sys.executable, "-I", "-S", "-c", _ENTER, str(os.getpid()), ",".join(map(str, fds))]
        options["pass_fds"] = [*options.get("pass_fds", ()), *fds]
        return subprocess.Popen([*enter, *command], **options)

    def pids(self, host: int) -> set[int]:
        """Return the processes of a host, those that only hold it excluded."""
        return _pids_in([os.fstat(self._fds[host][-2]).st_ino]) - self._holders()

    def cut(self, host: int) -> None:
        """Cut a host off from the others. Connections stay open, and their packets are dropped."""
        self._ask("cut", host)

    def join(self, host: int) -> None:
        """End `cut`."""
        self._ask("join", host)

    def limit(self, host: int, bits_per_s: int) -> None:
        """Limit the rate of a host's link, in each direction; 0 for no limit."""
        self._ask("limit", host, bits_per_s)

    def close(self) -> None:
        """Send SIGKILL to all processes of the hosts and remove the hosts."""
        with contextlib.suppress(OSError):
            self._holder.communicate(timeout=_ENDED_S)  # closes its standard input, which ends it
        for fd in (fd for fds in self._fds for fd in fds):
            os.close(fd)
        self._fds = []

    def _holders(self) -> set[int]:
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        return {self._holder.pid, *map(int, children.read_text().split())}

    def _ask(self, *request: object) -> Any:
        assert self._holder.stdin and self._holder.stdout
        with self._lock:
            if request:
                self._holder.stdin.write(json.dumps(request) + "\n")
                self._holder.stdin.flush()
            line = self._holder.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process that holds the hosts has ended"}
        if "error" in answer:
            raise OSError(answer["error"])
        return answer["value"]


def _open_namespaces(pid: int) -> list[int]:
    """Return descriptors of the namespaces of a process; without our own user namespace, which nobody can enter."""
    ours = os.stat("/proc/self/ns/user").st_ino
    names = [n for n in _NAMESPACES if n != "user" or os.stat(f"/proc/{pid}/ns/user").st_ino != ours]
    return [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]


def _pids_in(net_namespaces: Sequence[int]) -> set[int]:
    """Return the processes in these network namespaces, given by their inodes."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}/ns/net").st_ino in net_namespaces:
                found.add(int(name))
    return found


# ---- the holder: a process of its own, which has no threads ----

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _enter_own_namespaces() -> None:
    """Enter new namespaces, in which this process may do what follows."""
    uid, gid = os.getuid(), os.getgid()
    try:
        _call("unshare", _CLONE_NEWNET | _CLONE_NEWNS)
    except PermissionError:
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    _call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)


def _start_host(host: int, private: Sequence[str]) -> tuple[int, int]:
    """Fork a process that holds a host; return its pid and the pipe on which it waits for its interface."""
    from pyroute2 import IPRoute

    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    holder = os.getpid()
    pid = os.fork()
    if pid:
        os.close(ready_write)
        os.close(go_read)
        with open(ready_read) as file:
            if failure := file.read():
                raise OSError(failure)
        return pid, go_write
    try:
        os.close(go_write)
        _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != holder:
            os._exit(1)
        _call("unshare", _CLONE_NEWNET | _CLONE_NEWNS)
        for folder in private:
            _call("mount", b"tmpfs", folder.encode(), b"tmpfs", 0, b"mode=1777")
    except OSError as error:
        os.write(ready_write, str(error).encode())
        os._exit(1)
    os.close(ready_write)
    os.read(go_read, 1)  # eth0 is there
    with IPRoute() as ip:
        ip.link("set", index=1, state="up")  # lo
        (index,) = ip.link_lookup(ifname="eth0")
        ip.addr("add", index=index, address=address_of(host), prefixlen=24)
        ip.link("set", index=index, state="up")
    os.write(1, b"\n")
    while True:
        signal.pause()


class _Network:
    """The bridge and the links to the hosts; lives in the holder."""

    def __init__(self, count: int, private: Sequence[str]):
        from pyroute2 import IPRoute

        self._ip: Any = IPRoute()
        self._ip.link("add", ifname="hosts", kind="bridge")
        (bridge,) = self._ip.link_lookup(ifname="hosts")
        self._ip.link("set", index=bridge, state="up")
        self.pids: list[int] = []
        self._links: list[int] = []
        for host in range(count):
            pid, go = _start_host(host, private)
            peer = {"ifname": "eth0", "net_ns_fd": os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)}
            self._ip.link("add", ifname=f"host{host}", kind="veth", peer=peer)
            os.close(peer["net_ns_fd"])
            (link,) = self._ip.link_lookup(ifname=f"host{host}")
            self._ip.link("set", index=link, master=bridge, state="up")
            self.pids.append(pid)
            self._links.append(link)
            os.write(go, b"x")

    def cut(self, host: int) -> None:
        self._ip.link("set", index=self._links[host], state="down")

    def join(self, host: int) -> None:
        self._ip.link("set", index=self._links[host], state="up")

    def limit(self, host: int, bits_per_s: int) -> None:
        from pyroute2 import IPRoute

        _shape(self._ip, self._links[host], bits_per_s)  # what the host receives
        with _network_of(self.pids[host]), IPRoute() as ip:  # what it sends
            _shape(ip, ip.link_lookup(ifname="eth0")[0], bits_per_s)


def _shape(ip: Any, index: int, bits_per_s: int) -> None:
    shaped = any(found.get_attr("TCA_KIND") == "tbf" for found in ip.get_qdiscs(index=index))
    if shaped and not bits_per_s:
        ip.tc("del", index=index, parent=_TC_H_ROOT)
    if bits_per_s:
        rate = bits_per_s // 8  # pyroute2 takes bytes for a number
        ip.tc(
            "replace", "tbf", index, rate=rate, burst=max(_TBF_BURST_BYTES, rate // 100), latency=_TBF_LATENCY
        )


@contextmanager
def _network_of(pid: int) -> Iterator[None]:
    """Be in the network namespace of a process for the block."""
    ours, theirs = (os.open(f"/proc/{p}/ns/net", os.O_RDONLY) for p in ("self", pid))
    try:
        _call("setns", theirs, _CLONE_NEWNET)
        yield
        _call("setns", ours, _CLONE_NEWNET)
    finally:
        os.close(ours)
        os.close(theirs)


def _hold(count: int, private: Sequence[str]) -> NoReturn:
    """Make the hosts, answer requests until the end of standard input, then end everything in the hosts."""
    answers, ready = os.dup(1), os.pipe()
    os.dup2(ready[1], 1)  # a host writes a line to it when its interface is up
    os.close(ready[1])

    def answer(**what: Any) -> None:
        os.write(answers, (json.dumps(what) + "\n").encode())

    namespaces: list[int] = []
    try:
        _enter_own_namespaces()
        network = _Network(count, private)
        left = count
        while left:
            left -= len(os.read(ready[0], left))
        namespaces = [os.stat(f"/proc/{pid}/ns/net").st_ino for pid in network.pids]
        answer(value=network.pids)
        for line in sys.stdin:
            action, *arguments = json.loads(line)
            try:
                getattr(network, action)(*arguments)
            except Exception as error:  # whoever asked gets it
                answer(error=f"{action} {arguments}: {error!r}")
            else:
                answer(value=None)
    except OSError as error:
        answer(error=explain_refusal(error) or str(error))
    finally:
        while left_over := _pids_in(namespaces) - {os.getpid()}:
            for pid in left_over:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        os._exit(0)


if __name__ == "__main__":
    _hold(int(sys.argv[1]), sys.argv[2:])
