"""The private parts of TensorFlow and Keras that a task replaces or relies on, and what works without them.

    launcher, before its first fork ── probe_all ──→ what does not fit: LauncherReady, for the doctor
    task, before its first cell ────── install_all ──→ the other rows, in this order; a line for each left out

No row depends on another one but by `needs`. Code that relies on a row asks ``TABLE.fits(name)`` and falls
back. What a private part of `tfmagic.serialization` lacks is an error that names the variable instead.
"""

import contextlib
import importlib
import sys
from typing import Any

from tfmagic.protocol.commands import TaskBoot
from tfmagic.system import features
from tfmagic.system.patches import PatchTable
from tfmagic.task.tensorflow import keras_patches
from tfmagic.task.tensorflow.patch_rows import tensorflow_row

FORKS = "safe forks"
CALLS = "steps of a cell"
COLLECTIVES = "the state of collectives"
NEW_CONTEXT = "a strategy after other ops"
OPS = "the names of collectives"
STACKS = "errors without tfmagic's lines"
SCOPES = "scopes after an interrupt"
KERAS_SCOPES = keras_patches.SCOPES

_HERE = "tfmagic.task.tensorflow"
_CONTEXT = "tensorflow.python.eager.context"
_FUNCTIONS = "tensorflow.python.eager.polymorphic_function"

