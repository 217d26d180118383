"""Ask the head of a Ray cluster whether it answers, which version it has, and whether it asks for a token.

`ray.init` waits for a head that refuses it, or ends the process; this is one small call, answered at once.
Used by processes of their own, the driver and the doctor's: gRPC's threads do not belong into a notebook's.

Facts about Ray (2.60): a process that connects from a machine without a node is aborted. A head answers
``CheckAlive`` with its version; with token authentication it answers UNAUTHENTICATED to a call without the
right token. In pods of KubeRay with ``enableK8sTokenAuth`` the token is one of Kubernetes, in a file that
Ray's own library names, and is taken before that of the user's folder.
"""

import contextlib
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from tfmagic.backends.remote import patches
from tfmagic.system.advice import Step

_CHECK = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_LIST = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
_CLIENT = "ray://"
_GONE_S = 1.0
_KUBERNETES_TOKEN = Path("/var/run/secrets/ray.io/serviceaccount/token")


@dataclass(frozen=True, slots=True)
class Head:
    """What the head has answered.

    Attributes:
        address: Where it was asked; "" if no address is known.
        version: Of Ray there; "" if it has not said.
        asks_token: Whether it refuses calls without a token; None if that is not known.
        nodes: The addresses of its living nodes.
        reason: Why it cannot be used, and what to do; "" if it can.
    """

    address: str
    version: str = ""
    asks_token: bool | None = None
    nodes: tuple[str, ...] = ()
    reason: str = ""


def look(address: str, environ: Mapping[str, str] = os.environ, timeout_s: float = 5.0) -> Head:
    """Ask the head at this address: ``host:port`` or ``auto``."""
    asked = resolve(address, environ)
    if asked.startswith(_CLIENT):
        return Head(asked, reason=_from_outside(urlsplit(asked).hostname or ""))
    host, _, port = asked.rpartition(":")
    if not asked and (several := ", ".join(_running())):
        return Head("", reason=f"several Rays run on this machine; name the head of one of them: {several}")
    if not asked:
        return Head("", reason=f"no Ray runs on this machine, and none is named. {_START}")
    if not (host and port.isdigit()):
        return Head(asked, reason=f"{asked!r} is no address such as 10.0.0.1:6379")
    if why := _silent(host, port, timeout_s):
        return Head(
            asked, reason=f"nothing answers there ({why}). {_START}; look at the address and firewall"
        )
    return _ask(asked, environ, timeout_s)


def gone(address: str, environ: Mapping[str, str] = os.environ) -> str:
    """Say that the head of a cluster that ran does not answer any more; "" if it does."""
    asked = resolve(address, environ)
    host, _, port = asked.rpartition(":")
    if port.isdigit() and not (why := _silent(host, port, _GONE_S)):
        return ""
    at = f" at {asked} does not answer any more ({why})" if asked else " is gone: no Ray runs on this machine"
    return f"Ray's head{at}. Start Ray again, on the head and then on the other nodes"


def _silent(host: str, port: str, timeout_s: float) -> str:
    """Return why nothing answers at an address; "" if something does."""
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


_START = "Start the head:  ray start --head --port=6379"


def resolve(address: str, environ: Mapping[str, str]) -> str:
    """Return the address that Ray takes for ``auto``; "" if there is none."""
    if address != "auto":
        return address
    if (named := environ.get("RAY_ADDRESS", "auto")) not in ("", "auto"):
        return named
    if len(found := _running()) == 1:
        return found[0]
    noted, folder = "", environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    with contextlib.suppress(OSError):
        noted = Path(folder, "ray", "ray_current_cluster").read_text().strip()
    return noted if not found or noted in found else ""  # a Ray that was killed leaves its note


def _running() -> list[str]:
    """Return the heads of the nodes that the user runs on this machine, wherever their files are."""
    mine = [
        process.info["cmdline"] or ()
        for process in psutil.process_iter(["name", "cmdline", "uids"])
        if process.info["name"] == "raylet" and process.info["uids"].real == os.getuid()
    ]
    option = "--gcs-address="
    return sorted({word.removeprefix(option) for words in mine for word in words if word.startswith(option)})


