"""The boot of a task on this host: with the folder, environment and import path that are here."""

import os
import sys
from collections.abc import Mapping, Sequence

import msgspec

from tfmagic.backends.remote import memory_files
from tfmagic.backends.remote.messages import LaunchTask, PrepareLaunch
from tfmagic.backends.remote.own_modules import Unpacked
from tfmagic.errors import ProtocolError
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Origin, TaskBoot
from tfmagic.runs.folder import RunFolder
from tfmagic.system import process_options
from tfmagic.system.own_code import OUR_FOLDER


class HostBoots:
    """Makes the boots of one cluster's tasks, and keeps the notebook's own modules.

    Args:
        gpus: The GPUs that each task may use, as CUDA_VISIBLE_DEVICES names them.
    """

    def __init__(self, run: RunFolder, gpus: Mapping[str, Sequence[str]]):
        self._run, self._gpus = run, gpus
        self._modules: tuple[bytes, Unpacked] | None = None
        self._order: PrepareLaunch | None = None
        self._error: Exception | None = None
        self._common: TaskBoot | None = None  # what the order has, for this host
        self._host_environ: dict[str, str] = {}
        self._environs: dict[frozenset[tuple[str, str]], dict[str, str]] = {}  # of tasks, by their presets

    def prepare(self, order: PrepareLaunch, error: Exception | None = None) -> None:
        """Keep what the boots that are made next have in common, or why it did not arrive whole."""
        self._order, self._common, self._error = order, None, error

    def here(self, order: LaunchTask, computing: int) -> TaskBoot:
        """Return the boot for this host, on which so many tasks compute.

        Raises:
            OSError, ProtocolError: What it has in common with others is missing.
        """
        if self._order is None or self._order.number != order.prepared:
            raise ProtocolError("what the process has in common with others did not arrive")
        if self._error is not None:
            raise self._error
        if self._common is None:  # only now: what fails is answered for the task
            self._common = self._prepared(self._order)
            self._order = msgspec.structs.replace(self._order, modules=None)  # which closes the file
        common, presets = self._common, self._presets(order.task, computing)
        key = frozenset(presets.items())  # equal environments are one, which is looked at once
        if key not in self._environs:
            self._environs[key] = {**self._host_environ, **presets, **common.environ}
        return msgspec.structs.replace(
            common,
            task=order.task,
            attempt=order.attempt,
            tf_config=common.tf_config + order.tf_config,
            environ=self._environs[key],
            stacks_path=str(self._run.stacks_path(order.task)),
        )

    def _prepared(self, order: PrepareLaunch) -> TaskBoot:
        """Return the common boot with the environment, folder and modules of this host."""
        if problem := process_options.find_problem(order.boot.options):
            raise PermissionError(problem)
        boot = self._with_modules(order)
        self._host_environ, self._environs = _host_environ(), {}
        cwd = boot.cwd if os.path.isdir(boot.cwd) else str(self._run.folder)
        return msgspec.structs.replace(boot, cwd=cwd, is_relayed=True)

    def _with_modules(self, order: PrepareLaunch) -> TaskBoot:
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


def _host_path(order: PrepareLaunch) -> list[str]:
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
    """Return this process' environment without what makes it a process of Ray's.

    How to connect to Ray stays: a task that does is a driver, of the same cluster.
    """
    connecting = ("RAY_ADDRESS", "RAY_AUTH_", "RAY_ENABLE_K8S_TOKEN_AUTH", "RAY_USE_TLS", "RAY_TLS_")
    inherited = os.environ.items()
    return {n: value for n, value in inherited if not n.startswith("RAY_") or n.startswith(connecting)}