TABLE = PatchTable(
    tensorflow_row(
        FORKS,
        (f"{_CONTEXT}:_context", f"{_CONTEXT}:Context.__init__ uses _context_handle"),
        "a process in which TensorFlow's context exists cannot be forked",
        "each task imports TensorFlow by itself, which takes some seconds",
    ),
    tensorflow_row(
        "servers on loopback",
        (),
        "TensorFlow's servers listen on every interface, and have no password",
        "a program that reaches this machine's ports can read and write your files through the servers of "
        "TensorFlow on this task. Use --isolate, or a firewall",
        only="loopback",
        probe=f"{_HERE}.loopback_only:missing",
    ),
    tensorflow_row(
        "cancellation of tf.functions",
        (
            "tensorflow.python.eager.cancellation:context()",
            "tensorflow.python.eager.cancellation:CancellationManager.start_cancel()",
            f"{_CONTEXT}:Context.call_function uses cancellation",
        ),
        "Ctrl-C ends a tf.function that waits for a queue, an iterator or a peer",
        "Ctrl-C in a tf.function that waits ends the task's process, with its variables",
        f"{_HERE}.interrupts:with_manager",
    ),
    tensorflow_row(
        CALLS,
        (f"{_CONTEXT}:Context.call_function(name)",),
        "the tf.function that is called most often makes the steps of a cell",
        "no steps are counted",
        needs=("cancellation of tf.functions",),
    ),
    tensorflow_row(
        "prompt joins of replicas",
        (
            "tensorflow.python.training.coordinator:Coordinator.join(threads, stop_grace_period_secs)",
            "tensorflow.python.training.coordinator:Coordinator.should_stop()",
        ),
        "a strategy whose `run` was interrupted waits for its threads",
        "after Ctrl-C in a strategy's run a cell can take up to 120 s to end",
        f"{_HERE}.interrupts:joining_promptly",
    ),
    tensorflow_row(
        SCOPES,
        (
            f"{_CONTEXT}:_context",
            "tensorflow.python.framework.ops:_default_graph_stack.stack",
            "tensorflow.python.framework.ops:Graph._distribution_strategy_stack",
            f"{_CONTEXT}:Context.__init__ uses _thread_local_data",
            f"{_CONTEXT}:Context.context_switches",
            *(
                f"tensorflow.python.pywrap_tfe:EagerContextThreadLocalData.{name}"
                for name in ("is_eager", "scope_name", "device_name", "device_spec")
            ),
        ),
        "an interrupt can leave a device, a graph or a strategy entered",
        "after Ctrl-C a later cell can run on a wrong device: restart the task then",
    ),
    tensorflow_row(
        STACKS,
        ("tensorflow.python.util.tf_stack:StackTraceFilter.get_filtered_filenames()",),
        "TensorFlow's errors show the stack in which an op was made",
        "these stacks show lines of tfmagic among yours",
        install=f"{_HERE}.graph_settings:hide_our_frames",
    ),
    tensorflow_row(
        "print in a tf.function",
        (
            "tensorflow.python.autograph.operators.py_builtins:SUPPORTED_BUILTINS",
            "tensorflow.python.autograph.pyct.inspect_utils:_BUILTIN_FUNCTION_IDS",
        ),
        "AutoGraph recognizes Python's own `print` only, and a task has another one",
        "print in a tf.function shows tensors without values, once: use tf.print",
        install=f"{_HERE}.graph_settings:know_print",
    ),
    tensorflow_row(
        "files of AutoGraph",
        ("tensorflow.python.autograph.pyct.loader:load_source uses tempfile, NamedTemporaryFile",),
        "AutoGraph deletes its files when Python ends, which never happens in a task",
        "AutoGraph's files stay in the folder for temporary files",
        install=f"{_HERE}.graph_settings:keep_files_in(folder)",
    ),
    tensorflow_row(
        COLLECTIVES,
        (
            f"{_CONTEXT}:_context",
            f"{_CONTEXT}:Context.__init__ uses _initialized, _collective_leader",
            f"{_CONTEXT}:Context.abort_collective_ops(code, message)",
        ),
        "a task that waits in a collective for a failed one is freed, and keeps its variables",
        "a task that waits in a collective for a failed one is ended instead, and loses its variables",
        only="strategies",
    ),
    tensorflow_row(
        "TF_CONFIG of each task",
        ("tensorflow.python.distribute.cluster_resolver.tfconfig_cluster_resolver:_load_tf_config()",),
        "a tutorial's TF_CONFIG makes each task wait for machines that do not exist",
        "a program that sets TF_CONFIG itself fails: leave that line out",
        f"{_HERE}.tf_config:reading",
        only="strategies",
    ),
    tensorflow_row(
        NEW_CONTEXT,
        (
            f"{_CONTEXT}:Context.configure_collective_ops(collective_leader)",
            f"{_CONTEXT}:Context.__init__ uses _context_handle, _soft_device_placement, _visible_device_list",
            f"{_CONTEXT}:Context.__init__ uses _collective_leader, _collective_ops_server_def",
            f"{_CONTEXT}:_reset_context()",
            f"{_CONTEXT}:Context.ensure_initialized()",
            f"{_CONTEXT}:Context._set_global_seed uses _seed, _rng",
            "tensorflow.python.ops.summary_ops_v2:_ResourceSummaryWriter.__init__ uses _closed",
            "tensorflow.python.ops.resource_variable_ops:BaseResourceVariable",
            "tensorflow.python.ops.resource_variable_ops:_variable_handle_from_shape_and_dtype()",
            "tensorflow.python.data.ops.dataset_ops:DatasetV2._functions()",
            "tensorflow.python.data.ops.iterator_ops:OwnedIterator._create_iterator uses _iterator_resource",
            f"{_FUNCTIONS}.atomic_function:RUNTIME_FUNCTION_REFS",
            f"{_FUNCTIONS}.atomic_function:AtomicFunction.__init__ uses _bound_context",
            f"{_FUNCTIONS}.concrete_function:ConcreteFunction.__init__ uses _captured_inputs",
            f"{_FUNCTIONS}.polymorphic_function:Function.__init__ uses _function_cache, _function_captures",
            f"{_FUNCTIONS}.polymorphic_function:Function._initialize uses _created_variables, "
            "_variable_creation_config, _no_variable_creation_config",
        ),
        "TensorFlow refuses a multi-worker strategy in a process that has run an op",
        "make the strategy in the first cell after a restart: TensorFlow refuses it later",
        f"{_HERE}.collectives:replacing_context",
        only="strategies",
        needs=(COLLECTIVES,),
    ),
    tensorflow_row(
        "the heartbeat of strategies",
        (f"{_CONTEXT}:Context.configure_coordination_service(heartbeat_timeout_in_ms)",),
        "TensorFlow notices a dead peer after 10 s",
        "TensorFlow notices a dead peer after 10 s instead of heartbeat_timeout_s",
        f"{_HERE}.collectives:with_heartbeat(boot)",
        only="strategies",
    ),
    tensorflow_row(
        "the meeting before a strategy",
        (
            f"{_CONTEXT}:Context.enable_collective_ops(server_def)",
            f"{_CONTEXT}:Context.__init__ uses _context_handle",
            f"{_CONTEXT}:Context.ensure_initialized()",
        ),
        "tasks that make a strategy wait for each other where Ctrl-C reaches them",
        "Ctrl-C does not reach a task that waits for its peers' strategy, and a second strategy can hang",
        f"{_HERE}.collectives:meeting_before(boot, meet)",
        only="strategies",
        needs=(COLLECTIVES,),
    ),
    tensorflow_row(
        OPS,
        (
            f"{_CONTEXT}:Context.has_function(name)",
            f"{_CONTEXT}:Context.get_function_def(name)",
            "tensorflow.python.eager.execute:quick_execute(op_name)",
        ),
        "a task that waits names the collective or the tf.function for which it does",
        "a task that waits is not known to be in a collective",
    ),
    tensorflow_row(
        "arrays of Python functions",
        ("tensorflow.python.ops.script_ops:FuncRegistry.__call__(token, args)",),
        "TensorFlow writes into arrays that a generator or a numpy_function gives to several workers",
        "the arrays behind a generator, a PyDataset or a numpy_function can change while a model trains: let "
        "it return copies",
        f"{_HERE}.own_arrays:copying",
        only="strategies",
    ),
    tensorflow_row(
        "the end of a strategy's iterators",
        (
            "tensorflow.python.data.ops.multi_device_iterator_ops:OwnedMultiDeviceIterator.__init__(dataset)",
            "tensorflow.python.data.ops.multi_device_iterator_ops:_create_device_dataset(prototype_ds)",
        ),
        "TensorFlow waits up to a minute for the thread that tunes a data set, in each epoch",
        "the end of an epoch can take as long as the epoch: set options.autotune.enabled to False",
        install=f"{_HERE}.untuned_data:install",
        only="strategies",
    ),
    tensorflow_row(
        "a hint on shuffles",
        (
            "tensorflow.python.distribute.distribute_lib:StrategyBase.experimental_distribute_dataset(dataset)",
            "tensorflow.python.data.ops.shuffle_op:_ShuffleDataset.__init__ uses _seed, _seed2",
            "tensorflow.python.data.ops.dataset_ops:DatasetV2._inputs()",
        ),
        "workers that shuffle without a seed, and divide the data then, read some rows twice and some never",
        "such data get no hint",
        f"{_HERE}.keras_shuffles:looking_at_data",
        only="strategies",
    ),
    tensorflow_row(
        "a hint on losses",
        ("tensorflow.python.eager.backprop:GradientTape.gradient(target, sources)",),
        "the mean of one replica's rows as a loss makes steps that are too large, without a word",
        "such a loss gets no hint",
        f"{_HERE}.loop_hints:looking_at_losses",
        only="strategies",
    ),
    *keras_patches.ROWS,
    *(row for half in features.halves("task") for row in getattr(half, "PATCHES", ())),
)


