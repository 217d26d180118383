"""Which files of the notebook's machine hosts get: what the notebook can import, without what is installed.

    folder of the import path
      ├─ module.py, module.cpython-*.so     sent
      ├─ package/  with __init__.py         sent, with all files below: they are its data
      ├─ folder/   with Python files        sent without its data, unless it is a project of its own
      ├─ folder/   without                  sent only if this process has imported it
      └─ tests/    of another project        sent only if this process has imported it

`.tfmagicignore`, by gitignore's rules, leaves out more. Hidden files, keys and virtual environments never go.
These rules hold for a link and for what it leads to; a link out of the folder of the import path is left out.
"""

import fnmatch
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path
from typing import Any

from tfmagic.errors import LaunchError
from tfmagic.system.advice import Step
from tfmagic.system.own_code import OUR_FOLDER

IGNORE_FILE = ".tfmagicignore"
Stamp = tuple[str, int, int]
"""Path, time and size of a file."""
OWN_FOLDER = "Nothing was started or ended. Put the notebook into a folder of its own with what it needs"

_INSTALLED = frozenset(("site-packages", "dist-packages", "lib-dynload"))
_NEVER_BELOW = frozenset(("node_modules", "__pycache__", *_INSTALLED))
_NEVER = (  # in small letters
    "*.pem*", "*.key", "*.key.*", "*.p12*", "*.pfx*", "*.jks", "*.keystore", "*.ppk", "*.kdb", "*.kdbx",
    "*.gpg", "*.ovpn", "*.tfstate*", "*.tfvars", "*.env", "*.env.*", "*credential*", "*secret*", "*id_rsa*",
    "*id_dsa*", "*id_ecdsa*", "*id_ed25519*",
)  # fmt: skip
_NEVER_DATA = (  # names that modules have, too
    "token", "token.*", "*[-_.]token", "*[-_.]token.*", "*passw*", "*kubeconfig*", "*service[-_]account*",
    "*api[-_]key*", "*apikey*", "*netrc*", "*pgpass*", "*htpasswd*",
)  # fmt: skip
_PRIVATE_KEY = b"PRIVATE KEY-----"  # in the first line, whatever the file is called
_SECRET = "perhaps a secret"
NO_TEXT = "its name is no UTF-8"
_ENVIRONMENT = frozenset(("pyvenv.cfg", "conda-meta"))
_PROJECT = frozenset((".git", "pyproject.toml", "setup.py", "setup.cfg"))
_TESTS = ("tests", "test")
_MODULE = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)
_MAX_FOLDERS = 10_000  # a second's walk; a notebook in the root folder has more

_Rules = tuple[tuple[str, Any], ...]  # the ignore files that apply: folder and patterns, the innermost last
_NO_RULES: _Rules = ()
_NOTHING_ABOVE = frozenset[tuple[int, int]]()


@dataclass(slots=True)
class Found:
    """What a search has found.

    Attributes:
        code: The modules.
        data: The other files of packages.
        left_out: Files and folders that stay here, and why.
    """

    code: dict[str, Stamp] = field(default_factory=dict)
    data: dict[str, Stamp] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def is_own(path: str) -> bool:
    """Check that a path is not one of what is installed: hosts have that, or another build of it."""
    stdlib = sysconfig.get_path("stdlib")
    return not (_INSTALLED & set(Path(path).parts) or f"{path}{os.sep}".startswith(f"{stdlib}{os.sep}"))


def stamp_of(file: str) -> Stamp | None:
    """Return the stamp of a file; None where there is none."""
    try:
        known = os.stat(file)
    except OSError:
        return None
    return file, known.st_mtime_ns, known.st_size


def is_text(path: str) -> bool:
    """Check that a path can be sent as text; Linux allows other names."""
    return path.isascii() or os.fsencode(path) == path.encode("utf-8", "replace")


def printable(path: str) -> str:
    """Return a path that can be shown, with ? for what is no text."""
    return path.encode("utf-8", "replace").decode()


def search(root: str, found: Found) -> None:
    """Find what is to be sent of a folder of the import path.

    Raises:
        LaunchError: It has too many folders, or an ignore file that cannot be read.
    """
    count, imported, real_root = 0, _imported_folders(), os.path.realpath(root)
    tests = _tests_of(root)
    waiting = [(root, False, _rules_above(root), _NOTHING_ABOVE)]
    while waiting:
        folder, in_package, rules, above = waiting.pop()
        try:
            known, entries = os.stat(folder), {entry.name: entry for entry in os.scandir(folder)}
        except OSError:
            continue
        if (this := (known.st_dev, known.st_ino)) in above:  # a link to a folder above
            continue
        if (count := count + 1) > _MAX_FOLDERS:
            raise LaunchError(
                f"{root} has more than {_MAX_FOLDERS} folders below it, and hosts of Ray get what the "
                f"notebook can import. {OWN_FOLDER}, or name folders in {IGNORE_FILE}, or send nothing:  "
                f"{Step('configure', max_module_bytes=0)}"
            )
        in_package = in_package or (folder != root and "__init__.py" in entries)
        if folder in tests:
            found.left_out[folder] = "tests of a project that is installed from its folder"
        elif folder != root and not in_package and (why := _why_not(folder, entries.keys(), imported)):
            found.left_out[folder] = why
        elif folder == root or not entries.keys() & _ENVIRONMENT:
            rules, above = _with_rules(rules, folder), above | {this}
            taken = _take(
                entries, in_package, rules, _Place(root, real_root, os.path.realpath(folder)), found
            )
            waiting += [(below, in_package, rules, above) for below in taken]


