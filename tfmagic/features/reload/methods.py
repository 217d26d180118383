"""The method `Cluster.reload`."""

from collections.abc import Iterable, Mapping
from typing import Any

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.errors import TfmagicError
from tfmagic.features.reload.on_tasks import reload_modules
from tfmagic.protocol.cluster_spec import Selector
from tfmagic.serialization import user_modules


class Reloading(ClusterBase):
    """The method that reloads modules."""

    def reload(self, *modules: str, on: Selector = "all") -> dict[str, tuple[str, ...]]:
        """Reload modules, with their submodules, on the tasks that have imported them.

        Functions and classes of the old version are changed in place, as by IPython's ``%autoreload``, and
        names that were imported from it are bound again. Other variables stay.

        Returns:
            The modules that each task has reloaded, in their order, by task name.

        Raises:
            TfmagicError: A task has another file than this machine, as on a host of Ray's that gets no files.
            LaunchError: The modules are too large for hosts of Ray; nothing was reloaded.
            Exception: What a module raises. The task goes on with the old version of that module.
        """
        _check_names(modules)
        with self._lock:
            sources = self._running_cluster().processes.send_changes(modules)
        found = self._ask_tasks(on, reload_modules, modules, sources)
        with self._lock:
            self._running_cluster().cells.note_reloaded(found)
        _check_reloaded(found)
        return {task: tuple(digests) for task, digests in found.items()}


def _check_names(modules: Iterable[Any]) -> None:
    """Raise TypeError or ValueError for what is no name of a module."""
    for name in modules:
        if not isinstance(name, str):
            raise TypeError(f"reload() takes the names of modules, as text, not {type(name).__qualname__}")
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(
                f"{name!r} is no name of a module; reload() takes names as in an import statement"
            )


def _check_reloaded(found: Mapping[str, Mapping[str, str]]) -> None:
    """Raise TfmagicError if tasks have read another file than that of this machine.

    Args:
        found: A digest of the file of each module that was reloaded, by name, by name of the task.
    """
    ours = {name: user_modules.digest_of(name) for digests in found.values() for name in digests}
    old = {name for digests in found.values() for name, digest in digests.items() if digest != ours[name]}
    tasks = [task for task, digests in found.items() if any(digests[name] != ours[name] for name in digests)]
    if old:
        raise TfmagicError(
            f"{', '.join(tasks)} reloaded {', '.join(sorted(old))} from other files than this machine has: "
            "their hosts have modules of this name without tfmagic, which sends none "
            "(max_module_bytes, .tfmagicignore)"
        )
