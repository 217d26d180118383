"""The boot of a task on this host: with the folder, environment and import path that are here."""

import os
import sys
from collections.abc import Mapping, Sequence

import msgspec

from tfmagic.backends.remote import memory_files
from tfmagic.backends.remote.messages import LaunchTask
from tfmagic.backends.remote.own_modules import Unpacked
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Origin, TaskBoot
from tfmagic.runs.folder import RunFolder
from tfmagic.system.own_code import OUR_FOLDER


class HostBoots:
    """Makes the boots of one cluster's tasks, and keeps the notebook's own modules.

    Args:
        gpus: The GPUs that each task may use, as CUDA_VISIBLE_DEVICES names them.
    """

    def __init__(self, run: RunFolder, gpus: Mapping[str, Sequence[str]]):
        self._run, self._gpus = run, gpus
        self._modules: tuple[bytes, Unpacked] | None = None

    def here(self, order: LaunchTask, computing: int) -> TaskBoot:
        """Return the boot for this host, on which so many tasks compute. Raises OSError."""
        boot = self._with_modules(order)
        return msgspec.structs.replace(
            boot,
            environ={**_host_environ(), **self._presets(boot.task, computing), **boot.environ},
            stacks_path=str(self._run.stacks_path(boot.task)),
            cwd=boot.cwd if os.path.isdir(boot.cwd) else str(self._run.folder),
            is_relayed=True,
        )

    def _with_modules(self, order: LaunchTask) -> TaskBoot:
        """Return the boot with this host's import path, and the notebook's own modules on it."""
        boot, path, origins, script = order.boot, _host_path(order), order.boot.origins, order.boot.script
        if order.modules is not None:
            copies = self._unpacked(memory_files.read(order.modules))
            before, after = (
                [f"{copies.folder}{folder}" for folder in part] for part in (order.before, order.after)
            )
            path, origins = [*before, *path, *after], tuple(_origin_at(origin, copies) for origin in origins)
            script = script and msgspec.structs.replace(script, file=copies.script(script.file))
        return msgspec.structs.replace(
            boot,
            sys_path=tuple(dict.fromkeys(path)),
            origins=tuple(o for o in origins if not o.file or os.path.isfile(o.file)),
            script=script,
        )

    def _unpacked(self, archive: memoryview) -> Unpacked:
        content = bytes(archive)
        if self._modules is None or self._modules[0] != content:
            self._modules = content, Unpacked(content, self._run.folder)
        return self._modules[1]

    def _presets(self, task: TaskId, computing: int) -> dict[str, str]:
        presets = {}
        if self._gpus:  # "" for tasks that compute nothing
            presets["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus.get(task.name, ()))
        if computing > 1:
            presets["TF_NUM_INTRAOP_THREADS"] = str(max((os.cpu_count() or 1) // computing, 1))
        return presets


def _host_path(order: LaunchTask) -> list[str]:
    """Return this host's import path without the folders of which a task has a copy.

    On the notebook's machine Ray puts them there; tasks on other machines would not find what is new in them.
    """
    copied = {*order.before, *order.after} - {os.path.dirname(OUR_FOLDER.rstrip(os.sep))}
    return [folder for folder in sys.path if os.path.abspath(folder) not in copied]


def _origin_at(origin: Origin, copies: Unpacked) -> Origin:
    search = None if origin.search is None else tuple(map(copies.copy_of, origin.search))
    file = copies.copy_of(origin.file) if origin.file else ""
    return msgspec.structs.replace(origin, file=file, search=search)


def _host_environ() -> dict[str, str]:
    """Return this process' environment without what is Ray's own, such as its token."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
