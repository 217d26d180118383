"""An optional Jupyter Server extension: metrics of the clusters that run here, and their logs.

    kernel ── status.json, cells.jsonl, <task>.log ──> run folders
    GET /metrics       -> metrics    -> snapshots, durations -> run folders
    GET /tfmagic/runs… -> handlers   -> snapshots, logs      -> run folders

It reads when it is asked and does nothing in between; it writes nothing, and no cell waits for it. It
lives in the server's process, not in a kernel's: nothing here may raise through to the server, and
nothing outside of this package imports it. Only what reads the state folder is imported from tfmagic.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "tfmagic.server"}]


def _load_jupyter_server_extension(serverapp: Any) -> None:
    """Add the metrics and the handlers; a server that cannot have them goes on without."""
    try:
        from tfmagic.runs.folder import state_dir
        from tfmagic.server import handlers, metrics

        base = state_dir(_configured_state_dir(serverapp.config))
        metrics.register(base)
        handlers.add_handlers(serverapp.web_app, base)
    # whatever it is (a library that is missing or too old, an odd setting): notebooks matter more
    except Exception as error:
        serverapp.log.warning("tfmagic: no metrics and no logs from this server: %r", error)
    else:
        serverapp.log.info("tfmagic: metrics and logs of the clusters in %s", base)


def _configured_state_dir(config: Any) -> str:
    """``c.TFCluster.state_dir`` of the server's configuration, spelled as in the kernel's."""
    chosen = config["TFCluster"].get("state_dir", "") if "TFCluster" in config else ""
    return chosen if isinstance(chosen, str) else ""
