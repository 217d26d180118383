"""Folders with traces of TensorFlow's profiler, as TensorBoard shows them.

<folder>/plugins/profile/<cell>/<task>.xplane.pb
"""

import importlib.util
from pathlib import Path

from tfmagic.runs.folder import RunFolder

PLUGIN = "TensorBoard's profile plugin:  pip install xprof"
_TRACES = "plugins/profile"


def has_plugin() -> bool:
    """Check whether TensorBoard's plugin for traces is installed, under its present or its former name."""
    return any(importlib.util.find_spec(name) for name in ("xprof", "tensorboard_plugin_profile"))


def missing_plugin(folder: str) -> str:
    """Say what TensorBoard lacks to show the traces in a folder; "" if nothing, or there are none."""
    has_traces = "://" not in folder and (Path(folder) / _TRACES).is_dir()
    return f"the traces in {folder} need {PLUGIN}" if has_traces and not has_plugin() else ""


def find_traces(run: RunFolder) -> str:
    """Return the folder with traces of a run's cells, or ""."""
    return next((str(path.parents[1]) for path in sorted(run.folder.glob(f"*/{_TRACES}"))), "")
