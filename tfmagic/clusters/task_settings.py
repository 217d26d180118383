"""How the task processes of a cluster are made: everything that the user can choose beside its shape."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tfmagic.backends.launcher_client import Flavour
from tfmagic.clusters import environment
from tfmagic.errors import ClusterSpecError
from tfmagic.protocol import module_origins
from tfmagic.protocol.cluster_spec import GivenSpec, Shape, Spec, TaskId
from tfmagic.protocol.commands import MainScript, TaskBoot
from tfmagic.runs.folder import RunFolder
from tfmagic.system import advice

Purpose = Literal["cells", "script", "plain"]


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings of task processes; `tfmagic.Cluster` describes the first six.

    Attributes:
        purpose: Tasks for ``cells`` get all presets and repairs; with ``script``, the script starts its
            servers itself; a ``plain`` task has an unchanged TensorFlow, and all GPUs.
        task_env: Further environment of single tasks.
        script: The caller's script, if tasks import it.

    Raises:
        ClusterSpecError: There is no such version of Keras, or `env` is no environment.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    gpus_per_task: int | None = None
    keras: int = 3
    keras_fix: bool = True
    auto_restart: int = 0
    isolate: bool = False
    purpose: Purpose = "cells"
    task_env: Mapping[TaskId, Mapping[str, str]] = field(default_factory=dict)
    script: MainScript | None = None

    def __post_init__(self) -> None:
        if self.keras not in (2, 3):
            raise ClusterSpecError(f"keras is 2 or 3, not {self.keras!r}")
        for name, value in self.env.items():
            if not (isinstance(name, str) and isinstance(value, str)):
                raise ClusterSpecError(f"env is {{text: text}}, not {name!r}: {value!r}")
            if not name or "=" in name or "\0" in name + value:
                raise ClusterSpecError(
                    f"the environment cannot hold {name!r}: {value!r}; a name has no '=', and nothing a NUL"
                )

    @property
    def flavour(self) -> Flavour:
        """The kind of launcher from which the tasks are forked."""
        return Flavour(self.keras == 2, self.isolate)

    def environ(self, task: TaskId, shape: Shape) -> dict[str, str]:
        """Return the task's environment. Raise `ClusterSpecError` if there are too few GPUs."""
        env = {**self.env, **self.task_env.get(task, {})}
        if self.purpose == "plain":
            return environment.plain_environ(os.environ, env)
        environ = environment.task_environ(task, shape, os.environ, env, self.gpus_per_task, self.keras == 2)
        if self.purpose == "cells":
            environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        return environ

    def boot(
        self, task: TaskId, attempt: int, cluster: str, spec: Spec, run: RunFolder, heartbeat_s: float
    ) -> TaskBoot:
        """Return the first message to this attempt of a task."""
        shape = spec if isinstance(spec, GivenSpec) else spec.shape
        # with its key a task reaches the managers (`multiprocessing.Manager`) that this process has made
        processes = sys.modules.get("multiprocessing.process")
        return TaskBoot(
            task=task,
            attempt=attempt,
            cluster=cluster,
            shape_tasks=shape.tasks,
            tf_config=spec.tf_config(task),
            environ=self.environ(task, shape),
            cwd=environment.existing_folder(),
            sys_path=tuple(module_origins.import_path()),
            stacks_path=str(run.stacks_path(task)),
            leader=shape.leader,
            heartbeat_ms=int(heartbeat_s * 1000),
            keras_fix=self.keras_fix and self.keras == 3 and self.purpose != "plain",
            loopback_only=not isinstance(spec, GivenSpec) or spec.is_local,
            starts_servers=self.purpose == "cells",
            is_plain=self.purpose == "plain",
            authkey=bytes(processes.current_process().authkey) if processes is not None else b"",
            origins=module_origins.find_origins(),
            script=self.script,
            in_notebook=advice.is_notebook(),
        )