def token_of(environ: Mapping[str, str]) -> str:
    """Return the token that Ray takes from this environment, or ""."""
    if token := environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    try:
        return token_file(environ).read_text().strip()
    except OSError:
        return ""


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that connects to Ray from this environment."""
    presets = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_gcs_server_port_wait_time_s": "1"}  # try once to connect
    mode = {"RAY_AUTH_MODE": "token"} if token_of(environ) else {}  # else Ray does not send it (2.60)
    return {**presets, **mode, **environ}


def token_file(environ: Mapping[str, str]) -> Path:
    """Return the file in which Ray looks for a token that no variable has."""
    if named := environ.get("RAY_AUTH_TOKEN_PATH"):
        return Path(named)
    if environ.get("RAY_ENABLE_K8S_TOKEN_AUTH", "").lower() in ("1", "true"):
        return _KUBERNETES_TOKEN
    return Path(os.path.expanduser("~/.ray/auth_token"))


def _ask(address: str, environ: Mapping[str, str], timeout_s: float) -> Head:
    if not patches.TABLE.fits(patches.HEAD):
        return Head(address)  # Ray itself decides
    import grpc

    with _channel(address, environ) as channel:
        token, asks_token = "", False
        code, words, content = _call(channel, _CHECK, token, timeout_s)
        if code == grpc.StatusCode.UNAUTHENTICATED:
            token, asks_token = token_of(environ), True
            if reason := _missing_token(token, environ):
                return Head(address, "", True, reason=reason)
            code, words, content = _call(channel, _CHECK, token, timeout_s)
        if code == grpc.StatusCode.UNAUTHENTICATED:
            return Head(address, "", True, reason=f"it refuses the token that is set here. {_give_token()}")
        if code != grpc.StatusCode.OK:
            return Head(address, reason=_foreign(f"{code.name}: {words}", environ))
        _, _, listed = _call(channel, _LIST, token, timeout_s)
    version, nodes = _decode(content, listed)
    reason = "" if not nodes or any(map(is_here, nodes)) else _no_node_here(address, nodes)
    return Head(address, version, asks_token, nodes, reason)


def _give_token() -> str:
    step = Step("set", RAY_AUTH_TOKEN="...")
    return f"Give this process the token of the head:  {step}   (or write it to ~/.ray/auth_token)"


def _decode(content: bytes, listed: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the head's version and the addresses of its living nodes; none where Ray's messages differ."""
    if not patches.TABLE.fits(patches.MESSAGES):
        return "", ()
    from ray.core.generated import gcs_pb2, gcs_service_pb2  # Ray's own descriptions of its messages

    known = gcs_service_pb2.GetAllNodeInfoReply.FromString(listed).node_info_list
    nodes = sorted(node.node_manager_address for node in known if node.state == gcs_pb2.GcsNodeInfo.ALIVE)
    return gcs_service_pb2.CheckAliveReply.FromString(content).ray_version, tuple(nodes)


def _missing_token(token: str, environ: Mapping[str, str]) -> str:
    if not token:
        return f"it asks for a token, and there is none here. {_give_token()}"
    if environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        step = Step("set", RAY_AUTH_MODE="token")
        return f"it asks for a token, and RAY_AUTH_MODE is not token here:  {step}"
    return ""


def _foreign(answer: str, environ: Mapping[str, str]) -> str:
    return (
        f"what answers there is no head of Ray's ({answer}). The port is the one of ray start --head --port "
        "(6379), not the dashboard's; RAY_USE_TLS must be the same on every node and here (here "
        f"{environ.get('RAY_USE_TLS', '0')})"
    )


def _from_outside(host: str) -> str:
    head = f"{host or '10.0.0.1'}:6379"
    return (
        "addresses with ray:// are not taken: they lead to a server that Ray no longer recommends for what "
        "lasts. Start the kernel on a machine of the Ray cluster, or make a node of this one, of 0 CPUs:  "
        f"ray start --address={head} --num-cpus=0   and give the address  {head}"
    )


def _no_node_here(address: str, nodes: Sequence[str]) -> str:
    """Say that Ray connects from its nodes alone: elsewhere its client aborts the process."""
    shown = ", ".join(nodes[:3]) + (" ..." if len(nodes) > 3 else "")
    return (
        f"this machine is not one of its nodes ({shown}), and Ray connects only from a node. Start one here, "
        f"0 CPUs keep it free of tasks:  ray start --address={address} --num-cpus=0"
    )


def uses_tls(environ: Mapping[str, str]) -> bool:
    """Check whether Ray admits only holders of a certificate of the user's authority, on both sides."""
    return environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _channel(address: str, environ: Mapping[str, str]) -> Any:
    import grpc

    if not uses_tls(environ):
        return grpc.insecure_channel(address)
    names = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")
    contents = [Path(environ[name]).read_bytes() for name in names]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*contents))


def _call(channel: Any, method: str, token: str, timeout_s: float) -> tuple[Any, str, bytes]:
    """Return the status, its words, and the reply, not decoded."""
    import grpc

    call = channel.unary_unary(method, bytes, bytes)
    metadata = [("authorization", f"Bearer {token}")] if token else []
    try:
        return grpc.StatusCode.OK, "", call(b"", timeout=timeout_s, metadata=metadata)
    except grpc.RpcError as error:
        return error.code(), str(error.details())[:200], b""


def is_here(host: str) -> bool:
    """Check whether an address is one of this machine's."""
    own = {known.address for cards in psutil.net_if_addrs().values() for known in cards}
    return host in own or host.startswith("127.") or host in ("localhost", "::1")
