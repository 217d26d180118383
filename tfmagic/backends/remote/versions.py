"""The versions that must agree on all hosts of a cluster: others could not read what the notebook sends."""

import contextlib
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata

_EXACT = {"tensorflow": 2, "keras": 2, "tfmagic": 3, "ray": 3, "python": 2}  # how many parts must agree


def own_versions() -> dict[str, str]:
    """Return the versions of what is installed here."""
    found = {"python": platform.python_version()}
    for name in _EXACT.keys() - found.keys():
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def describe_differences(hosts: Iterable[tuple[str, Mapping[str, str]]], own: Mapping[str, str]) -> str:
    """Say what differs on these hosts (address and versions), and how to install ours; "" if they agree."""
    differing: dict[str, list[str]] = {}
    for address, versions in hosts:
        for name, parts in _EXACT.items():
            here, there = own.get(name, "none"), versions.get(name, "none")
            if here.split(".")[:parts] != there.split(".")[:parts]:
                differing.setdefault(f"{name} {there} (here {here})", []).append(address)
    if not differing:
        return ""
    found = "; ".join(f"{', '.join(where)}: {what}" for what, where in differing.items())
    others = {words.partition(" ")[0] for words in differing}
    packages = [f"{name}=={own[name]}" for name in _EXACT if name in others & own.keys() - {"python"}]
    steps = [f"a Python {own['python']}"] if "python" in others else []
    steps += [f"pip install {' '.join(packages)}"] if packages else []
    return f"{found}. On these hosts, before ray start:  {' and '.join(steps)}"
