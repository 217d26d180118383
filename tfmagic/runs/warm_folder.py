"""The folder of templates: processes that have imported TensorFlow, from which launchers are forked.

    <state>/warm/<owner>/owner.json        for whose kernels they work, and how long they stay without one
    <state>/warm/<owner>/<digest>          the socket of a template; with .new as long as it imports
    <state>/warm/<owner>/<digest>.json     its process

<owner> is the pid and the start time of a process, or `ASKED`: ``tfmagic warm`` was called. The digest stands
for an environment; `tfmagic.backends.templates` computes it. Everything is accessible to this user alone.
"""

import contextlib
import json
import os
import shutil
import stat
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from tfmagic.errors import LaunchError
from tfmagic.runs.folder import check_private, state_dir
from tfmagic.system import files
from tfmagic.system.process_identity import Identity, from_json, identify, this_boot

ASKED = "asked"
NEW = ".new"
_NOTE, _OWNER = ".json", "owner.json"


def warm_folder(owner: Identity | None, base: Path | None = None) -> Path:
    """Return the folder of the templates of an owner; of ``tfmagic warm`` if it is None."""
    name = ASKED if owner is None else f"{owner.pid}-{owner.start}"
    return (base or state_dir()) / "warm" / f"{name}-{zlib.crc32(this_boot().encode()):08x}"


def make(folder: Path) -> None:
    """Create a folder of templates.

    Raises:
        LaunchError: Another user could replace it.
        OSError: It cannot be created.
    """
    base = folder.parent.parent
    check_private(base)
    for part in (*reversed(base.parents), base, folder.parent, folder):
        part.mkdir(mode=0o700, exist_ok=True)
    check_private(base)  # another user can have been faster
    for part in (folder.parent, folder):
        info = os.lstat(part)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            raise LaunchError(f"{part} is not a folder of this user alone")


def announce(owner: Identity, idle_s: float, base: Path | None = None) -> None:
    """Let kernels use templates that end with this owner, or after that time without a kernel.

    Raises as `make`.
    """
    tidy(base or state_dir())
    folder = warm_folder(owner, base)
    make(folder)
    files.replace_text(folder / _OWNER, json.dumps({**owner.as_json(), "idle_s": idle_s}), 0o600)


def withdraw(owner: Identity, base: Path | None = None) -> None:
    """Undo `announce`. The templates that run end with the owner."""
    shutil.rmtree(warm_folder(owner, base), ignore_errors=True)


def announced_idle_s(owner: Identity, base: Path | None = None) -> float:
    """Return the time that `announce` was given; 0 if nothing was announced."""
    announced = _read(warm_folder(owner, base) / _OWNER)
    return float(str(announced["idle_s"])) if announced and from_json(announced) == owner else 0.0


def _read(path: Path) -> dict[str, object]:
    """Return the content of a file of this folder; empty where it is missing or damaged."""
    with contextlib.suppress(ValueError):
        content = json.loads(files.text_of(path))
        if isinstance(content, dict) and {"pid", "start", "boot"} <= content.keys():
            return content
    return {}


class Place:
    """The files of one template.

    Args:
        path: Its socket, when it has imported TensorFlow.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._is_removed = False

    def write_note(self, lasts_s: float) -> None:
        """Note this process: `find` lists it. It ends with its owner if it lasts for 0 s."""
        me = identify(os.getpid())
        assert me is not None
        until = time.time() + lasts_s if lasts_s else 0.0
        note = {**me.as_json(), "python": sys.executable, "started": time.time(), "until": until}
        files.replace_text(f"{self.path}{_NOTE}", json.dumps(note), 0o600)

    def is_noted(self) -> bool:
        """Check whether others find this process: the note can have been deleted or damaged, with its folder.

        A place that another process has taken since is left to it.
        """
        note = _read(Path(f"{self.path}{_NOTE}"))
        is_own = bool(note) and from_json(note) == identify(os.getpid())
        self._is_removed |= bool(note) and not is_own
        return is_own

    def open(self) -> None:
        """Let kernels find a template that answers at once."""
        os.rename(f"{self.path}{NEW}", self.path)

    def remove(self) -> None:
        """Let no kernel find it any more."""
        if not self._is_removed:
            self._is_removed = True
            for ending in ("", NEW, _NOTE):
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.path}{ending}")

    def remove_all(self) -> None:
        """Delete the folder, since its owner has ended."""
        self._is_removed = True
        shutil.rmtree(self.path.parent, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Warm:
    """A template that runs.

    Attributes:
        owner: The process with which it ends; None if ``tfmagic warm`` has started it.
        started, until: In seconds since the epoch; `until` is 0 where it has an owner.
    """

    place: Place
    process: Identity
    owner: Identity | None
    python: str
    started: float
    until: float

    def __str__(self) -> str:
        if self.owner is None:
            until = time.strftime("until %H:%M", time.localtime(self.until))
        else:
            gone = ", which is gone" if self.is_left_over else ""
            until = f"for the kernels of pid {self.owner.pid}{gone}"
        return f"TensorFlow is imported in pid {self.process.pid} ({self.python}), {until}"

    @property
    def is_left_over(self) -> bool:
        """Check whether its owner is gone."""
        return self.owner is not None and not self.owner.alive

    def end(self) -> bool:
        """End it; return whether it has run. Launchers that it has forked go on with their kernels."""
        killed = self.process.kill()
        self.place.remove()
        return killed


def find(base: Path) -> list[Warm]:
    """Return the templates of this user that run on this machine."""
    found = []
    for path in sorted((base / "warm").glob(f"*/*{_NOTE}")):
        note, owner = _read(path), _read(path.parent / _OWNER)
        if path.name == _OWNER or not note or not _is_own(path):
            continue
        process = from_json(note)
        if process.alive:
            place = Place(str(path).removesuffix(_NOTE))
            times = (float(str(note.get(name, 0))) for name in ("started", "until"))
            owned = from_json(owner) if owner else None
            found.append(Warm(place, process, owned, str(note.get("python", "")), *times))
    return found


def _is_own(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:  # it was deleted just now
        return False


def tidy(base: Path) -> None:
    """End templates whose owner is gone, and delete the folders of such owners."""
    for warm in find(base):
        if warm.is_left_over:
            warm.end()
    for path in (base / "warm").glob(f"*/{_OWNER}"):
        owner = _read(path)
        if owner and not (process := from_json(owner)).is_elsewhere and not process.alive:
            shutil.rmtree(path.parent, ignore_errors=True)
