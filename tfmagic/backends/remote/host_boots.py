"""The boot of a task on this host: with the folder, environment and import path that are here."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tfmagic.backends.remote import memory_files
from tfmagic.backends.remote.messages import LaunchTask
from tfmagic.backends.remote.own_modules import Unpacked
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Origin, TaskBoot
from tfmagic.runs.folder import RunFolder


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
        boot = order.boot
        here: Callable[[str], str] = _unchanged
        if order.modules is not None:
            here = self._unpacked(memory_files.read(order.modules))
        path = (*map(here, order.before), *sys.path, *map(here, order.after))
        origins = tuple(_origin_at(origin, here) for origin in boot.origins)
        script = boot.script and msgspec.structs.replace(boot.script, file=here(boot.script.file))
        return msgspec.structs.replace(
            boot,
            sys_path=tuple(dict.fromkeys(path)),
            origins=tuple(o for o in origins if not o.file or os.path.isfile(o.file)),
            script=script,
        )

    def _unpacked(self, archive: memoryview) -> Callable[[str], str]:
        content = bytes(archive)
        if self._modules is None or self._modules[0] != content:
            self._modules = content, Unpacked(content, self._run.folder)
        return self._modules[1].here

    def _presets(self, task: TaskId, computing: int) -> dict[str, str]:
        presets = {}
        if self._gpus:  # "" for tasks that compute nothing
            presets["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus.get(task.name, ()))
        if computing > 1:
            presets["TF_NUM_INTRAOP_THREADS"] = str(max((os.cpu_count() or 1) // computing, 1))
        return presets


def _unchanged(path: str) -> str:
    return path


def _origin_at(origin: Origin, here: Callable[[str], str]) -> Origin:
    search = None if origin.search is None else tuple(map(here, origin.search))
    file = here(origin.file) if origin.file else ""
    return msgspec.structs.replace(origin, file=file, search=search)


def _host_environ() -> dict[str, str]:
    """Return this process' environment without what is Ray's own, such as its token."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
