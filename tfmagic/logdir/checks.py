"""Checks of what users save and restore. Called by `tfmagic.logdir.saving`.

Before a restore: TensorFlow restores variables that are made later when they are made. But Keras 3 makes the
variables of a layer inside a model with its own `call` while it only traces shapes, and loses the values
assigned there: the model then trains from random weights, without a message (measured with Keras 3.15). Those
of a Sequential model and of optimizers are restored.
"""

import contextlib
import re
import sys
from typing import Any


def as_step(step: Any) -> int:
    """Return a step as a number. A tensor or variable, such as an optimizer's iterations, is a step too."""
    value = step.numpy() if hasattr(step, "numpy") else step  # int() takes no variable of a strategy
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if 0 <= (number := int(value)) == value:
            return number
    raise ValueError(f"a step is a whole number of 0 or more, not {step!r}")


def as_checkpoint(item: Any) -> Any:
    """Return a tf.train.Checkpoint of the object. Raise `TypeError` if it cannot be saved in one."""
    import tensorflow as tf

    if isinstance(item, tf.train.Checkpoint):
        return item
    parts = item if isinstance(item, dict) else {"model": item}
    for name, part in parts.items():
        if not isinstance(part, tf.__internal__.tracking.Trackable):
            named = f"{name!r} of the dict" if isinstance(item, dict) else "it"
            raise TypeError(
                "checkpoints() takes a Keras model or optimizer, a tf.Module, a tf.Variable, a "
                f"tf.train.Checkpoint, or a dict of these by name; {named} is a {type(part).__name__}"
            )
    if not parts or not all(isinstance(name, str) for name in parts):
        raise TypeError("checkpoints() takes a dict of trackable objects by name, and this one names none")
    return tf.train.Checkpoint(**parts)


def unbuilt_layers(checkpoint: Any, prefix: str) -> list[str]:
    """Return the names of Keras 3 layers whose variables are in this checkpoint and would not be restored."""
    keras = sys.modules.get("keras")
    if keras is None or not keras.__version__.startswith("3"):
        return []
    import tensorflow as tf

    view = tf.train.CheckpointView(prefix)
    matched: dict[int, Any] = view.match(checkpoint)
    found: dict[str, None] = {}
    waiting, seen = [(0, False)], set()  # nodes, and whether they are in a model with a call of its own
    while waiting:
        node, is_inside = step = waiting.pop()
        if step in seen:
            continue
        seen.add(step)
        thing, children = matched[node], view.children(node).values()
        if isinstance(thing, keras.layers.Layer):
            if is_inside and not thing.built and not matched.keys() >= set(children):
                found[thing.name] = None
            is_inside = is_inside or not isinstance(thing, keras.Sequential)
        waiting += [(child, is_inside) for child in children if child in matched]
    return sorted(found)


def damage_of(prefix: str) -> str:
    """Read and check the whole checkpoint at this path. Return the damage, "" if there is none."""
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except Exception as error:  # the reader of TensorFlow 2.21 raises a bare pybind class for some damages
        is_plain = isinstance(error, (tf.errors.OpError, IndexError, ValueError, RuntimeError))
        return f"is damaged: {'' if is_plain else f'{type(error).__name__}: '}{reason_of(error)}"
    return ""


def reason_of(error: BaseException) -> str:
    """Return the end of TensorFlow's message, on one line."""
    text = str(getattr(error, "message", "") or error).partition("[Op:")[0]
    text = re.sub(r"\{\{function_node [^}]*\}\}", "", text).strip()
    return " ".join(text.split())[-300:].removeprefix("; ")
