"""An optional Jupyter Server extension: metrics of the clusters on this machine, and their logs.

    kernel ── status.json, cells.jsonl, <task>.log ──> run folders
    GET /metrics       -> metrics    -> run folders
    GET /tfmagic/runs… -> handlers   -> run folders
    tools for agents   -> tools      -> run folders    (by the package jupyter-server-mcp)

The extension runs in the server's process and reads the run folders when it gets a request. It writes
nothing, does no work between two requests, and no cell waits for it. It must never raise into the server. It
imports from tfmagic only `runs`, which reads the state folder; no other package imports the extension.
"""

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "tfmagic.server"}]


def _load_jupyter_server_extension(serverapp: Any) -> None:
    """Add the metrics and the handlers. A server that cannot have them runs without."""
    try:
        from tfmagic.runs.folder import state_dir
        from tfmagic.server import handlers, metrics

        base = state_dir(configured_state_dir(serverapp.config))
        metrics.register(base)
        handlers.add_handlers(serverapp.web_app, base)
    # any error (a library is missing or too old, a setting is wrong): the server must start all the same
    except Exception as error:
        serverapp.log.warning("tfmagic: no metrics and no logs from this server: %r", error)
    else:
        serverapp.log.info("tfmagic: metrics and logs of the clusters in %s", base)


def configured_state_dir(config: Any) -> str:
    """Return ``c.TFCluster.state_dir`` of the server's configuration, spelled as in the kernel's."""
    chosen = config["TFCluster"].get("state_dir", "") if "TFCluster" in config else ""
    return chosen if isinstance(chosen, str) else ""
