"""An optional Jupyter Server extension: metrics and logs of clusters, and templates for quick restarts.

    kernel ── status.json, cells.jsonl, <task>.log ──> run folders
    GET /metrics       -> features   -> run folders    (`tfmagic.features.metrics`)
    GET /tfmagic/runs… -> handlers   -> run folders
    tools for agents   -> tools      -> run folders    (by the package jupyter-server-mcp)
    kernels            -> owner.json -> templates that end with the server (`tfmagic.runs.warm_folder`)

The extension runs in the server's process and reads the run folders when it gets a request. It writes one
file, which lets kernels use templates, does no work between two requests, and no cell waits for it. It must
never raise into the server. It imports from tfmagic only `runs` and `system`, and what features have
for a server; no other package imports the extension.
"""

import atexit
import os
from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "tfmagic.server"}]


def _load_jupyter_server_extension(serverapp: Any) -> None:
    """Add the metrics and the handlers. A server that cannot have them runs without."""
    from tfmagic.system import linux_only

    if sentence := linux_only.why_not():
        serverapp.log.warning("tfmagic: no metrics and no logs from this server: %s", sentence)
        return
    try:
        from tfmagic.runs.folder import state_dir
        from tfmagic.server import handlers
        from tfmagic.system import features

        base = state_dir(configured_state_dir(serverapp.config))
        for half in features.halves("server"):
            half.register(base)
        handlers.add_handlers(serverapp.web_app, base)
    # any error (a library is missing or too old, a setting is wrong): the server must start all the same
    except Exception as error:
        serverapp.log.warning("tfmagic: no metrics and no logs from this server: %r", error)
    else:
        serverapp.log.info("tfmagic: metrics and logs of the clusters in %s", base)
    try:
        _allow_templates(float(_configured(serverapp.config, "keep_warm_s", 600)))
    except Exception as error:
        serverapp.log.warning("tfmagic: each kernel imports TensorFlow: %r", error)


def _allow_templates(idle_s: float) -> None:
    """Let the kernels of this server use templates, which end with it or without a kernel for that time."""
    from tfmagic.runs import warm_folder
    from tfmagic.system.process_identity import identify

    me = identify(os.getpid())
    if me is not None and idle_s > 0:
        warm_folder.announce(me, idle_s)
        atexit.register(warm_folder.withdraw, me)


def configured_state_dir(config: Any) -> str:
    """Return ``c.TFCluster.state_dir`` of the server's configuration, spelled as in the kernel's."""
    chosen = _configured(config, "state_dir", "")
    return chosen if isinstance(chosen, str) else ""


def _configured(config: Any, name: str, default: object) -> Any:
    return config["TFCluster"].get(name, default) if "TFCluster" in config else default
