"""Let ``float()`` and ``int()`` take a variable of Keras 3 under a strategy, as in one process.

A callback writes ``float(model.optimizer.learning_rate)``. Keras passes that on to the variable of
TensorFlow, and one of a strategy is no number there: "float() argument must be a string or a real number, not
'MirroredVariable'". A variable of TensorFlow itself stays as it is, since it is so in plain processes, too:
the hint ``distributed-number`` says what to write. Read on Keras 3.10 to 3.16.0.dev.
"""

import functools
from collections.abc import Callable
from typing import Any

from tfmagic.task.tensorflow import scope_hint


def install() -> None:
    """Let variables of Keras be numbers in this process."""
    from keras.src.backend.common.variables import Variable

    for name, kind in (("__float__", float), ("__int__", int)):
        setattr(Variable, name, _reading(getattr(Variable, name), kind))


def _reading(original: Callable[[Any], Any], kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def convert(self: Any) -> Any:
        is_meant = scope_hint.has_strategy(self) and self.shape == ()
        return kind(self.numpy()) if is_meant else original(self)

    return convert
