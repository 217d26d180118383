"""The steps of `fit` and `evaluate` of Keras 3 under a multi-worker strategy: what a repair knows of each.

    Trainer._make_function(step) ──→ stepping ──→ strategy.run ══ a replica's thread, STEPS.current ══ step
                                                                    ├─ keras_losses     share of the rows
                                                                    └─ keras_gradients  are they summed yet?

`fit` of Keras 3 runs on several workers only because of `keras_repair`, so what it computes is to be what one
process computes. In a loop of the user's own there is no step, and the other repairs change no value. Here:

1. ``steps_per_execution`` above 1 fails in a ``while_loop`` ("You must feed a value for placeholder"): the
   steps of an execution run one after the other, and callbacks are called as often. One that finds no more
   data is to change nothing, so its ops wait for them: else it counts as a step of the optimizer.
2. Keras 3.16 takes a batch outside of the graph, which knows its size then: a worker whose size changes makes
   a new graph, and waits in its collectives for ever if the others do not. Here a graph takes it.
3. ``jit_compile=True`` fails on CPUs, which have no collectives under XLA: the step runs without XLA.

Read on Keras 3.10, 3.12, 3.13, 3.15, 3.16.0.dev.
"""

import contextlib
import functools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tfmagic.task.tensorflow import graph_settings, notices, scope_hint

_JIT_NOTICE = (
    "tfmagic: the steps of {model} run without XLA (jit_compile=True): TensorFlow has no collectives for it "
    "on CPUs"
)


@dataclass(slots=True)
class TrainStep:
    """A step on one replica, while its code is traced or runs.

    Attributes:
        share: The part of the global batch's rows that this replica has, a number or a scalar float32 tensor.
        weight: The same relative to equal parts; None: all are equal.
        is_summed: Whether the gradients that the optimizer has are the sum of all replicas already.
        in_compiled_loss: Whether Keras computes the losses of `compile`.
    """

    share: Any
    weight: Any = None
    is_summed: bool = False
    in_compiled_loss: bool = False


_GLOBAL_SEED_GENERATOR = "global_seed_generator"  # Keras 3.10 has no name for it


class _Steps(threading.local):
    """The step of each thread: TensorFlow runs each replica in a thread of its own."""

    current: TrainStep | None = None


STEPS = _Steps()


@contextlib.contextmanager
def within(step: TrainStep | None) -> Iterator[None]:
    """Let this thread run a step."""
    before, STEPS.current = STEPS.current, step
    try:
        yield
    finally:
        STEPS.current = before


def is_multi_worker(strategy: Any) -> bool:
    """Check for a strategy whose replicas are in several processes that take equal steps."""
    import tensorflow as tf

    is_collective = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return is_collective and bool(strategy.extended._in_multi_worker_mode())


def replica_context() -> Any:
    """Return the context of a replica of a multi-worker strategy in which this thread is, or None."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context if context is not None and is_multi_worker(context.strategy) else None


def stepping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note each step of a multi-worker strategy; run those of an execution one after the other."""
    import tensorflow as tf

    @functools.wraps(original)
    def _make_function(self: Any, step_function: Any) -> Any:
        strategy = self.distribute_strategy
        if not is_multi_worker(strategy):
            return original(self, step_function)

        is_counted = self.steps_per_execution > 1

        def make(has_unlike_sizes: bool) -> Callable[[Any], Any]:
            @functools.wraps(step_function)
            def step(data: Any) -> Any:
                current = step_of(data, has_unlike_sizes=has_unlike_sizes)
                wait = tf.nest.flatten(data, expand_composites=True) if is_counted else []
                with (
                    within(current),
                    graph_settings.without_our_frames(),  # it is another thread
                    tf.control_dependencies(filter(tf.is_tensor, wait)),
                ):
                    outputs = tf.nest.map_structure(_as_tensor, step_function(data))
                    scope_hint.look_at_draws(self)
                return outputs if current.weight is None else _weighted(outputs, current.weight)

            with _without_xla(self, strategy):
                return original(self, step)

        return _one_by_one(self, make(False), make(True))

    return _make_function


