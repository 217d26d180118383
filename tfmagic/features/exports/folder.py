"""Write a program, its data, and the files that start it on other systems into a folder."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from tfmagic.clusters.launch.cluster_options import ShapeOptions, values_in
from tfmagic.clusters.launch.given_options import NO_OPTIONS, GivenOptions, other_than_default
from tfmagic.errors import TfmagicError
from tfmagic.features.exports.program import SETUP, TEMPLATES, Program
from tfmagic.features.exports.requirements import requirements, version_of
from tfmagic.features.exports.wheel import make_wheel
from tfmagic.protocol.cluster_spec import ClusterShape, ClusterSpec
from tfmagic.serialization import user_modules
from tfmagic.system import files

_LIST = ".tfmagic-export"  # what was written, in the form of sha256sum
_RAY = "2.60.0"  # where Ray is not installed
_FILLED = (
    "run_local.sh", "job.sbatch", "Dockerfile", "compose.yaml", "job.yaml", "jobset.yaml", "trainjob.yaml",
    "rayjob.yaml",
)  # fmt: skip
_IMAGE = "# Only these files are in the image. Add those of yours that main.py reads.\n*\n"
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
    """Raise `TfmagicError` if a file has this name."""
    if folder.exists() and not folder.is_dir():
        raise TfmagicError(f"{folder} is a file; name a folder")


def write_folder(
    folder: Path, program: Program, shape: ClusterShape, options: GivenOptions = NO_OPTIONS
) -> Export:
    """Write everything into the folder, which is made; a former export there is replaced.

    Only the user can read it: what looks like a secret is left out, and not all secrets do.

    Args:
        options: Further options for `tfmagic run`, where it starts the program.

    Raises:
        TfmagicError: The folder has files of these names that no export has written. Nothing was written.
    """
    wheel, packed = make_wheel()
    needed, missing = requirements(program, wheel)
    modules = _modules(program)
    in_place = [name for name, file in modules.items() if _is_same(folder / name, file)]
    copies = {name: Path(file).read_bytes() for name, file in modules.items() if name not in in_place}
    own = {"main.py": program.text, SETUP: program.setup, "requirements.txt": needed}
    run = {name: text.encode() for name, text in own.items()} | _data(program.names.data) | {wheel: packed}
    in_image = _IMAGE + "".join(f"!{name}\n" for name in (*run, *modules))
    values = _values(folder, shape, options) | {"wheel": wheel}
    texts = {name: _template(name).substitute(values) for name in _FILLED} | {".dockerignore": in_image}
    contents = run | {name: text.encode() for name, text in texts.items()} | copies
    _write(folder, contents)
    return Export(folder, (*contents, *in_place), (*program.left_out, *missing))


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write these files, and a list of what was written; raise as `write_folder` before the first one."""
    former = _written(folder)
    foreign = [name for name in contents if not _may_replace(folder / name, former.get(name, ()))]
    foreign += [_LIST] if os.path.lexists(folder / _LIST) and not former else []
    parents = {parent for name in contents for parent in Path(name).parents if parent.name}
    foreign += [f"{parent}/" for parent in sorted(parents) if _is_no_folder(folder / parent)]
    if foreign:
        raise TfmagicError(
            f"{folder} has {', '.join(foreign)}, not from an export or changed since, and nothing was "
            "written; name another folder, or move them away"
        )
    new = {name: {hashlib.sha256(content).hexdigest()} for name, content in contents.items()}
    folder.mkdir(0o700, parents=True, exist_ok=True)
    _note(folder, {name: {*former.get(name, ()), *new.get(name, ())} for name in former | new})
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        files.replace_bytes(folder / name, content, 0o700 if name in _EXECUTABLE else 0o600)
    _note(folder, former | new)


def _may_replace(path: Path, digests: Collection[str]) -> bool:
    """Check whether nothing is at this path but what an export has written. No link is followed."""
    if not os.path.lexists(path):
        return True
    try:
        with open(files.open_regular(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() in digests
    except OSError:
        return False


def _is_no_folder(path: Path) -> bool:
    return path.is_symlink() or (path.exists() and not path.is_dir())


def _is_same(target: Path, source: str) -> bool:
    """Check whether a module stands already where it would be copied: the export is into its own folder."""
    return target.exists() and target.samefile(source)


def _written(folder: Path) -> dict[str, set[str]]:
    """Return the digests of what former exports have written, by name."""
    found: dict[str, set[str]] = {}
    for digest, name in re.findall(r"^([0-9a-f]{64})  (.+)$", files.text_of(folder / _LIST), re.MULTILINE):
        found.setdefault(name, set()).add(digest)
    return found


def _note(folder: Path, digests: Mapping[str, Collection[str]]) -> None:
    lines = [f"{digest}  {name}\n" for name, those in sorted(digests.items()) for digest in sorted(those)]
    files.replace_text(folder / _LIST, "".join(lines))


def _data(data: Mapping[str, dict[str, Any]]) -> dict[str, bytes]:
    """Return the files of the values that are no code."""
    contents = {}
    if arrays := data["data.npz"]:
        import numpy as np

        np.savez_compressed(packed := io.BytesIO(), **arrays)
        contents["data.npz"] = packed.getvalue()
    if values := data["data.pickle"]:
        contents["data.pickle"] = pickle.dumps(values)
    return contents


def _modules(program: Program) -> dict[str, str]:
    """Return the files of the user's own modules that the program imports, with the packages around them."""
    of_export = {Path(SETUP).stem}  # a former export has left one in this folder
    imported = user_modules.names_imported(program.text) - of_export
    stamps = user_modules.stamps_of(imported)
    names = {
        ".".join(parts[:n])
        for parts in (name.split(".") for name in stamps)
        for n in range(1, len(parts) + 1)
    }
    found = {}
    for name in sorted(names):
        if file := user_modules.file_of(name):
            inner = "/__init__.py" if Path(file).name == "__init__.py" else ".py"
            found[name.replace(".", "/") + inner] = file
    return found


# -- the values of the templates ---------------------------------------------------------------------


def _template(name: str) -> Template:
    return Template((TEMPLATES / name).read_text("utf-8"))


def _values(folder: Path, shape: ClusterShape, options: GivenOptions) -> dict[str, Any]:
    """Return the value of each name in the templates."""
    tasks, leader = shape.tasks, shape.leader
    types = list(dict.fromkeys(task.type for task in tasks))
    counts = {kind: sum(task.type == kind for task in tasks) for kind in types}
    word = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:40].strip("-")
    name = word if word[:1].isalpha() else f"job-{word}".strip("-")
    asked = other_than_default(values_in(ShapeOptions, shape)).changed(**options.values)
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
        "ray": version_of("ray") or _RAY,
        "run_options": " ".join(asked.words),
        "role_counts": ",".join(f"{kind}={count}" for kind, count in counts.items()),
    }
    roles, services = _template("jobset-role.yaml"), _template("compose-service.yaml")
    policy = _template("network-policy.yaml")
    spec = ClusterSpec(shape, {task: f"{task.name}:2222" for task in tasks})
    return {
        **values,
        "policy_of_job": policy.substitute(values, label="batch.kubernetes.io/job-name").rstrip(),
        "policy_of_jobset": policy.substitute(values, label="jobset.sigs.k8s.io/jobset-name").rstrip(),
        "replicated_jobs": "".join(
            roles.substitute(values, role=kind, role_count=count) for kind, count in counts.items()
        ).rstrip(),
        "services": "".join(
            services.substitute(values, task=task.name, tf_config=spec.tf_config(task)) for task in tasks
        ).rstrip(),
    }
