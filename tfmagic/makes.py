"""How the task processes of a cluster are made: what the user asked for beside its shape."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfmagic import environment, origins
from tfmagic.backends.launching import Flavour
from tfmagic.errors import ClusterSpecError
from tfmagic.events import TaskBoot
from tfmagic.runs import Run
from tfmagic.spec import ClusterShape, ClusterSpec, TaskId


@dataclass(frozen=True, slots=True)
class Make:
    """See `tfmagic.Cluster` for the fields.

    Raises:
        ClusterSpecError: There is no such version of Keras.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    gpus_per_task: int | None = None
    keras: int = 3
    keras_fix: bool = True
    auto_restart: int = 0
    isolate: bool = False

    def __post_init__(self) -> None:
        if self.keras not in (2, 3):
            raise ClusterSpecError(f"keras is 2 or 3, not {self.keras!r}")

    @property
    def flavour(self) -> Flavour:
        """The launcher that its tasks are forked from."""
        return Flavour(self.keras == 2, self.isolate)

    def environ(self, task: TaskId, shape: ClusterShape) -> dict[str, str]:
        """The task's environment. Raises `ClusterSpecError` where there are too few GPUs."""
        return environment.task_environ(
            task, shape, os.environ, self.env, self.gpus_per_task, self.keras == 2
        )

    def boot(
        self, task: TaskId, attempt: int, cluster: str, spec: ClusterSpec, run: Run, heartbeat_s: float
    ) -> TaskBoot:
        """The first message to this attempt of a task."""
        return TaskBoot(
            task=task,
            attempt=attempt,
            cluster=cluster,
            shape_tasks=spec.shape.tasks,
            tf_config=spec.tf_config(task),
            environ=self.environ(task, spec.shape),
            cwd=environment.existing_folder(),
            sys_path=tuple(sys.path),
            stacks_path=str(run.stacks_path(task)),
            leader=spec.shape.leader,
            heartbeat_ms=int(heartbeat_s * 1000),
            keras_fix=self.keras_fix and self.keras == 3,
            origins=origins.find_origins(),
        )
