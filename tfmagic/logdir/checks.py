"""What is looked at before a checkpoint is restored: whether it is whole, and all would come back.

TensorFlow restores variables that are made later when they are made. Keras 3 makes those of the layers of a
model with a `call` of its own while it only traces shapes, and what is assigned there is lost: the model then
trains from random weights, without a word (measured with Keras 3.15). Those of a Sequential and of optimizers
do come back.

Called by `tfmagic.logdir.saving`.
"""

from __future__ import annotations

import re
import sys
from typing import Any


def unbuilt_layers(checkpoint: Any, prefix: str) -> list[str]:
    """Names of Keras 3 layers that this checkpoint has variables for, and that would not get them."""
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
    """What is wrong with the checkpoint at this path, "" if nothing: all of it is read and checked."""
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        return f"is damaged: {reason_of(error)}"
    except Exception as error:
        # the reader of TensorFlow 2.21 raises a bare pybind class for some damages
        return f"is damaged: {type(error).__name__}: {reason_of(error)}"
    return ""


def reason_of(error: BaseException) -> str:
    """The end of what TensorFlow says, on one line."""
    text = str(getattr(error, "message", "") or error).partition("[Op:")[0]
    text = re.sub(r"\{\{function_node [^}]*\}\}", "", text).strip()
    return " ".join(text.split())[-300:].removeprefix("; ")
