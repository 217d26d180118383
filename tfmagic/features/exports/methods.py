"""`Cluster.export`: the cells that have run, as a program for other systems."""

import os
from collections.abc import Collection
from pathlib import Path

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.launch.checks import check
from tfmagic.clusters.launch.given_options import other_than_default
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.features.exports.folder import Export, check_folder, write_folder
from tfmagic.features.exports.kernel import FEATURE
from tfmagic.features.exports.program import Setup, choose, write_program
from tfmagic.protocol.cluster_spec import ClusterShape, Shape


class Exports(ClusterBase):
    """The methods of a cluster that write files for other systems."""

    task_settings: TaskSettings

    def export(self, folder: str | os.PathLike[str], *, cells: Collection[int] | None = None) -> Export:
        """Write the cells that have run as ``main.py``, with files that start it elsewhere.

        The other files are for this machine, Slurm, Docker Compose, and Kubernetes: an indexed Job, a JobSet,
        a TrainJob of Kubeflow, and a RayJob. What the cells read from the notebook is written as it is now;
        what looks like a password, key or token is not: main.py reads it from its environment.

        Args:
            folder: It is made; a former export there is replaced.
            cells: The notebook's numbers of cells; by default all since the start that have succeeded.

        Raises:
            TfmagicError: There is no such cell, the cells need what a program cannot have, or the folder has
                files that no export has written.
        """
        running = self._started()
        target = Path(os.fspath(check("folder", folder)))
        check_folder(target)
        chosen, others = choose(FEATURE.ran_on(running.supervisor), cells)
        settings = self.task_settings
        environ = {**settings.env, **({"TF_USE_LEGACY_KERAS": "1"} if settings.keras == 2 else {})}
        numbers = ", ".join(str(cell.prompt) for cell in chosen)
        title = f"cells {numbers} of cluster {self.name} ({running.shape})."
        repairs = settings.keras == 3 and settings.keras_fix
        shape = _counted(running.shape)
        setup = Setup(title, shape, environ, repairs)
        program = write_program(chosen, others, self._main(), setup)
        own = {name: getattr(settings, name) for name in settings.of_process.__struct_fields__}
        return write_folder(target, program, shape, other_than_default(own))


def _counted(shape: Shape) -> ClusterShape:
    """Return a shape without addresses: those of other systems are other ones."""
    if isinstance(shape, ClusterShape):
        return shape
    types = [task.type for task in shape.tasks]
    return ClusterShape(
        types.count("worker"), types.count("ps"), "chief" in types, "evaluator" in types, adds_chief=False
    )
