"""What the imports of a process have found, to know later whether they would find the same.

    ImportRecord() ── imports ── end ··· time passes ··· outdated(), difference(path, cwd) → "" | why not

An import depends on the files that were loaded, on where each name was found or was not found along
`sys.path`, and on the installed packages. Modules in the folder of a notebook count only if they have a name
that was looked for.
"""

import importlib.machinery
import os
import sys
import time
from collections.abc import Iterator, Sequence

_PACKAGES = (".dist-info", ".egg-info", ".egg-link", ".pth")
_ENDINGS = tuple(importlib.machinery.all_suffixes())
_OTHER_SETTINGS = "a file of settings that Keras or matplotlib reads is another one"
_TICK_NS = 20_000_000  # Linux takes the time of a file from its last clock tick
_Found = list[tuple[str, int]]


class ImportRecord:
    """A record of the imports from now on until `end`. It is a finder that finds nothing, the last one."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns()
        self._packages = dict(_packages(sys.path, os.getcwd()))
        self._missing = {"sitecustomize", "usercustomize"}  # looked for and not found, if not loaded
        sys.meta_path.append(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Note a name that no finder has found."""
        if path is None:
            self._missing.add(name)

    def end(self) -> None:
        """Note what was loaded, and from where."""
        sys.meta_path.remove(self)
        loaded = [getattr(module, "__dict__", {}).get("__file__") for module in list(sys.modules.values())]
        files = {file for file in loaded if isinstance(file, str)} | _libraries()
        self._files = {file: _stamp(file) for file in files}
        # a time to come is that of a clock ahead of ours (NFS, a resumed machine), and tells nothing
        now_ns = time.time_ns() + _TICK_NS
        self._changed = [file for file in self._files if self._began_ns < _changed_at(file) <= now_ns]
        self._names = {name.partition(".")[0] for name in sys.modules}
        self._missing -= self._names
        self._places = self._look(sys.path, os.getcwd())
        self._cwd = os.getcwd()
        self._settings = list(_settings(self._cwd))

    def outdated(self) -> str:
        """Return what has changed on disk since the start; "" if imports would load the same."""
        changed = (file for file, stamp in self._files.items() if _stamp(file) != stamp)
        for file in (*self._changed, *changed):
            return f"{file} has changed"
        if dict(_packages(list(self._packages), "/")) != self._packages:
            return "a package was installed or removed"
        if list(_settings(self._cwd)) != self._settings:
            return _OTHER_SETTINGS
        return ""

    def difference(self, path: Sequence[str], cwd: str) -> str:
        """Return what another process with this `sys.path` and folder would import otherwise, or ""."""
        if self._look(path, cwd) != self._places:
            return "sys.path, or the current folder, has other modules of the same names"
        if dict(_packages(path, cwd)) != self._packages:
            return "sys.path has other packages"
        if list(_settings(cwd)) != self._settings:
            return _OTHER_SETTINGS
        return ""

    def _look(self, path: Sequence[str], cwd: str) -> dict[str, str]:
        """Return where each name that was looked for is found first, and the state of archives."""
        found: dict[str, str] = {}
        for folder in _folders(path, cwd):
            if os.path.isdir(folder):
                with os.scandir(folder) as entries:
                    counted = {
                        entry.name.partition(".")[0]: entry.path for entry in entries if self._counts(entry)
                    }
                found = {**counted, **found}
            else:
                found[folder] = str(_stamp(folder))
        return found

    def _counts(self, entry: os.DirEntry[str]) -> bool:
        name = entry.name.partition(".")[0]
        if name in self._missing and entry.is_dir():  # a package without code
            return True
        if name not in self._names and name not in self._missing:
            return False
        return entry.name.endswith(_ENDINGS) or os.path.exists(os.path.join(entry.path, "__init__.py"))


def _folders(path: Sequence[str], cwd: str) -> Iterator[str]:
    """Yield the entries of a `sys.path`, each once, without those that do not exist."""
    for folder in dict.fromkeys(os.path.normpath(os.path.join(cwd, entry)) for entry in path):
        if os.path.exists(folder):
            yield folder


def _packages(path: Sequence[str], cwd: str) -> Iterator[tuple[str, _Found]]:
    """Yield the folders of a path that have installed packages, with the time of each package."""
    for folder in _folders(path, cwd):
        if os.path.isdir(folder):
            with os.scandir(folder) as entries:
                found = [(e.name, e.stat().st_mtime_ns) for e in entries if e.name.endswith(_PACKAGES)]
            if found:
                yield folder, sorted(found)


def _libraries() -> set[str]:
    """Return the shared libraries of this process: conda updates one without a `.dist-info`."""
    with open("/proc/self/maps", errors="surrogateescape") as file:
        places = [line.rstrip("\n").split(maxsplit=5) for line in file if "x" in line.split(maxsplit=2)[1]]
    return {place[5] for place in places if len(place) == 6 and place[5].startswith("/")}


def _stamp(file: str) -> tuple[int, int]:
    """Return the time and the size of a file; zeros if it is missing."""
    try:
        found = os.stat(file)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _changed_at(file: str) -> int:
    """Return when a file was last changed, by the clock of the system; 0 if it is missing."""
    try:
        return os.stat(file).st_ctime_ns
    except OSError:
        return 0


def _settings(cwd: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the files of settings that Keras reads when imported, and matplotlib, which it imports."""
    home = os.path.expanduser("~")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    for folder, name in (
        (os.environ.get("KERAS_HOME") or os.path.join(home, ".keras"), "keras.json"),
        (os.environ.get("MPLCONFIGDIR") or os.path.join(config, "matplotlib"), "matplotlibrc"),
        (cwd, "matplotlibrc"),
    ):
        file = os.path.join(folder, name)
        if (stamp := _stamp(file)) != (0, 0):
            yield file, stamp
