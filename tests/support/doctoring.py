"""Cases for the doctor: a shell, a shape, settings, and site-packages with chosen packages only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.features.doctor.findings import Case
from tfmagic.protocol.cluster_spec import ClusterShape

ROOT = Path(__file__).parents[2]


class Runner:
    def __str__(self) -> str:
        return "asyncio"


NOTEBOOK = SimpleNamespace(kernel=object(), autoawait=True, loop_runner=Runner())
TERMINAL = SimpleNamespace()


def case(
    shell: Any = NOTEBOOK,
    task_settings: TaskSettings | None = None,
    running: bool = False,
    settings: Any = (),
    **shape: Any,
) -> Case:
    """Return the case of a cluster of that shape, with default settings except for `settings`."""
    given = dict(settings)
    presets = TFCluster.class_traits()

    def setting(name: str) -> Any:
        return given[name] if name in given else presets[name].default_value

    return Case(shell, ClusterShape(**shape), task_settings or TaskSettings(), setting, running)


def install(folder: Path, requires: dict[str, list[str]] | None = None, **versions: str) -> str:
    """Create a folder of site-packages with only the metadata of these packages. Return its path."""
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name.replace('_', '-')}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in (requires or {}).get(name, [])]
        (info / "METADATA").write_text("\n".join(lines) + "\n\nVersion: 0 of the description\n")
    folder.mkdir(exist_ok=True)
    return str(folder)


def look_in_process(check: str, before: str = "", wrap: tuple[str, ...] = (), **shape: Any) -> str:
    """Run a check in a new process, after `before`. Return its output; "refused: ..." if `wrap` fails."""
    code = (
        "import os, resource, sys\nfrom doctoring import case\n"
        "from tfmagic.features.doctor import folder, machine, software\n"
        f"asked = case(**{shape!r})\n{before}\nprint('looked')\nfor f in {check}(asked): print(f)\n"
    )
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}"}
    done = subprocess.run(
        [*wrap, sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=120
    )
    if not done.stdout.startswith("looked\n"):
        return f"refused: {done.stderr}"
    assert done.returncode == 0, done.stderr
    return done.stdout.removeprefix("looked\n")
