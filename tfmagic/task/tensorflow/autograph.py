"""What AutoGraph must be told in a task: which `print` is the builtin, and where its files may lie.

In a tf.function it lets `print` show the values of tensors. It knows the builtins that it replaces by
identity (pyct.inspect_utils, operators.py_builtins of TensorFlow 2.21); `tfmagic.task.streams` has put a
faster `print` in their place.

The code that it makes of a function it writes to the folder for temporary files, to be deleted when Python
ends (pyct.loader): a task never comes to that.
"""

from __future__ import annotations

import builtins
import os
import tempfile
from typing import Any


def know_print() -> None:
    """Register the present `print` beside the original."""
    from tensorflow.python.autograph.operators import py_builtins
    from tensorflow.python.autograph.pyct import inspect_utils

    if print not in py_builtins.SUPPORTED_BUILTINS:
        py_builtins.SUPPORTED_BUILTINS += (builtins.print,)
        inspect_utils._BUILTIN_FUNCTION_IDS = {*inspect_utils._BUILTIN_FUNCTION_IDS, id(builtins.print)}


def keep_files_in(folder: str) -> None:
    """Let it write to this folder, which is made when it is needed, and deleted with the task's process."""
    from tensorflow.python.autograph.pyct import loader

    class Beside:
        """In the place of the module `tempfile`, of which AutoGraph uses this function."""

        @staticmethod
        def NamedTemporaryFile(**options: Any) -> Any:
            os.makedirs(folder, 0o700, exist_ok=True)
            return tempfile.NamedTemporaryFile(dir=folder, **options)

    loader.tempfile = Beside
