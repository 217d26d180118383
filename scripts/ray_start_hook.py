"""What `ray start` calls in a cluster of this machine (`RAY_START_HOOK`): it has no options for this.

For the tests, the benchmark and the demonstration.
"""

from __future__ import annotations

import os
from typing import Any

_UNUSED_PORT = 1


def start_less(parameters: Any, head: bool) -> None:
    """Start fewer processes than usual.

    It starts no `ray://` server unless asked for. The dashboard agent does nothing in an installation without
    `ray[default]`, but costs 2 s of a core and 85 MB a node, and a raylet crashes if its agents have not
    reported their ports after 15 s, which their imports of Ray take on a busy machine. So a `cat` that reads
    the raylet's pipe until its end stands in for it, and another for the agent of runtime environments unless
    asked for.
    """
    from ray import _raylet
    from ray._private import services

    if not os.environ.get("RAY_NODES_CLIENT_SERVER"):
        parameters.ray_client_server_port = None
    # Ray gives two nodes of one machine that are started at the same moment the same names
    own = os.path.join(os.environ["RAY_NODES_FOLDER"], parameters.node_ip_address)
    parameters.plasma_store_socket_name, parameters.raylet_socket_name = f"{own}.plasma", f"{own}.raylet"
    start = services.start_ray_process
    replaced = ["--dashboard_agent_command="]
    if not os.environ.get("RAY_NODES_RUNTIME_ENV"):
        replaced.append("--runtime_env_agent_command=")

    def start_without_agents(command: list[str], kind: str, **options: Any) -> Any:
        if kind == "raylet":
            if hasattr(_raylet, "persist_port"):  # older versions of Ray wait for no ports
                _note_ports(_raylet, dict(word.partition("=")[::2] for word in command))
            for option in replaced:
                command = [f'{option}sh -c "exec cat" agent' if w.startswith(option) else w for w in command]
        return start(command, kind, **options)

    services.start_ray_process = start_without_agents


def _note_ports(raylet: Any, words: dict[str, str]) -> None:
    """Write the ports for which the raylet would wait, as the agents do."""
    for name, port in (
        (raylet.METRICS_AGENT_PORT_NAME, _UNUSED_PORT),
        (raylet.METRICS_EXPORT_PORT_NAME, _UNUSED_PORT),
        (raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME, _UNUSED_PORT),
        (raylet.RUNTIME_ENV_AGENT_PORT_NAME, int(words["--runtime_env_agent_port"])),
    ):
        raylet.persist_port(words["--session_dir"], words["--node_id"], name, port)
