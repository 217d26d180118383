"""Settings of TensorFlow in each task: its log, AutoGraph's `print` and its files, and the stacks in errors.

Read in TensorFlow 2.21. AutoGraph recognizes the builtins that it replaces by identity
(pyct.inspect_utils, operators.py_builtins). It writes the code that it makes of a function to the folder for
temporary files, to be deleted when Python ends (pyct.loader), which never happens in a task.
"""

import builtins
import logging
import os
import sys
import tempfile
import types
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tfmagic.system import own_code


class _EachOnce(logging.Filter):
    """Passes each message about a collective once.

    TensorFlow limits some of them to ten, but "Collective all_reduce tensors: ..." comes with each collective
    of each trace: with every variable of a model in `fit`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._passed: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.INFO or not str(record.msg).startswith("Collective "):
            return True
        message = record.getMessage()
        is_new = message not in self._passed
        self._passed.add(message)
        return is_new


def log_as_interactive() -> None:
    """Log as TensorFlow does in an interactive process: messages from INFO on, to standard output.

    TensorFlow decides that when it is imported (tf_logging.get_logger), which the launcher has done as a
    script. What an imported module has set stays.
    """
    logger = logging.getLogger("tensorflow")
    if logger.level != logging.NOTSET or not logger.handlers:
        return
    logger.setLevel(logging.INFO)
    logger.addFilter(_EachOnce())
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.setStream(sys.stdout)


def know_print() -> None:
    """Let the `print` of `tfmagic.task.streams` show the values of tensors in a tf.function."""
    from tensorflow.python.autograph.operators import py_builtins
    from tensorflow.python.autograph.pyct import inspect_utils

    if print not in py_builtins.SUPPORTED_BUILTINS:
        py_builtins.SUPPORTED_BUILTINS += (builtins.print,)
        inspect_utils._BUILTIN_FUNCTION_IDS = {*inspect_utils._BUILTIN_FUNCTION_IDS, id(builtins.print)}


def keep_files_in(folder: str) -> None:
    """Let AutoGraph write to this folder, which is made when needed, and deleted with the task's process."""
    from tensorflow.python.autograph.pyct import loader

    def in_folder(**options: Any) -> Any:
        os.makedirs(folder, 0o700, exist_ok=True)
        return tempfile.NamedTemporaryFile(dir=folder, **options)

    loader.tempfile = types.SimpleNamespace(NamedTemporaryFile=in_folder)  # all that it uses of the module


def hide_our_frames() -> None:
    """Leave our frames out of the stacks in TensorFlow's errors ("Detected at node ... defined at")."""
    _our_frames().__enter__()  # for the main thread, and for good


def without_our_frames() -> AbstractContextManager[Any]:
    """Do the same in this thread, where it can be done."""
    from tfmagic.task.tensorflow import patches

    return _our_frames() if patches.TABLE.fits(patches.STACKS) else nullcontext()


def _our_frames() -> Any:
    from tensorflow.python.util import tf_stack

    ours = own_code.files_on_tasks()

    class OurFrames(tf_stack.StackTraceFilter):  # TensorFlow is untyped
        def get_filtered_filenames(self) -> Any:
            return ours

    return OurFrames()
