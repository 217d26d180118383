"""A pool: one process for each task of a cluster spec, which stays and runs one function after another."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.errors import TaskDied
from tfmagic.failures.deaths import NEXT_STEP
from tfmagic.multi_process_runner import setup
from tfmagic.multi_process_runner.processes import MultiProcessRunnerResult, UnexpectedSubprocessExitError
from tfmagic.multi_process_runner.setup import ClusterSpecDict
from tfmagic.serialization.main_script import find_script, refuse_while_loading
from tfmagic.supervisor.state import Phase
from tfmagic.task.tensorflow.testing_setup import prepare_plain


class MultiProcessPoolRunner:
    """Processes for a cluster spec that stay, and run one function after another.

    The first `run` starts them. A pickled pool arrives as a new one.

    Args:
        cluster_spec: Addresses by task type.
        initializer: Called in each process when it starts.
        share_gpu: As for `MultiProcessRunner`.

    Raises:
        ValueError: There are several chiefs.
    """

    def __init__(
        self,
        cluster_spec: ClusterSpecDict,
        initializer: Callable[[], Any] | None = None,
        share_gpu: bool = True,
    ):
        setup.check_spec(cluster_spec)
        self._cluster_spec, self._initializer, self._share_gpu = cluster_spec, initializer, share_gpu
        self._cluster: Cluster | None = None
        self._attempts: dict[str, int] = {}  # by task name, of the processes that are set up

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._cluster_spec, self._initializer, self._share_gpu)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter might be ending
            self.shutdown()

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` in every process.

        Returns:
            The returned values, without None, in the order of the tasks.

        Raises:
            BaseException: The exception of a process, unchanged. The processes stay.
            UnexpectedSubprocessExitError: A process died. The next call starts a new one.
            tfmagic.CaptureError: `fn`, an argument or a result cannot travel.
        """
        cluster = self._running_cluster()
        call = functools.partial(fn, **kwargs) if kwargs else fn
        try:
            results = cluster.run(call, *(args or ()))
        except TaskDied as error:
            how = str(error).partition(NEXT_STEP)[0].rstrip()
            message = f"Subprocess {error.task} exited with exit code {error.exit_code}. {how}\n"
            message += "The next call starts a new process."
            raise UnexpectedSubprocessExitError(message, MultiProcessRunnerResult([], [])) from error
        return [value for value in results.values() if value is not None]

    def shutdown(self) -> None:
        """End the processes. The next `run` starts new ones."""
        cluster, self._cluster, self._attempts = self._cluster, None, {}
        if cluster is not None:
            cluster.stop()

    def _running_cluster(self) -> Cluster:
        """Return the cluster, with every process alive and set up."""
        refuse_while_loading()
        if self._cluster is None:
            gpus = {} if self._share_gpu else setup.divide_gpus(self._cluster_spec)
            settings = TaskSettings(purpose="plain", task_env=gpus, script=find_script(setup.is_installed()))
            spec = self._cluster_spec
            self._cluster = Cluster(name="pool", cluster_spec=spec, task_settings=settings, **_QUICK)
        cluster = self._cluster
        if cluster.running and self._attempts == _ready_attempts(cluster):  # nearly always
            return cluster
        cluster.start()
        cluster.revive()
        attempts = cluster.attempts()
        new = [name for name, attempt in attempts.items() if self._attempts.get(name) != attempt]
        if new:
            on = ",".join(new)
            prepare = setup.prepare_installed if setup.is_installed() else prepare_plain
            cluster.run(prepare, setup.present_setup(), on=on)
            if self._initializer is not None:
                cluster.run(self._initializer, on=on)
            self._attempts = attempts
        return cluster


def _ready_attempts(cluster: Cluster) -> dict[str, int]:
    """Return the attempts of the tasks that wait for a call, by name."""
    tasks = {} if cluster.state is None else cluster.state.tasks
    return {task.name: seen.attempt for task, seen in tasks.items() if seen.phase is Phase.READY}


# a failure is raised within two seconds, also when other tasks are stuck in native code
_QUICK: dict[str, Any] = {
    "failure_grace_s": 0.5,
    "interrupt_grace_s": 0.3,
    "cancel_grace_s": 0.3,
    "abort_grace_s": 0.4,
}
