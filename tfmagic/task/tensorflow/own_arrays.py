"""Let the user's arrays stay as they are, where a Python function gives them to a data set.

A `tf.numpy_function`, and with it `from_generator`, generators and `PyDataset` in `fit`, shares the memory of
the arrays that it returns. A strategy of several workers takes a slice of each batch, and when that is the
last use of the memory, TensorFlow writes the result of an op of the step there: the user's labels change, and
the next epoch trains other ones. A batch of one process is held by its caller, so nothing is written there.
Read on TensorFlow 2.21."""

import functools
from collections.abc import Callable
from typing import Any

from tfmagic.task.tensorflow import collectives


def copying(original: Callable[..., Any]) -> Callable[..., Any]:
    """Copy the arrays that a Python function returns to TensorFlow, in a process that has peers."""

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        import numpy as np

        found = original(self, *args, **kwargs)
        if not collectives.have_peers():
            return found
        if isinstance(found, list):
            return [np.array(one) if isinstance(one, np.ndarray) else one for one in found]
        return np.array(found) if isinstance(found, np.ndarray) else found

    return __call__
