"""Clean up a task process between two tests that share it: names, environment, folder, paths, seeds.

Called on the tasks by `tfmagic.frontends.cluster_lease`. What a test has set in modules, and what
TensorFlow has built, stays. A test that needs more gets new processes, in a tenth of a second.
"""

import os
import random
import sys
import threading
from collections.abc import Callable

_restore: Callable[[], None] | None = None
_threads: frozenset[int | None] = frozenset()  # before the first test


def remember() -> None:
    """Note the state of this process before the first test."""
    global _restore, _threads
    namespace = vars(sys.modules["__main__"])
    names, environ, folder, path = frozenset(namespace), dict(os.environ), os.getcwd(), tuple(sys.path)
    _threads = frozenset(t.ident for t in threading.enumerate())

    def restore() -> None:
        for name in set(namespace) - names:
            del namespace[name]
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(folder)
        sys.path[:] = path

    _restore = restore


def tidy() -> str:
    """Restore the process. Return why it cannot be reused, or ""."""
    from tfmagic.task.tensorflow import collectives

    if _restore is None:
        return "its process is not the one that was started"
    if collectives.are_stopped():
        return "its collectives were stopped"
    threads = [t.name for t in threading.enumerate() if t.ident not in _threads and not t.daemon]
    if threads:
        return f"a thread is left: {threads[0]}"
    _restore()
    _forget_in_tensorflow()
    return ""


def _forget_in_tensorflow() -> None:
    """Reset what a test sets in TensorFlow and breaks the next one: seeds, Keras' names, eager functions."""
    import tensorflow as tf

    random.seed()
    sys.modules["numpy"].random.seed()
    tf.random.set_seed(None)
    tf.config.run_functions_eagerly(False)
    tf.keras.backend.clear_session()
