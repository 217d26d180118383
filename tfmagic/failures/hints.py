"""Known traps of multi-worker TensorFlow: a name, a pattern that recognises each, and an advice of one line.

`find_hint` searches the patterns in ``Type: message`` of a failure and of each exception that led to it. The
first match wins, so specific patterns stand before general ones. To add a hint, add a line here and a test
in tests/failures/test_hints.py that provokes the trap for real.
"""

import re

from tfmagic.protocol.payload import PackedError
from tfmagic.runs.given_hints import Hint
from tfmagic.system.advice import Step

_STEPS = {verb: Step(verb) for verb in ("revive", "restart", "begin with it")} | {
    "install": Step("install", "tensorboard"),
    "two workers and a server": Step("reshape", workers=2, ps=1),
}
HINTS: tuple[tuple[str, str, str], ...] = (  # (name, pattern, advice; `<...>` is a step of `_STEPS`)
    (
        "keras3-strategy",
        r"Attempt to convert a value \(PerReplica:|"
        r"Invalid reduction dimension 0 for input with 0 dimensions\. .*\(div_no_nan",
        "Keras 3 by itself cannot train under a multi-worker strategy (keras#20585): leave --no-keras-fix "
        "out, or use --keras 2. In a loop of your own, give what a distributed dataset yields to "
        "strategy.run.",
    ),
    (
        "per-replica-value",
        r"using a PerReplica object while not inside a replica context|'PerReplica' object has no attribute|"
        r"unsupported operand type\(s\) for .*'PerReplica'|not 'PerReplica'|"
        r"passed as a keyword argument: PerReplica:",
        "What a distributed dataset yields holds a part for each replica: give it to strategy.run, or take "
        "the parts with strategy.experimental_local_results(value).",
    ),
    (
        "distributed-number",
        r"^TypeError: (float|int|complex)\(\) .*argument must be .*, not '\w*Variable'",
        "A variable of a strategy is no plain number: take its value with variable.numpy().",
    ),
    (
        "keras3-parameter-server",
        r"pass this dataset to ClusterCoordinator\.create_per_worker_dataset|"
        r"Cannot get the cardinality of a dataset that is not built|"
        r"Unrecognized data type: x=<tensorflow\.python\.distribute\.coordinator\.values\.|"
        r"keras\.utils(' has no attribute 'experimental'|\.experimental'$)",
        "Keras 3 cannot fit under ParameterServerStrategy: use --keras 2 with steps_per_epoch, or write the "
        "loop with ClusterCoordinator.schedule and take the data from its create_per_worker_dataset. "
        "DatasetCreator is of Keras 2.",
    ),
    (
        "keras2-only",
        r"^AttributeError: .* has no attribute '(get_scaled_loss|get_unscaled_gradients|SidecarEvaluator)'|"
        r"^AttributeError: module '[\w.]*keras\.layers' has no attribute 'experimental'|"
        r"got an unexpected keyword argument 'experimental_aggregate_gradients'",
        "This is of Keras 2: use --keras 2. In Keras 3, optimizer.scale_loss(loss) scales a loss, and apply "
        "unscales the gradients; synchronized=True is an argument of BatchNormalization; an evaluator is a "
        "loop of your own over tf.train.latest_checkpoint.",
    ),
    (
        "no-estimator",
        r"^AttributeError: module '[\w.]*(tensorflow|compat\.v1|keras)' has no attribute 'estimator'|"
        r"^ModuleNotFoundError: No module named 'tensorflow[\w.]*estimator",
        "TensorFlow has no Estimators since 2.16. Write the model in Keras and train it with fit under a "
        "strategy: MultiWorkerMirroredStrategy for train_and_evaluate on workers, ParameterServerStrategy "
        "with --keras 2 or a loop of your own.",
    ),
    (
        "late-strategy",
        r"Collective ops must be configured at program startup",
        "Make look-up tables and queues after the strategy, or delete them before it: they belong to a "
        "TensorFlow context that a first strategy replaces.",
    ),
    (
        "server-twice",
        r"^(UnknownError|RuntimeError): Could not start gRPC server",
        "Another server has this port. A task has one tf.distribute.Server at most: its strategy or, in cells"
        " with --ps, tfmagic has started it already, and ParameterServerStrategy is made on the chief alone. "
        "With `tfmagic run --ps` the chief is a task of its own, which runs the script too: a script that "
        "takes worker-0 for the chief needs --no-chief. Servers of tf.data take port=0. With addresses of a "
        "program's own (a ClusterSpec) all tasks ask for one port: leave cluster_resolver out.",
    ),
    (
        "port-in-use",
        r"^OSError: \[Errno \d+\] Address already in use",
        "The tasks share one machine and its ports: let the system choose with port 0, or add "
        "tfmagic.current_task().index to the number.",
    ),
    (
        "peer-ended",
        r"Collective ops is aborted by: .*(has|have) ended the cell",
        "Each task has to make as many steps as the others. Let all stop at once: decide from a value that "
        "was reduced over all of them, never from one task's own, and give each as many batches (take, or "
        "repeat and steps_per_epoch). Then create the strategy again.",
    ),
    (
        "peer-restarted",
        r"different incarnation|stopped sending heartbeats|"
        r"at different places: .*(first strategy \d+.* at further|further strategy \d+.* at first) strategy|"
        r"Collective ops is aborted by: .*failed to connect to all addresses",
        "A task of this strategy died or was restarted alone, and the others still speak to its former "
        "process. <revive> gives all of them new addresses and keeps their variables: then make the strategy "
        "again. <restart> gives new processes to all",
    ),
    (
        "strategy-alone",
        r"^BrokenBarrierError: (first|further) strategy \d+: .*(has ended the cell|does not run this cell)|"
        r"^BrokenBarrierError: .*wait for each other at different places: .* at (first|further) strategy \d+",
        "A multi-worker strategy starts when every worker creates it: run the cell on all of them, without "
        "an if around the strategy and with the same barriers before it. In a cluster with --ps, create "
        "ParameterServerStrategy instead.",
    ),
    (
        "no-parameter-server-role",
        r"^ValueError: There is no id for task_type 'ps'",
        "MultiWorkerMirroredStrategy has no parameter servers: start a cluster without --ps, or create "
        "ParameterServerStrategy on the chief.",
    ),
    (
        "unequal-variables",
        r"CollectiveBcast(Send|Recv).*(Shape mismatch in the collective instance|Collective instance \d+ "
        r"expected type 1 and data_type \d+ but got type 1)",
        "The tasks made variables of unlike shape or dtype. Under a strategy a variable has one shape on all "
        "tasks: make what decides it (a vocabulary, the number of classes) once for all of them, not from "
        "each task's own rows; then create the strategy again.",
    ),
    (
        "unequal-collective",
        r"Shape mismatch in the collective instance|Collective instance \d+ expected type \d+ and data_type",
        "The tasks brought tensors of unlike shape or dtype to one collective. Let every task run the same "
        "steps on batches of one size, as with batch(n, drop_remainder=True), or reduce them to one shape "
        "first; then create the strategy again.",
    ),
    (
        "empty-part",
        r"must have the same size and shape\.\s+Input \d: \[0,|Input \d: .* != input \d: \[0,|"
        r"Biases must be 1D: \[0,|Cannot compute the m\w+ of an empty tensor",
        "A task got no row of a batch, and this operation does not take that: TensorFlow divides 4 rows over "
        "3 workers as 2, 2 and 0. Give batches a multiple of the number of workers, and "
        "batch(n, drop_remainder=True).",
    ),
    (
        "parameter-server-gone",
        r"^(AbortedError|UnavailableError): .*(Unable to find a context_id|failed to connect to all "
        r"addresses).*remote target /job:ps/",
        "The process of a parameter server is gone, and the variables on it with it. After <restart> create "
        "the strategy and its variables again, and restore a checkpoint.",
    ),
    (
        "steps-unknown",
        r"^OutOfRangeError: .*End of sequence.*remote target /job:worker/|"
        r"DatasetCreator`, `steps_per_epoch`, .* must be provided",
        "Under ParameterServerStrategy it is not known beforehand which worker takes how many batches: let "
        "the dataset repeat(), and give the number of steps (steps_per_epoch in fit).",
    ),
    (
        "function-cancelled",
        r"^CancelledError: (The corresponding function is cancelled\. Please reschedule|"
        r".*RemoteExecuteNode::RunAsync \[Op:__inference_)",
        "A function that was scheduled earlier failed, schedule() or join() raised its error, and TensorFlow "
        "cancelled those that waited or ran. Keras 2's fit takes that error for the end of an epoch, where "
        "the data ended: let the dataset repeat(), and give the number of steps (steps_per_epoch in fit).",
    ),
    (
        "cannot-shard",
        r"Found an unshardable source dataset|Could not apply FILE based sharding",
        "The dataset cannot be divided by files. Set options.experimental_distribute.auto_shard_policy = "
        "tf.data.experimental.AutoShardPolicy.DATA, or write at least one file for each worker.",
    ),
    (
        "loss-reduction",
        r"Please use `tf\.keras\.losses\.Reduction\.SUM` or `tf\.keras\.losses\.Reduction\.NONE`",
        "Under a strategy a loss is not averaged by itself. Give it reduction=SUM or NONE and divide by the "
        "global batch size: tf.nn.compute_average_loss(losses, global_batch_size=...).",
    ),
    (
        "mixed-strategies",
        r"(Mixing different|Mismatching) tf\.distribute\.Strategy objects|"
        r"was not created in the distribution strategy scope of|"
        r"was created inside a different distribution strategy scope than",
        "Create model, optimizer and metrics inside one `with strategy.scope():`, and all of them again "
        "after a new strategy.",
    ),
    (
        "replica-context",
        r"Method requires being in cross-replica context|"
        r"method requires cross-replica context, use get_replica_context",
        "strategy.run, reduce, gather and scope belong outside the function that strategy.run calls; inside "
        "it use tf.distribute.get_replica_context().all_reduce.",
    ),
    (
        "no-replica",
        r"'NoneType' object has no attribute '(merge_call|all_reduce|all_gather)'|"
        r"cannot be called in cross-replica context\. Use `tf\.distribute\.Strategy\.run`",
        "There is no replica here: steps of an optimizer, all_reduce and all_gather belong inside the "
        "function that strategy.run calls.",
    ),
    (
        "merge-call",
        r"`merge_call` called while defining a new graph or a tf\.function",
        "Replicas cannot meet inside an `if`, a loop or a tf.function of their own. Make the tf.function "
        "that calls strategy.run the only one, and decide outside strategy.run whether the optimizer steps.",
    ),
    (
        "hdf5-locked",
        r"Unable to (synchronously )?(open|create) file \(unable to lock file",
        "HDF5 lets one process write a file, and no other one open it meanwhile. Write one file for each "
        "task (tfmagic.hdf5.TaskFile), one for all (tfmagic.hdf5.SharedWriter), or let only the chief write.",
    ),
    (
        "tfrecord-truncated",
        r"^DataLossError: .*(truncated|corrupted) record at \d+",
        "This TFRecord file was read before its writer closed it, or two tasks wrote it. Give each task a "
        "file of its own, close the writer, and meet at tfmagic.barrier() before reading.",
    ),
    (
        "tfrecord-compressed",
        r"^DataLossError: .*inflate\(\) failed",
        "A compressed TFRecord file was cut short, changed, or read before its writer closed it; or it is "
        "not compressed as compression_type says. python -m tfmagic tfrecord verify FOLDER finds it, and "
        "tfmagic.tfrecord.read_shards sees by itself how a file is compressed.",
    ),
    (
        "shared-checkpoint",
        r"^(NotFoundError|InvalidArgumentError): .*_temp/part-\d{5}-of-\d{5}\b",
        "Several tasks save to one path at the same moment. tfmagic.logdir gives each task the right one: "
        "checkpoints(model, folder) for checkpoints, with task_logdir(folder) as path: for a SavedModel.",
    ),
    (
        "shared-cache",
        r"concurrent caching iterator running|^NotFoundError: .*\.(lockfile|tempstate\d+)\b",
        "Several tasks write one path. Give each its own, as in "
        '.cache(f"rows-{tfmagic.current_task().name}"). The lock file is a leftover only of a process that '
        "was killed while it filled the cache; to delete that of another task makes it fail, too.",
    ),
    (
        "no-parameter-servers",
        r"^ValueError: There must be at least one ps\.",
        "ParameterServerStrategy needs parameter servers and a coordinator: <two workers and a server>",
    ),
    (
        "late-setting",
        r"(Visible|Virtual|Logical|Physical) devices cannot be modified after being initialized|"
        r"(Intra|Inter) op parallelism cannot be modified after initialization",
        "This setting of tf.config is for a process that has not used TensorFlow yet: <begin with it>, "
        "before the strategy.",
    ),
    (
        "out-of-memory",
        r"^ResourceExhaustedError: .*OOM when allocating tensor|^_ArrayMemoryError: Unable to allocate ",
        "All tasks of this machine share its memory. Take a smaller batch for each task, or fewer tasks.",
    ),
    (
        "no-tensorboard",
        r"^TBNotInstalledError: ",
        "tf.summary needs the package tensorboard:  <install> , then <restart>.",
    ),
)


def find_hint(error: PackedError) -> Hint:
    """Return the first known trap in the error's chain.

    An error whose notes hold a hint already gets no other one.
    """
    if error.explained:
        return Hint()
    links = [f"{name}: {message}" for name, message in error.chain]
    found = (hint for hint in HINTS if any(re.search(hint[1], x, re.DOTALL) for x in links))
    name, _, advice = next(found, ("", "", ""))
    return Hint(name, spelled(advice))


def spelled(advice: str) -> str:
    """Return an advice with its steps in the words of the front end."""
    return re.sub("<([a-z ]+)>", lambda step: str(_STEPS[step[1]]), advice)
