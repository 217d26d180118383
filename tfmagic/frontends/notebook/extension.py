"""The extension of IPython: ``%load_ext tfmagic`` and ``%unload_ext tfmagic``.

`load` imports only what it needs itself; see `registered`.
"""

import os
import sys
from typing import Any

from IPython.core.error import UsageError
from traitlets import TraitError

from tfmagic.backends import launcher_client, templates
from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.errors import TfmagicError
from tfmagic.failures import ipython_tracebacks
from tfmagic.frontends import replaced_packages
from tfmagic.frontends.notebook import awaited_cells, one_liners, patches
from tfmagic.frontends.notebook.completion import install_completion, remove_completion
from tfmagic.frontends.notebook.registered import TFClusterMagics, import_meanwhile
from tfmagic.system import notices


def load(shell: Any) -> None:
    """Register the magics, the settings and the completions; warm the launcher.

    Raises:
        UsageError: The configuration has a value that a setting cannot have; nothing is registered.
    """
    try:
        config = TFCluster.instance(parent=shell)
    except TraitError as error:
        raise UsageError(f"{error} Correct it in IPython's configuration, and load tfmagic again") from None
    if replaced := replaced_packages.describe():
        notices.say(f"tfmagic: {replaced}")
    magics = TFClusterMagics(shell)
    shell.register_magics(magics)
    if config not in shell.configurables:
        shell.configurables.append(config)
    install_completion(shell, lambda: magics.notebook.clusters)
    one_liners.install(shell)
    awaited_cells.install(shell)
    if patches.TABLE.fits(patches.ERRORS):
        ipython_tracebacks.install(shell, lambda: _shown_bytes(shell, config))
    server = os.environ.get("JPY_PARENT_PID", "")
    templates.join(int(server) if server.isdecimal() else 0, config.keep_warm_s)
    if config.warm:
        launcher_client.warm(launcher_client.Flavour())
    import_meanwhile()


def _shown_bytes(shell: Any, config: TFCluster) -> int:
    """Return the size of a failure that is shown as short text, at most; else 0."""
    from tfmagic.frontends.notebook.view_choice import has_page  # which a failed cell has imported

    return 0 if has_page(shell) else config.text_bytes


def unload(shell: Any) -> None:
    """End what `load` and the user's cells have started."""
    magics = shell.magics_manager.registry.get("TFClusterMagics")
    if magics is None:
        raise TfmagicError("tfmagic is not loaded; load it with %load_ext tfmagic")
    magics.notebook.stop_all()
    widgets = sys.modules.get("tfmagic.views.widget")
    if widgets is not None:
        widgets.close_all()
    remove_completion(shell)
    from tfmagic.backends.remote import driver_client
    from tfmagic.frontends.notebook import plain_cells

    driver_client.close_idle()
    plain_cells.remove(shell)
    one_liners.remove(shell)
    awaited_cells.remove(shell)
    ipython_tracebacks.remove(shell)
    launcher_client.close_all()
