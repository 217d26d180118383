"""Tell AutoGraph that a task's `print` is the builtin: in a tf.function it prints tensors' values.

AutoGraph knows the builtins that it replaces by identity (pyct.inspect_utils, operators.py_builtins
of TensorFlow 2.21); `tfmagic.task.streams` has put a faster `print` in their place.
"""

from __future__ import annotations

import builtins


def know_print() -> None:
    """Register the present `print` beside the original."""
    from tensorflow.python.autograph.operators import py_builtins
    from tensorflow.python.autograph.pyct import inspect_utils

    if print not in py_builtins.SUPPORTED_BUILTINS:
        py_builtins.SUPPORTED_BUILTINS += (builtins.print,)
        inspect_utils._BUILTIN_FUNCTION_IDS = {*inspect_utils._BUILTIN_FUNCTION_IDS, id(builtins.print)}
