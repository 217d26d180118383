"""Make rows for the table of patches: each says for which versions of its package it was tried."""

from functools import partial

from tfmagic.system.patches import Patch

TRAINER = "keras.src.backend.tensorflow.trainer"
tensorflow_row = partial(Patch, versions_tried="tensorflow>=2.16,<2.23")
keras_row = partial(Patch, versions_tried="keras>=3.10,<3.17")
tf_keras_row = partial(Patch, versions_tried="tf_keras>=2.16")


def in_both(what: str, target: str, why: str, without_it: str, wrap: str) -> tuple[Patch, ...]:
    """Return the rows of Keras 3 and of tf_keras for a strategy's tasks.

    `target` is written with ``{trainer}``, the class with `fit`, and ``{callbacks}``, the module of its list.
    """
    return tuple(
        row(
            f"{what} of {package}",
            (target.format(trainer=trainer, callbacks=callbacks),),
            why,
            without_it,
            wrap,
            only=f"strategies in {package}",
        )
        for package, row, trainer, callbacks in (
            (
                "keras",
                keras_row,
                f"{TRAINER}:TensorFlowTrainer|Trainer",
                "keras.src.callbacks.callback_list",
            ),
            ("tf_keras", tf_keras_row, "tf_keras.src.engine.training:Model", "tf_keras.src.callbacks"),
        )
    )