def seeding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let a step on several replicas have this thread's generator of unseeded random numbers.

    Keras has one for each thread, and a replica's thread cannot make its variable.
    """

    @functools.wraps(original)
    def _make_function(self: Any, step_function: Any) -> Any:
        from keras.src.backend.common import global_state
        from keras.src.random import seed_generator

        if not is_multi_worker(self.distribute_strategy):
            return original(self, step_function)
        state = random.getstate()  # Keras draws its seed there
        with self.distribute_strategy.scope():
            generator = seed_generator.global_seed_generator()
        random.setstate(state)

        @functools.wraps(step_function)
        def step(data: Any) -> Any:
            global_state.set_global_attribute(_GLOBAL_SEED_GENERATOR, generator)
            return step_function(data)

        return original(self, step)

    return _make_function


@contextlib.contextmanager
def _without_xla(model: Any, strategy: Any) -> Iterator[None]:
    jit = model.jit_compile
    if jit and any("CPU" in device for device in strategy.extended.worker_devices):
        notices.print_repair(_JIT_NOTICE, model=model.name)
        model.jit_compile = False
    try:
        yield
    finally:
        model.jit_compile = jit


def _one_by_one(
    model: Any, function: Callable[[Any], Any], on_batch: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    import tensorflow as tf

    @functools.partial(tf.function, autograph=False, reduce_retracing=True)
    def in_graph(iterator: Any) -> Any:
        return function(iter([iterator.get_next()]))

    def execute(iterator: Any) -> Any:
        count = model.steps_per_execution
        if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            outputs = on_batch(iterator)  # of train_on_batch: its metrics are those of all replicas
            return model._get_metrics_result_or_logs(outputs)
        run = function if model.run_eagerly else in_graph
        if count == 1:
            return run(iterator)
        outputs = None
        model.steps_per_execution = 1
        try:
            for _ in range(count):
                outputs = run(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            if outputs is None:
                raise
        finally:
            model.steps_per_execution = count
        return outputs

    return execute


def step_of(data: Any, *, has_unlike_sizes: bool) -> TrainStep:
    """Return the step on a replica's batch.

    A batch whose size a graph knows is taken for an equal part, unless each worker gives its own
    (`train_on_batch`); otherwise the replicas add up their rows. Then a worker that makes a new graph for
    another size has the same collectives in it.
    """
    import tensorflow as tf
    from keras.src import tree

    context = tf.distribute.get_replica_context()
    replicas = context.num_replicas_in_sync
    batch = next(
        (leaf for leaf in tree.flatten(data) if tf.TensorShape(getattr(leaf, "shape", ())).rank), None
    )
    are_known = batch is not None and batch.shape[0] is not None  # always in an eager step
    if batch is None or (are_known and not has_unlike_sizes and not tf.executing_eagerly()):
        return TrainStep(1.0 / replicas)
    rows = tf.cast(tf.shape(batch)[0], tf.float32)
    share = tf.math.divide_no_nan(rows, context.all_reduce(tf.distribute.ReduceOp.SUM, rows))
    return TrainStep(share, share * replicas)


def _as_tensor(value: Any) -> Any:
    """Return a number as a tensor: eager steps of Keras before 3.13 return their metrics so."""
    import tensorflow as tf

    return tf.constant(value, tf.float32) if isinstance(value, float) else value


def _weighted(outputs: Any, weight: Any) -> Any:
    """Weigh the numbers that a step returns, of which Keras takes the mean over the replicas."""
    import tensorflow as tf

    def weigh(value: Any) -> Any:
        value = tf.convert_to_tensor(value) if tf.is_tensor(value) else value  # it can be a metric's variable
        if not tf.is_tensor(value) or not value.dtype.is_floating:
            return value
        factor = tf.cast(weight, value.dtype)
        return tf.where(factor > 0, value * factor, tf.zeros_like(value))

    return tf.nest.map_structure(weigh, outputs)
