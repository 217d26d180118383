"""Write a program, its data, and the files that start it on other systems into a folder."""

from __future__ import annotations

import pickle
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any

import tfmagic
from tfmagic.clusters.export.program import TEMPLATES, Program
from tfmagic.clusters.launch.arguments import ShapeOptions
from tfmagic.errors import TfmagicError
from tfmagic.protocol.cluster_spec import ClusterShape, ClusterSpec
from tfmagic.serialization import user_modules

_OURS = '"""Written by tfmagic'
_RAY = "2.60.0"  # where Ray is not installed
_FILLED = (
    "run_local.sh", "job.sbatch", "Dockerfile", "compose.yaml", "job.yaml", "jobset.yaml", "trainjob.yaml",
    "rayjob.yaml",
)  # fmt: skip
_EXECUTABLE = ("run_local.sh",)


@dataclass(frozen=True, slots=True)
class Export:
    """What was written. `str` gives it as lines.

    Attributes:
        files: Names of the files in the folder.
        left_out: What of the cells main.py does not have.
    """

    folder: Path
    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        left_out = [f"left out: {what}" for what in self.left_out]
        return "\n".join([f"wrote {', '.join(self.files)} to {self.folder}", *left_out])

    __repr__ = __str__


def check_folder(folder: Path) -> None:
    """Raise `TfmagicError` if the folder has a main.py of the user's own, or is none."""
    if folder.exists() and not folder.is_dir():
        raise TfmagicError(f"{folder} is a file; name a folder")
    main = folder / "main.py"
    if main.exists() and not main.read_text("utf-8", "replace").startswith(_OURS):
        raise TfmagicError(f"{main} is not from an export, and is left as it is; name another folder")


def write_folder(folder: Path, program: Program, shape: ClusterShape) -> Export:
    """Write everything into the folder, which is made; a former export there is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"main.py": program.text, "requirements.txt": _requirements(program)}
    values = _values(folder, shape)
    texts |= {name: _template(name).substitute(values) for name in _FILLED}
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
        if name in _EXECUTABLE:
            (folder / name).chmod(0o755)
    files = [*texts, *_write_data(folder, program.names.data), *_copy_modules(folder, program)]
    return Export(folder, tuple(files), program.left_out)


def _write_data(folder: Path, data: Mapping[str, dict[str, Any]]) -> list[str]:
    if data["data.npz"]:
        import numpy as np

        np.savez_compressed(folder / "data.npz", **data["data.npz"])
    if data["data.pickle"]:
        (folder / "data.pickle").write_bytes(pickle.dumps(data["data.pickle"]))
    return [file for file, values in data.items() if values]


def _copy_modules(folder: Path, program: Program) -> list[str]:
    """Copy the user's own modules that the program imports, with the packages around them."""
    stamps = user_modules.stamps_of(user_modules.names_imported(program.text))
    names = {
        ".".join(parts[:n])
        for parts in (name.split(".") for name in stamps)
        for n in range(1, len(parts) + 1)
    }
    written = []
    for name in sorted(names):
        file = user_modules.file_of(name)
        if file:
            inner = "/__init__.py" if Path(file).name == "__init__.py" else ".py"
            target = name.replace(".", "/") + inner
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder / target)
            written.append(target)
    return written


def _requirements(program: Program) -> str:
    """Return the packages that the program imports, in the versions of this process."""
    imported = {name.partition(".")[0] for name in user_modules.names_imported(program.text)}
    imported |= {
        type(value).__module__.partition(".")[0] for value in program.names.data["data.pickle"].values()
    }
    imported = (imported | {"tensorflow", "keras"}) - ({"tfmagic"} if not program.needs_tfmagic else set())
    packages = metadata.packages_distributions()
    found = {package for module in imported for package in packages.get(module, ())}
    if program.needs_tfmagic:
        found.add("tfmagic")
    return "".join(f"{name}=={metadata.version(name)}\n" for name in sorted(found, key=str.lower))


# -- the values of the templates ---------------------------------------------------------------------


def _template(name: str) -> Template:
    return Template((TEMPLATES / name).read_text("utf-8"))


def _values(folder: Path, shape: ClusterShape) -> dict[str, Any]:
    """Return the value of each name in the templates."""
    tasks, leader = shape.tasks, shape.leader
    types = list(dict.fromkeys(task.type for task in tasks))
    counts = {kind: sum(task.type == kind for task in tasks) for kind in types}
    word = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:40].strip("-")
    name = word if word[:1].isalpha() else f"job-{word}".strip("-")
    asked = ShapeOptions(shape.workers, shape.ps, shape.chief, shape.evaluator)
    values = {
        "name": name,
        "image": f"registry.example.org/{name}:1",
        "tasks": " ".join(task.name for task in tasks),
        "count": len(tasks),
        "computing": sum(task.type != "ps" for task in tasks),
        "chief": leader.name,
        "chief_role": leader.type,
        "ends_with_chief": "true" if shape.ps else "false",
        "srun_options": " --wait=30" if shape.ps else "",  # ps and workers never end by themselves
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "tfmagic": tfmagic.__version__,
        "ray": _version("ray") or _RAY,
        "run_options": " ".join(asked.words),
        "role_counts": ",".join(f"{kind}={count}" for kind, count in counts.items()),
    }
    roles, services = _template("jobset-role.yaml"), _template("compose-service.yaml")
    spec = ClusterSpec(shape, {task: f"{task.name}:2222" for task in tasks})
    return {
        **values,
        "replicated_jobs": "".join(
            roles.substitute(values, role=kind, role_count=count) for kind, count in counts.items()
        ).rstrip(),
        "services": "".join(
            services.substitute(values, task=task.name, tf_config=spec.tf_config(task)) for task in tasks
        ).rstrip(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
