"""tfmagic: a multi-process TensorFlow cluster, as easy to use as a notebook cell.

    %load_ext tfmagic

    %%tfcluster --workers 2
    ...                         # runs on every task at once

Importing this package loads neither TensorFlow nor IPython.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tfmagic.errors import (
    BackendError,
    CaptureError,
    ClusterSpecError,
    LaunchError,
    ProtocolError,
    RemoteError,
    TaskDied,
    TaskTimeoutError,
    TfmagicError,
)
from tfmagic.features import names as _of_features
from tfmagic.features.names import *  # noqa: F403 - written out there
from tfmagic.protocol.task_context import TaskContext, barrier, current_task
from tfmagic.system import linux_only
from tfmagic.system import version as _version

if TYPE_CHECKING:
    from tfmagic.clusters.attaching import attach
    from tfmagic.clusters.cells.results import TaskResults
    from tfmagic.clusters.cluster import Cluster
    from tfmagic.clusters.decorator import cluster
    from tfmagic.clusters.launch.settings import TFCluster
    from tfmagic.task.tensorflow.loopback_only import allow_other_machines

__version__ = _version.VERSION

__all__ = [
    "BackendError",
    "CaptureError",
    "Cluster",
    "ClusterSpecError",
    "LaunchError",
    "ProtocolError",
    "RemoteError",
    "TFCluster",
    "TaskContext",
    "TaskDied",
    "TaskResults",
    "TaskTimeoutError",
    "TfmagicError",
    "allow_other_machines",
    "attach",
    "barrier",
    "cluster",
    "current_task",
    "load_ipython_extension",
    "unload_ipython_extension",
]
__all__ += _of_features.__all__

_LAZY = {
    "attach": "tfmagic.clusters.attaching",
    "Cluster": "tfmagic.clusters.cluster",
    "cluster": "tfmagic.clusters.decorator",
    "TFCluster": "tfmagic.clusters.launch.settings",
    "TaskResults": "tfmagic.clusters.cells.results",
    "allow_other_machines": "tfmagic.task.tensorflow.loopback_only",
}

_SUBPACKAGES = ("hdf5", "logdir", "multi_process_runner", "tfrecord")


def __getattr__(name: str) -> Any:
    """Import the cluster's modules on first use: tasks import this package too."""
    if name in _LAZY:
        linux_only.check()
        return getattr(import_module(_LAZY[name]), name)
    from tfmagic.system import features

    if name in _SUBPACKAGES or features.has_door(name):
        return import_module(f"tfmagic.{name}")
    raise AttributeError(f"module 'tfmagic' has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """Register the magics and start the launcher in the background, for ``%load_ext tfmagic``."""
    if sentence := linux_only.why_not():
        from IPython.core.error import UsageError  # which IPython shows without a traceback

        raise UsageError(sentence)
    from tfmagic.frontends import replaced_packages

    with replaced_packages.named():
        from tfmagic.frontends.notebook.extension import load
    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """End the clusters and the launcher, for ``%unload_ext tfmagic``."""
    from tfmagic.frontends.notebook.extension import unload

    unload(shell)