def _tests_of(root: str) -> set[str]:
    """Return the folders of tests that stay here: not imported, of another project than the notebook's."""
    if os.path.realpath(root) == os.path.realpath(os.curdir) or not _PROJECT & set(_names_in(root)):
        return set()
    folders = {os.path.join(root, name) for name in _TESTS}
    files = {str(getattr(m, "__dict__", {}).get("__file__")) for m in list(sys.modules.values())}
    return {f for f in folders if not any(file.startswith(f"{f}{os.sep}") for file in files)}


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _why_not(folder: str, names: Any, imported: set[str]) -> str:
    """Return why a folder that is no package is left out, or ""."""
    if os.path.realpath(folder) in imported:
        return ""
    if names & _PROJECT:
        return "a project of its own"
    return "" if any(name.endswith(_MODULE) for name in names) else "no package"


@dataclass(frozen=True, slots=True)
class _Place:
    """The folder of the import path, as it is named and without links, and a folder in it without links."""

    name: str
    root: str
    folder: str


def _take(
    entries: dict[str, os.DirEntry[str]], in_package: bool, rules: _Rules, place: _Place, found: Found
) -> Iterator[str]:
    """Note the files of a folder that are sent, and yield the folders in it to be searched."""
    for name, entry in entries.items():
        is_folder, is_module = entry.is_dir(), name.endswith(_MODULE)
        if is_folder:
            is_wanted = name not in _NEVER_BELOW and (in_package or name.isidentifier())
            is_wanted &= f"{entry.path}{os.sep}" != OUR_FOLDER  # which hosts get separately
        else:
            is_wanted = entry.is_file() and (in_package or is_module)
        if not is_wanted or name.startswith(".") or name.endswith(".pyc"):
            continue
        if not is_text(entry.path):
            found.left_out[printable(entry.path)] = NO_TEXT
        elif why := _why_not_sent(entry, is_folder, rules, place):
            found.left_out[entry.path] = why
        elif is_folder:
            yield entry.path
        elif (stamp := stamp_of(entry.path)) is not None:
            (found.code if is_module else found.data)[entry.path] = stamp


def _why_not_sent(entry: os.DirEntry[str], is_folder: bool, rules: _Rules, place: _Place) -> str:
    """Return why a file or folder stays here, by its own path or by that to which a link leads; or ""."""
    real, names = os.path.join(place.folder, entry.name), [entry.name]
    if entry.is_symlink():
        real = os.path.realpath(entry.path)
    if (inner := os.path.relpath(real, place.root)) != os.path.relpath(entry.path, place.name):
        if inner.split(os.sep)[0] == os.pardir:
            return f"a link out of the folder, to {real}"
        names += [name for name in inner.split(os.sep) if name != os.curdir]
        if any(name.startswith(".") for name in names):
            return f"a link to {real}"
        if _is_ignored(real, is_folder, _rules_above(real)):
            return IGNORE_FILE
    if any(_is_secret(name, is_data=not (is_folder or name.endswith(_MODULE))) for name in names):
        return _SECRET
    if _is_ignored(entry.path, is_folder, rules):
        return IGNORE_FILE
    return _SECRET if not (is_folder or real.endswith(_MODULE)) and _has_private_key(real) else ""


def _is_secret(name: str, is_data: bool) -> bool:
    patterns = (*_NEVER, *_NEVER_DATA) if is_data else _NEVER
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in patterns)


def _has_private_key(file: str) -> bool:
    try:
        with open(file, "rb") as content:
            return _PRIVATE_KEY in content.readline(200)
    except OSError:
        return False


def _imported_folders() -> set[str]:
    """Return the folders of the packages without `__init__.py` that this process has imported."""
    found: set[str] = set()
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})  # asked directly: some modules load more when asked
        if names.get("__file__") is None and "__path__" in names:
            found |= {os.path.realpath(str(folder)) for folder in names["__path__"]}
    return found


def _rules_above(path: str) -> _Rules:
    """Return the rules of the folders above a path."""
    rules = _NO_RULES
    for parent in reversed(Path(path).parents):
        rules = _with_rules(rules, str(parent))
    return rules


def _with_rules(rules: _Rules, folder: str) -> _Rules:
    try:
        text = Path(folder, IGNORE_FILE).read_text("utf-8-sig")
        import pathspec

        patterns = pathspec.GitIgnoreSpec.from_lines(text.splitlines())
    except FileNotFoundError:
        if not os.path.lexists(os.path.join(folder, IGNORE_FILE)):
            return rules
        raise LaunchError(f"{folder}/{IGNORE_FILE} is a link to a file that is missing") from None
    except ImportError:
        raise LaunchError(f"{folder}/{IGNORE_FILE} needs a library:  pip install pathspec") from None
    except (OSError, ValueError) as error:  # nothing may be sent that it would leave out
        raise LaunchError(f"{folder}/{IGNORE_FILE} cannot be read: {error}") from None
    return (*rules, (folder, patterns))


def _is_ignored(path: str, is_folder: bool, rules: _Rules) -> bool:
    """Check a path by the innermost ignore file that names it."""
    for folder, patterns in reversed(rules):
        relative = os.path.relpath(path, folder) + ("/" if is_folder else "")
        if (decided := patterns.check_file(relative).include) is not None:
            return bool(decided)
    return False
