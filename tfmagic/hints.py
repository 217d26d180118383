"""Known traps of multi-worker TensorFlow: how they show, and one line of advice.

To add one: a pattern that is searched in ``Type: message`` of the failure and of what led to it, the
advice, and a test in tests/integration/test_hints.py that provokes it for real.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tfmagic.events import PackedError


@dataclass(frozen=True, slots=True)
class Hint:
    """One trap."""

    pattern: re.Pattern[str]
    advice: str


def _hint(pattern: str, advice: str) -> Hint:
    return Hint(re.compile(pattern, re.DOTALL), advice)


HINTS = (
    _hint(
        r"value \(PerReplica:|Invalid reduction dimension 0 for input with 0 dimensions",
        "Keras 3 cannot fit under a multi-worker strategy (keras#20585). Leave --no-keras-fix out, use "
        "--keras 2, or write the training loop with strategy.run.",
    ),
    _hint(
        r"pass this dataset to ClusterCoordinator\.create_per_worker_dataset",
        "Keras 3 cannot fit under ParameterServerStrategy. Write the loop with ClusterCoordinator.schedule, "
        "or use --keras 2.",
    ),
    _hint(
        r"Collective ops must be configured at program startup",
        "Create the strategy before any other TensorFlow op: in the first cell after %tfcluster restart.",
    ),
    _hint(
        r"Could not start gRPC server|[Aa]ddress already in use",
        "Another server has this port. A task has one server at most, and with --ps tfmagic has started it "
        "already; else something outside took the port, and %tfcluster stop and start give new ones.",
    ),
    _hint(
        r"BrokenBarrierError: strategy \d+: .*(has ended the cell|does not run this cell|did not come)",
        "A multi-worker strategy starts when all its tasks create it: let the cell run on every one of them "
        "(--on all), without an if around the strategy.",
    ),
    _hint(
        r"different incarnation",
        "A peer was restarted alone, and the survivors still speak to its former self. Give all tasks new "
        "processes: %tfcluster restart",
    ),
    _hint(
        r"Collective ops is aborted by|stopped sending heartbeats|CoordinationService/Heartbeat",
        "The collectives of this strategy are gone for good. Create the strategy again on every task, or "
        "give them new processes with %tfcluster restart; that is what TensorFlow calls a restart.",
    ),
    _hint(
        r"unshardable source dataset|AutoShardPolicy\.FILE|auto_shard.*not enough files|"
        r"(fewer|less|not enough) (input )?files than",
        "The dataset cannot be divided by files. Set options.experimental_distribute.auto_shard_policy = "
        "tf.data.experimental.AutoShardPolicy.DATA, or write at least one file for each worker.",
    ),
    _hint(
        r"Please use `?tf\.keras\.losses\.Reduction\.(SUM|NONE)|losses\.Reduction\.AUTO",
        "Under a strategy a loss is not averaged by itself. Give it reduction=SUM or NONE and divide by the "
        "global batch size: tf.nn.compute_average_loss(losses, global_batch_size=...).",
    ),
    _hint(
        r"not created (under|in) the (distribution )?strategy scope|"
        r"under the scope for tf\.distribute\.Strategy .* created under|different strategy scope",
        "Create model, optimizer and metrics inside one `with strategy.scope():`.",
    ),
    _hint(
        r"requires being in (cross-)?replica context|must not be called when you are in a `?strategy\.scope|"
        r"need to be inside .with distribution_strategy\.scope|in cross-replica context|`run` inside",
        "strategy.run, reduce and experimental_distribute_dataset belong outside the function that "
        "strategy.run calls; inside it use tf.distribute.get_replica_context().all_reduce.",
    ),
    _hint(
        r"unable to lock file|errno = 11|Unable to (synchronously )?(open|create) file",
        "HDF5 lets one process write a file. Write one file for each task, with the name of "
        "tfmagic.current_task() in it, or let only the chief write.",
    ),
    _hint(
        r"DataLossError.*(truncated|corrupted) record|(truncated|corrupted) record at \d+",
        "This TFRecord file was read before its writer closed it, or two tasks wrote it. Give each task a "
        "file of its own, close the writer, and meet at tfmagic.barrier() before reading.",
    ),
    _hint(
        r"must (have at least one|specify)[^.]*'?(ps|parameter server)|no.*'ps'.*cluster|"
        r"cluster (spec )?must (have|contain)[^.]*ps",
        "ParameterServerStrategy needs parameter servers and a coordinator: %tfcluster restart --workers 2 "
        "--ps 1",
    ),
    _hint(
        r"OOM when allocating|ResourceExhaustedError|MemoryError",
        "All tasks of this machine share its memory. Take a smaller batch for each task, or fewer tasks.",
    ),
    _hint(
        r"TBNotInstalledError|TensorBoard is not installed",
        "tf.summary needs the package tensorboard:  %pip install tensorboard , then %tfcluster restart.",
    ),
)


def find_hint(error: PackedError) -> str:
    """The advice for the first known trap in the failure or in what led to it; "" for none."""
    text = "\n".join(f"{name}: {message}" for name, message in error.chain)
    return next((hint.advice for hint in HINTS if hint.pattern.search(text)), "")