def probe_all() -> tuple[str, ...]:
    """Probe what a task of this process can use; return a line for each row that does not fit."""
    return tuple(TABLE.left_out(_rows_of(_words())))


def install_all(boot: TaskBoot, **given: Any) -> list[str]:
    """Install what this task wants, in the order of the table; return a line for each row that is left out.

    Args:
        given: The arguments of the installs, by name.
    """
    if boot.keras_fix:
        with contextlib.suppress(Exception):  # the user's own import of it raises the same
            importlib.import_module("keras")
    wanted = _words()
    if not boot.keras_fix:
        wanted.discard("keras")
    if not boot.loopback_only:
        wanted.discard("loopback")
    if boot.is_plain:
        wanted = {word for word in wanted if not word.startswith("strategies")}
    for name in _rows_of(wanted):
        TABLE.install(name, boot=boot, **given)
    return TABLE.left_out(_rows_of(wanted))


def _rows_of(words: set[str]) -> list[str]:
    return [row.name for row in TABLE.rows.values() if row.only in words]


def _words() -> set[str]:
    """Return all words of `only` that can hold here: those of Keras where it is imported."""
    found = {package for package in ("keras", "tf_keras") if package in sys.modules}
    words = {f"{start}in {package}" for package in found for start in ("", "strategies ")}
    with contextlib.suppress(Exception):  # a module of the user's with that name
        if "keras" in found and sys.modules["keras"].backend.backend() == "tensorflow":
            words.add("keras")
    return {"", "loopback", "strategies", *words}
