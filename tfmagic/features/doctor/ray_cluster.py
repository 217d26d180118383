"""Check a Ray cluster for tasks: Ray here, its head, the token, room, encryption, ports, and folders.

Ray is asked by a process of its own: gRPC's threads do not belong into a notebook's process.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfmagic.backends.remote import patches, ray_head
from tfmagic.backends.remote.ray_head import Head
from tfmagic.backends.remote.room import Node, Wanted, in_words
from tfmagic.clusters.launch import remote_hosts
from tfmagic.clusters.launch.task_settings import computing_tasks, existing_folder
from tfmagic.errors import LaunchError
from tfmagic.features.doctor.findings import Case, Finding, note, refused, trouble
from tfmagic.features.doctor.folder import NETWORK, file_system
from tfmagic.features.doctor.software import release
from tfmagic.protocol.module_origins import import_path
from tfmagic.system.advice import Step, front_end, in_notebook
from tfmagic.system.helper_process import start_interpreter
from tfmagic.system.installed_packages import find_package
from tfmagic.system.memory import format_bytes

_LEAST_RAY = (2, 52)  # the first with token authentication
_ASK_S = 30.0
_SHOWN, _NODES_SHOWN = 5, 20  # files, and nodes, of many
_TLS_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
_TOKEN = (
    "make one (ray get-auth-token --generate), and on every node and here, before Ray and the kernel start:  "
)
_EXPORT = "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=..."


def ray(case: Case) -> Iterator[Finding]:
    """Check Ray's version here, and what the head answers."""
    installed = find_package("ray")
    if installed is None:
        yield refused("Ray is missing", "pip install 'tfmagic[ray]'")
        return
    version = installed["Version"]
    if release(version) < _LEAST_RAY:
        yield trouble(f"ray {version}", "it has no token authentication:  pip install -U 'ray>=2.52'")
    asked = case.task_settings.hosts
    assert asked is not None
    head, nodes = _ask(asked.address)
    yield from head_findings(head, version, os.environ, case.setting("trust_network"))
    yield from token_findings(os.environ)
    gpu_tasks = len(computing_tasks(case.shape)) if asked.gpus else 0
    wanted = Wanted(asked, len(case.shape.tasks), gpu_tasks)
    yield from room_findings(wanted, nodes, case.running, case.setting("start_timeout_s"))


