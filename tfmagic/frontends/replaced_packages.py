"""Packages that were replaced while this process runs: it has the old one, new processes get the new one."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata

from packaging.version import InvalidVersion, Version

# what the notebook's part of tfmagic and its tasks must have alike, by the module's name
_PACKAGES = {
    "IPython": "ipython", "ipykernel": "ipykernel", "ipywidgets": "ipywidgets", "traitlets": "traitlets",
    "anywidget": "anywidget", "comm": "comm", "dill": "dill", "keras": "keras", "msgspec": "msgspec",
    "numpy": "numpy", "psutil": "psutil", "tblib": "tblib", "tensorflow": "tensorflow",
    "google.protobuf": "protobuf", "tfmagic": "tfmagic",
}  # fmt: skip


def find(packages: Mapping[str, str] = _PACKAGES) -> dict[str, tuple[str, str]]:
    """Return the version in memory and the installed one of each replaced package.

    Args:
        packages: Name of each package by the name of its module.
    """
    found = {}
    for module, package in packages.items():
        loaded = getattr(sys.modules.get(module), "__version__", None)
        if not isinstance(loaded, str):
            continue
        try:
            installed = metadata.version(package)
            if Version(loaded) != Version(installed):
                found[package] = (loaded, installed)
        except (metadata.PackageNotFoundError, InvalidVersion):
            continue  # it was not installed by pip
    return found


def describe() -> str:
    """Return what was replaced, and what to do, in one sentence; or ""."""
    parts = [f"{name} ({old} is loaded, {new} is installed)" for name, (old, new) in find().items()]
    if not parts:
        return ""
    were = "was" if len(parts) == 1 else "were"
    return (
        f"{', '.join(parts)} {were} replaced while this kernel ran; restart the kernel "
        "(Colab: Runtime, Restart session), then run  %load_ext tfmagic  again"
    )


@contextlib.contextmanager
def named() -> Iterator[None]:
    """Say what was replaced where the notebook's part of tfmagic cannot be imported."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        if not (replaced := describe()):
            raise
        raise ImportError(replaced) from error
