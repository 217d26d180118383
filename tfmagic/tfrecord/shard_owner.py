"""The place of a task among the tasks that read and write data: chief and workers.

`ShardWriter` and `read_shards` use it to decide which shards belong to the task that calls them.
"""

import contextlib
import operator
from typing import Any

from tfmagic.errors import ClusterSpecError
from tfmagic.protocol import task_context
from tfmagic.protocol.task_context import TaskContext
from tfmagic.tfrecord.errors import ShardError

Member = TaskContext | tuple[int, int] | None

_DATA_TYPES = ("chief", "worker")  # in this order; parameter servers and evaluators take no part


def place_of(task: Member) -> tuple[int, int]:
    """Return (index, count) of a task.

    None is the task that runs this code: the task of a tfmagic cluster, else that of TF_CONFIG, else (0, 1).
    Raise ShardError if the numbers are invalid, or the task is a parameter server or an evaluator.
    """
    if task is None:
        task = current() or (0, 1)
    if isinstance(task, TaskContext):
        if task.type not in _DATA_TYPES:
            raise ShardError(
                f"{task.name} takes no part in reading and writing data: chief and workers do. If it is "
                "meant, give its part with task=(index, count)"
            )
        sizes = [len(task.cluster_spec.get(name, ())) for name in _DATA_TYPES]
        return sum(sizes[: _DATA_TYPES.index(task.type)]) + task.index, sum(sizes)
    try:
        index, count = map(whole, task)
    except (TypeError, ValueError):
        index = count = None
    if index is None or count is None or not 0 <= index < count <= 99_999:
        raise ShardError(f"task is a task or (index, count) with 0 <= index < count, not {task!r}")
    return index, count


def current() -> TaskContext | None:
    """Return the task that runs this code, of a tfmagic cluster or of TF_CONFIG; None if there is none.

    Raise ShardError if TF_CONFIG names no task of its cluster.
    """
    if task_context.is_task():
        return task_context.current_task()
    try:
        me = task_context.task_of_environment()
    except ClusterSpecError as error:
        raise ShardError(f"{error}(index, count)") from error
    if me is not None and me.type in _DATA_TYPES and me.index >= len(me.cluster_spec.get(me.type, ())):
        why = f"there is no {me.name} in its cluster; give task=(index, count)"
        raise ShardError(f"TF_CONFIG does not say which task this is: {why}")
    return me


def whole(value: Any) -> int | None:
    """Return a whole number, also of a numpy type; None for anything else."""
    with contextlib.suppress(TypeError):
        return None if isinstance(value, bool) else operator.index(value)
    return None


def at_least(least: int, name: str, value: Any) -> int:
    """Return the whole number of an argument. Raise ShardError if it is none, or too small."""
    if (number := whole(value)) is None or number < least:
        raise ShardError(f"{name} is a whole number of {least} or more, not {value!r}")
    return number
