"""Clean up a task process between two tests that share it: names, environment, folder, paths, seeds.

Called on the tasks by `tfmagic.frontends.cluster_lease`. What a test has set in modules, and what
TensorFlow has built, stays. A test that needs more gets new processes, in a tenth of a second.
"""

import os
import random
import sys
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Before:
    names: frozenset[str]
    environ: dict[str, str]
    folder: str
    path: tuple[str, ...]
    threads: frozenset[int | None]


_before: _Before | None = None


def remember() -> None:
    """Note the state of this process before the first test."""
    global _before
    _before = _Before(
        frozenset(vars(sys.modules["__main__"])),
        dict(os.environ),
        os.getcwd(),
        tuple(sys.path),
        frozenset(t.ident for t in threading.enumerate()),
    )


def tidy() -> str:
    """Restore the process. Return why it cannot be reused, or ""."""
    from tfmagic.task.tensorflow import collectives

    if _before is None:
        return "its process is not the one that was started"
    if collectives.are_stopped():
        return "its collectives were stopped"
    threads = [t.name for t in threading.enumerate() if t.ident not in _before.threads and not t.daemon]
    if threads:
        return f"a thread is left: {threads[0]}"
    _restore(_before)
    _forget_in_tensorflow()
    return ""


def _restore(before: _Before) -> None:
    namespace = vars(sys.modules["__main__"])
    for name in set(namespace) - before.names:
        del namespace[name]
    os.environ.clear()
    os.environ.update(before.environ)
    os.chdir(before.folder)
    sys.path[:] = before.path


def _forget_in_tensorflow() -> None:
    """Reset what a test sets in TensorFlow and breaks the next one: seeds, Keras' names, eager functions."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    random.seed()
    sys.modules["numpy"].random.seed()
    if context._context is not None and context._context._initialized:
        context._context._set_global_seed(None)
    tf.config.run_functions_eagerly(False)
    tf.keras.backend.clear_session()