def _ask(address: str) -> tuple[Head, list[Node]]:
    """Return what the head answers, and its nodes if they can be asked."""
    code = f"from tfmagic.backends.remote import ray_driver; ray_driver.look({front_end().value})"
    with start_interpreter(
        code,
        address,
        path=import_path(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ray_head.variables(os.environ),
    ) as process:
        try:
            answer, _ = process.communicate(timeout=_ASK_S)
        except subprocess.TimeoutExpired:
            process.kill()
            answer, _ = process.communicate()
    lines = [json.loads(line) for line in answer.splitlines() if line.startswith((b"{", b"["))]
    if not lines:
        return Head(address, reason=f"it did not answer within {_ASK_S:g} s"), []
    return Head(**lines[0]), [Node(**node) for node in (lines[1] if len(lines) > 1 else ())]


def room_findings(
    wanted: Wanted, nodes: Sequence[Node], running: bool, start_timeout_s: float
) -> Iterator[Finding]:
    """List the nodes, and compare their room with what the tasks need: all or none get their places."""
    if not nodes:  # a finding on the head says why
        return
    lines = [f"{node.address}: {_resources_of(node)}" for node in nodes[:_NODES_SHOWN]]
    if more := len(nodes) - len(lines):
        lines.append(f"and {more} more")
    yield Finding("\n    ".join([f"Ray has {len(nodes)} nodes", *lines]))
    staying = [node for node in nodes if not node.leaves]
    fit = wanted.fitting(node.total for node in staying)
    free = [node.free for node in staying if node.free is not None]
    now = wanted.fitting(free) if len(free) == len(staying) else fit
    room = f"{now} such tasks fit now, {fit} when all is free ({wanted.each()})"
    if running:
        yield Finding(f"room beside the {wanted.tasks} tasks that run: {room}")
    elif fit < wanted.tasks:
        yield refused(f"no room for {wanted.tasks} tasks: {room}", "ask for less, or add nodes to Ray")
    elif now < wanted.tasks:
        yield refused(
            f"no room for {wanted.tasks} tasks now: {room}",
            f"a start waits {start_timeout_s:g} s for it, and is refused then; end what uses the nodes "
            "(ray status), ask for less, or add nodes",
        )
    else:
        yield Finding(f"room for {wanted.tasks} tasks: {room}")


def _resources_of(node: Node) -> str:
    memory_bytes = int(node.total.get("memory", 0))
    has = f"{node.in_words()}, {format_bytes(memory_bytes)} of memory"
    return has if node.free is None else f"{has}; free: {in_words(node.free)}"


def token_findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that no other user can read the file of the token."""
    path = ray_head.token_file(environ)
    with contextlib.suppress(OSError):
        if not environ.get("RAY_AUTH_TOKEN") and path.stat().st_mode & 0o077:
            yield trouble(f"other users can read Ray's token in {path}", f"chmod 600 {path}")


def head_findings(
    head: Head, version: str, environ: Mapping[str, str], trusts_network: bool = False
) -> Iterator[Finding]:
    """Explain the answer of the head, where Ray has this version here."""
    where = f"Ray at {head.address}" if head.address else "Ray"
    if head.reason:
        yield refused(where, head.reason)
    elif head.version and head.version != version:
        fix = f"pip install ray=={head.version}{in_notebook(', then restart the kernel')}"
        yield refused(f"{where} is {head.version}, and here is {version}", f"both must be the same:  {fix}")
    elif head.asks_token is None:
        yield note(f"{where} could not be asked", "\n    ".join(patches.TABLE.left_out()))
    elif head.asks_token:
        yield Finding(f"{where}: version {head.version}, asks for a token and takes the one that is set here")
    elif ray_head.uses_tls(environ):
        yield Finding(f"{where}: version {head.version}, admits only holders of a certificate")
    elif trusts_network:
        yield note(
            f"{where} asks for no token, and TFCluster.trust_network is set",
            "everybody who reaches its ports can run code in your name: only the network keeps them away",
        )
    elif all(map(ray_head.is_here, (_host_of(head.address), *head.nodes))):
        yield note(
            f"{where} asks for no token",
            "every user of this machine, and everybody who reaches its ports, can run code in your name; a "
            f"cluster with nodes elsewhere is refused. A token: {_TOKEN}{_EXPORT}",
        )
    else:
        yield refused(
            f"{where} asks for no token, and has nodes on other machines",
            f"everybody who reaches its ports can run code in your name: {_TOKEN}{_EXPORT}",
        )


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _is_elsewhere(case: Case) -> bool:
    assert case.task_settings.hosts is not None
    address = ray_head.resolve(case.task_settings.hosts.address, os.environ)
    return bool(address) and not ray_head.is_here(_host_of(address))


def tls(case: Case) -> Iterator[Finding]:
    """Check whether Ray's connections are encrypted, and the files for that."""
    yield from tls_findings(os.environ, _is_elsewhere(case))


def tls_findings(environ: Mapping[str, str], elsewhere: bool) -> Iterator[Finding]:
    """Explain the variables of Ray's TLS for a head on another machine, or on this one."""
    if ray_head.uses_tls(environ):
        missing = [name for name in _TLS_FILES if not os.access(environ.get(name, ""), os.R_OK)]
        fix = "   ".join(f"export {name}=/path/to/file.pem" for name in missing)
        if missing:
            yield trouble("RAY_USE_TLS is set", f"files that can be read are missing:  {fix}")
        else:
            yield Finding("Ray's connections are encrypted (RAY_USE_TLS)")
    elif elsewhere:
        yield note(
            "Ray's connections are not encrypted",
            "who can listen on the network between the hosts reads the token and all values; on every node "
            "and here:  export RAY_USE_TLS=1   and three files, see docs/ray.md",
        )


def tensorflow_ports(case: Case) -> Iterator[Finding]:
    """Remind of TensorFlow's servers, which other hosts must reach, and which ask nobody for a password."""
    if _is_elsewhere(case):
        yield note(
            "TensorFlow's servers on the hosts are open to their network",
            "they ask for no password, and neither token nor TLS of Ray covers them: let a firewall admit "
            "the hosts to each other and nobody else, see docs/security.md",
        )


def host_software(case: Case) -> Iterator[Finding]:
    """Say when the versions on the hosts are compared."""
    when = "were compared at the start" if case.running else "are compared at the start, before a task starts"
    yield Finding(f"versions of Python, TensorFlow, Keras, Ray and tfmagic on the hosts {when}")


def own_files(case: Case) -> Iterator[Finding]:
    """List which files of this notebook the hosts get, and what stays here."""
    limit = case.setting("max_module_bytes")
    if not limit:
        yield note("hosts get no files of this notebook", "TFCluster.max_module_bytes is 0")
        return
    try:
        found = remote_hosts.collect_modules(case.task_settings, limit)
    except LaunchError as error:
        yield refused("what hosts would get of this notebook is too much", str(error))
        return
    largest = sorted(found.sent.values(), key=lambda stamp: -stamp[2])[:_SHOWN]
    names = "".join(f"\n    {file} ({format_bytes(size)})" for file, _, size in largest)
    what = f"hosts get {len(found.sent)} files of this notebook, {format_bytes(found.size_bytes)}"
    yield Finding(f"{what}; the largest:{names}" if names else what)
    too_large = {folder: f"{format_bytes(size)} of data" for folder, size in found.too_large.items()}
    left_out = {**too_large, **found.left_out}
    lines = [f"{path}: {why}" for path, why in list(left_out.items())[:_SHOWN]]
    if more := len(left_out) - len(lines):
        lines.append(f"and {more} more")
    what = "\n    ".join([f"{len(left_out)} files and folders beside them stay here", *lines])
    if too_large:
        yield note(what, f"to send more data:  {Step('configure', max_module_bytes=4 * limit)}")
    elif left_out:
        yield Finding(what)


def shared_folder(case: Case) -> Iterator[Finding]:
    """Check whether the hosts can see the notebook's folder."""
    here = existing_folder()
    kind = file_system(Path(here))
    if NETWORK.fullmatch(kind):
        yield Finding(
            f"the folder {here} is on a network file system ({kind}): hosts that mount it see its files"
        )
    elif _is_elsewhere(case):
        yield note(
            f"the folder {here} is on this machine alone",
            "the hosts get its modules and packages, and no other data: put that and checkpoints into a "
            "folder that all hosts mount at the same path, or into a bucket",
        )
