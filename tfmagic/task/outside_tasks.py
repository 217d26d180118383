"""Let a program that something else than tfmagic has started use what tfmagic gives its tasks.

A program of `%tfcluster export` calls `join`, if it needs one of these: `tfmagic.current_task`,
`tfmagic.barrier`, and the repair of `fit` of Keras 3 on several workers.
"""

import itertools
import os

from tfmagic.errors import TfmagicError
from tfmagic.protocol import task_context
from tfmagic.protocol.task_context import TaskServices

_LONGEST_WAIT_S = 7 * 86400.0  # TensorFlow's barrier takes no "for ever"


def join() -> None:
    """Make this process the task that TF_CONFIG names.

    Raises:
        TfmagicError: TF_CONFIG names no task.
    """
    task = task_context.task_of_environment()
    if task is None:
        raise TfmagicError("TF_CONFIG names no task; set it before join()")
    numbers = itertools.count()
    task_context.install(task, TaskServices(lambda timeout: _meet(next(numbers), timeout)))
    if os.environ.get("TF_USE_LEGACY_KERAS") not in ("1", "True", "true"):
        _repair_keras()


def _repair_keras() -> None:
    import keras

    from tfmagic.task.tensorflow import keras_repair, notices, patches

    notices.be_outside_tasks()
    if keras.backend.backend() == "tensorflow" and patches.TABLE.fits("fit under multi-worker strategies"):
        keras_repair.install()


def _meet(number: int, timeout: float | None) -> int:
    """Meet the other tasks at the barrier that TensorFlow's coordination service has.

    A multi-worker strategy starts the service. The places of the tasks are not known: it returns 0.
    """
    from tensorflow.python.eager import context

    try:
        context.context().wait_at_barrier(f"tfmagic-{number}", int((timeout or _LONGEST_WAIT_S) * 1000))
    except Exception as error:  # of TensorFlow, each with its own class
        raise TfmagicError(
            "barrier() outside of tfmagic needs a strategy that was made before, such as "
            f"MultiWorkerMirroredStrategy, and all of its tasks: {error}"
        ) from error
    return 0
