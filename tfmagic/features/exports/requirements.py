"""Find the packages that a program needs, and write them as requirements.txt."""

from __future__ import annotations

import json
import os
import re
from importlib import metadata
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.version import Version

from tfmagic.features.exports.program import Program
from tfmagic.serialization import user_modules

_WITHOUT_IMPORT = {  # packages that are used though no code of the program imports them
    "tensorboard": r"\bTensorBoard\(|\btf\.summary\.|\bcreate_file_writer\(",
    "tf_keras": r"TF_USE_LEGACY_KERAS",
    "h5py": r"\btfmagic\.hdf5\b|\.h5\b",
    "pyarrow": r"_parquet\(|_feather\(",
    "openpyxl": r"_excel\(",
    "tables": r"_hdf\(",
    "pydot": r"\bplot_model\(|\bmodel_to_dot\(",
    "pillow": r"\bload_img\(|\bimage_dataset_from_directory\(|\barray_to_img\(|\bsave_img\(",
    "s3fs": r"s3://",
    "gcsfs": r"gs://",
}
_HEAD = "# in this folder:  pip install -r requirements.txt\n"


def requirements(program: Program, wheel: str) -> tuple[str, list[str]]:
    """Return the text, and what it cannot name: packages that no index has.

    Args:
        wheel: The file in the folder that has tfmagic.
    """
    data = program.names.data["data.pickle"].values()
    modules = user_modules.names_imported(program.text)
    used = {*modules, *(str(type(value).__module__) for value in data), "tensorflow", "keras"}
    used -= user_modules.stamps_of(modules).keys()  # those are copied
    packages = metadata.packages_distributions()
    names = {name for module in used for name in packages.get(module.partition(".")[0], ())}
    names |= {name for name, pattern in _WITHOUT_IMPORT.items() if re.search(pattern, program.text)}
    lines, missing = [f"./{wheel}\n"] * program.needs_tfmagic, []
    for name in sorted(names - {"tfmagic"}, key=str.lower):
        if (version := version_of(name)) and (place := _folder_of(name)):
            missing.append(f"the package {name} {version}, which was installed from {place}")
        elif version:
            lines.append(_line(name, version))
    return _HEAD + "".join(lines), missing


def version_of(package: str) -> str:
    """Return the version of an installed package, "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _origin(package: str) -> dict[str, Any]:
    """Return from where a package was installed, as its direct_url.json has it; nothing for an index."""
    return json.loads(metadata.distribution(package).read_text("direct_url.json") or "{}")


def _folder_of(package: str) -> str:
    """Return the folder or file of this machine from which a package was installed, or "".

    conda's packages name a folder of the machine that has built them.
    """
    url = urlsplit(str(_origin(package).get("url", "")))
    path = unquote(url.path)
    return path if url.scheme == "file" and os.path.exists(path) else ""


def _line(package: str, version: str) -> str:
    """Return the line of a package: of its repository or archive, if it was installed from there."""
    origin = _origin(package)
    if vcs := origin.get("vcs_info"):
        return f"{package} @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}\n"
    if "archive_info" in origin and not origin["url"].startswith("file:"):
        return f"{package} @ {origin['url']}\n"
    return f"{package}=={Version(version).public}\n"  # an index has no local version, such as 2.5.1+cu121
