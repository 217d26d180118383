"""Log folders and checkpoints for code that runs on several tasks: one writer, or a folder for each task.

    task_logdir(base)      the chief gets base, the others a folder that is deleted with their process
    checkpoints(x, base)   all tasks save, the chief keeps; a restart takes the newest complete one
    tensorboard_dir(base)  base/worker-1: a folder for each task's event files
    mirror(local, url)     a local folder, copied to s3://, hdfs://, memory:// ... as it grows

Called by users' code in a cell, in a script, and without a cluster. Its import loads neither TensorFlow nor
fsspec.
"""

from tfmagic.system import linux_only

linux_only.check()

from tfmagic.logdir.errors import CheckpointError, DriverError, LogdirError
from tfmagic.logdir.mirrors import Mirror, mirror
from tfmagic.logdir.places import TaskLogdir, task_logdir, tensorboard_dir
from tfmagic.logdir.saving import Checkpoints, checkpoints

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "DriverError",
    "LogdirError",
    "Mirror",
    "TaskLogdir",
    "checkpoints",
    "mirror",
    "task_logdir",
    "tensorboard_dir",
]
