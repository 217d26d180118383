"""The private parts of TensorFlow and Keras that a task replaces or relies on, and what works without them.

    launcher, before its first fork ── probe_all ──→ what does not fit: LauncherReady, for the doctor
    task, before its first cell ────── install_all ──→ the other rows, in this order; a line for each left out

No row depends on another one but by `needs`. Code that relies on a row asks ``TABLE.fits(name)`` and falls
back. What a private part of `tfmagic.serialization` lacks is an error that names the variable instead.
"""

import contextlib
import importlib
import sys
from functools import partial
from typing import Any

from tfmagic.protocol.commands import TaskBoot
from tfmagic.system.patches import Patch, PatchTable

FORKS = "safe forks"
CALLS = "steps of a cell"
COLLECTIVES = "the state of collectives"
NEW_CONTEXT = "a strategy after other ops"
OPS = "the names of collectives"
SCOPES = "scopes after an interrupt"
KERAS_SCOPES = "Keras' scopes after an interrupt"
PROFILES = "profiles"
WHOLE_TRACES = "whole traces"

_HERE = "tfmagic.task.tensorflow"
_CONTEXT = "tensorflow.python.eager.context"
_FUNCTIONS = "tensorflow.python.eager.polymorphic_function"
_TRAINER = "keras.src.backend.tensorflow.trainer"
_tensorflow = partial(Patch, versions_tried="tensorflow>=2.16,<2.23")
_keras = partial(Patch, versions_tried="keras>=3.10,<3.17")
_tf_keras = partial(Patch, versions_tried="tf_keras>=2.16")
_ONE_FILE = "tasks that save to one {} at the same moment can damage it: let them save to different paths"

TABLE = PatchTable(
    _tensorflow(
        FORKS,
        (f"{_CONTEXT}:_context", f"{_CONTEXT}:Context.__init__ uses _context_handle"),
        "a process in which TensorFlow's context exists cannot be forked",
        "each task imports TensorFlow by itself, which takes some seconds",
    ),
    _tensorflow(
        "servers on loopback",
        (),
        "TensorFlow's servers listen on every interface, and have no password",
        "a program that reaches this machine's ports can read and write your files through the servers of "
        "TensorFlow on this task. Use --isolate, or a firewall",
        only="loopback",
        probe=f"{_HERE}.loopback_only:missing",
    ),
    _tensorflow(
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
    _tensorflow(
        CALLS,
        (f"{_CONTEXT}:Context.call_function(name)",),
        "the tf.function that is called most often makes the steps of a cell",
        "no steps are counted, and --watch sees none",
        needs=("cancellation of tf.functions",),
    ),
    _tensorflow(
        "prompt joins of replicas",
        (
            "tensorflow.python.training.coordinator:Coordinator.join(threads, stop_grace_period_secs)",
            "tensorflow.python.training.coordinator:Coordinator.should_stop()",
        ),
        "a strategy whose `run` was interrupted waits for its threads",
        "after Ctrl-C in a strategy's run a cell can take up to 120 s to end",
        f"{_HERE}.interrupts:joining_promptly",
    ),
    _tensorflow(
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
    _tensorflow(
        "errors without tfmagic's lines",
        ("tensorflow.python.util.tf_stack:StackTraceFilter.get_filtered_filenames()",),
        "TensorFlow's errors show the stack in which an op was made",
        "these stacks show lines of tfmagic among yours",
        install=f"{_HERE}.graph_settings:hide_our_frames",
    ),
    _tensorflow(
        "print in a tf.function",
        (
            "tensorflow.python.autograph.operators.py_builtins:SUPPORTED_BUILTINS",
            "tensorflow.python.autograph.pyct.inspect_utils:_BUILTIN_FUNCTION_IDS",
        ),
        "AutoGraph recognizes Python's own `print` only, and a task has another one",
        "print in a tf.function shows tensors without values, once: use tf.print",
        install=f"{_HERE}.graph_settings:know_print",
    ),
    _tensorflow(
        "files of AutoGraph",
        ("tensorflow.python.autograph.pyct.loader:load_source uses tempfile, NamedTemporaryFile",),
        "AutoGraph deletes its files when Python ends, which never happens in a task",
        "AutoGraph's files stay in the folder for temporary files",
        install=f"{_HERE}.graph_settings:keep_files_in(folder)",
    ),
    _tensorflow(
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
    _tensorflow(
        NEW_CONTEXT,
        (
            f"{_CONTEXT}:Context.configure_collective_ops()",
            f"{_CONTEXT}:Context.__init__ uses _context_handle, _soft_device_placement, _visible_device_list",
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
    _tensorflow(
        "the heartbeat of strategies",
        (f"{_CONTEXT}:Context.configure_coordination_service(heartbeat_timeout_in_ms)",),
        "TensorFlow notices a dead peer after 10 s",
        "TensorFlow notices a dead peer after 10 s instead of heartbeat_timeout_s",
        f"{_HERE}.collectives:with_heartbeat(boot)",
        only="strategies",
    ),
    _tensorflow(
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
    _tensorflow(
        OPS,
        (
            f"{_CONTEXT}:Context.has_function(name)",
            f"{_CONTEXT}:Context.get_function_def(name)",
            "tensorflow.python.eager.execute:quick_execute(op_name)",
        ),
        "a task that waits names the collective or the tf.function for which it does",
        "a task that waits is not known to be in a collective",
    ),
    _tensorflow(
        PROFILES,
        (
            "tensorflow.python.profiler.profiler_v2:_profiler",
            "tensorflow.python.profiler.profiler_v2:start uses _pywrap_profiler, ProfilerSession",
            "tensorflow.python.profiler.profiler_v2:_pywrap_profiler.ProfilerSession.export_to_tb()",
            "tensorflow.tsl.profiler.protobuf.xplane_pb2:XSpace",
        ),
        "--profile traces a cell, and gives way to a profiler of the cell's own",
        "--profile shows no profile",
    ),
    _tensorflow(
        WHOLE_TRACES,
        (),
        "TensorFlow's fault at the end of a trace with collectives ends the process",
        "a task that is traced with --profile can end by SIGSEGV or SIGABRT at the end of a cell with "
        "collectives, by a fault of TensorFlow",
        needs=(PROFILES,),
        probe=f"{_HERE}.profiler:missing_for_whole_traces",
    ),
    _keras(
        "fit under multi-worker strategies",
        (
            f"{_TRAINER}:reduce_per_replica(values, strategy, reduction)",
            f"{_TRAINER}:_collective_all_reduce_multi_worker()",
            f"{_TRAINER}:TensorFlowTrainer|Trainer._maybe_symbolic_build(iterator, data_batch)",
            f"{_TRAINER}:TensorFlowTrainer|Trainer._symbolic_build(data_batch)",
        ),
        "model.fit of Keras 3 is broken under MultiWorkerMirroredStrategy (keras#20585)",
        "model.fit can fail under MultiWorkerMirroredStrategy: use --keras 2",
        install=f"{_HERE}.keras_repair:install",
        only="keras",
    ),
    _keras(
        "whole .keras files",
        ("keras.src.saving.saving_lib:save_model(model, filepath)",),
        "two tasks that save to one path damage the file",
        _ONE_FILE.format(".keras file"),
        f"{_HERE}.keras_saving:saving_whole",
        only="keras",
    ),
    _keras(
        "whole files of weights",
        ("keras.src.saving.saving_lib:save_weights_only(model, filepath)",),
        "two tasks that save to one path damage the file",
        _ONE_FILE.format("file of weights"),
        f"{_HERE}.keras_saving:saving_whole",
        only="keras",
    ),
    _keras(
        "whole .h5 files",
        ("keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5(model, filepath)",),
        "two tasks that save to one path damage the file",
        _ONE_FILE.format(".h5 file"),
        f"{_HERE}.keras_saving:saving_whole",
        only="keras",
    ),
    _keras(
        "folders of saves",
        ("keras.src.utils.file_utils:makedirs(path)",),
        "two tasks that make one folder at the same moment fail",
        "tasks that save to one new folder at the same moment can fail: make it before",
        f"{_HERE}.keras_saving:making_folders",
        only="keras",
    ),
    _keras(
        "BackupAndRestore",
        (
            "keras.src.callbacks.backup_and_restore:BackupAndRestore.on_train_begin(logs)",
            "keras.src.callbacks.backup_and_restore:BackupAndRestore._save_model()",
            "keras.src.callbacks.backup_and_restore:BackupAndRestore.on_train_end(logs)",
            "keras.src.callbacks.backup_and_restore:BackupAndRestore.__init__(backup_dir)",
        ),
        "every worker writes and deletes the same backup",
        "give each task a folder of its own for BackupAndRestore",
        install=f"{_HERE}.keras_saving:repair_backups",
        only="keras",
    ),
    *(
        row(
            f"{what} of {package}",
            (target,),
            why,
            without_it,
            f"{_HERE}.{wrap}",
            only=f"strategies in {package}",
        )
        for package, row, trainer, callbacks in (
            ("keras", _keras, f"{_TRAINER}:TensorFlowTrainer|Trainer", "keras.src.callbacks.callback_list"),
            ("tf_keras", _tf_keras, "tf_keras.src.engine.training:Model", "tf_keras.src.callbacks"),
        )
        for what, target, why, without_it, wrap in (
            (
                "a hint on models",
                f"{trainer}.make_train_function(force)",
                "a model made outside of strategy.scope() is trained by each task alone, without a word",
                "such a model gets no hint",
                "scope_hint:looking",
            ),
            (
                "a hint on weights",
                f"{trainer}.make_train_function(force)",
                "weights that one task alone has loaded stay different, without a word",
                "different weights get no hint",
                "trained_weights:noting",
            ),
            (
                "charts of fit",
                f"{callbacks}:CallbackList.__init__(callbacks, add_history)",
                "the panel draws loss and metrics",
                "no charts of fit: use tfmagic.track in a callback of your own",
                "keras_tracking:tracking",
            ),
        )
    ),
    _keras(
        "a hint on statistics",
        (
            f"{_TRAINER}:TensorFlowTrainer|Trainer.make_train_function(force)",
            "keras.src.layers.layer:Layer._flatten_layers()",
        ),
        "BatchNormalization keeps statistics of each task's own rows, without a word",
        "a model with such layers gets no hint",
        f"{_HERE}.scope_hint:looking_at_statistics",
        only="strategies in keras",
    ),
    _keras(
        "a hint on rows",
        (f"{_TRAINER}:TFEpochIterator.__init__(distribute_strategy) uses _distributed_dataset",),
        "with the policy OFF a part of the rows is never read, without a word",
        "such data get no hint",
        f"{_HERE}.scope_hint:counting_rows",
        only="strategies in keras",
    ),
    _tf_keras(
        "a hint on rows of tf_keras",
        ("tf_keras.src.engine.data_adapter:DataHandler.__init__(x, steps_per_epoch) uses _inferred_steps",),
        "with the policy OFF a part of the rows is never read, without a word",
        "such data get no hint",
        f"{_HERE}.scope_hint:counting_rows_of_keras_2",
        only="strategies in tf_keras",
    ),
    _keras(
        KERAS_SCOPES,
        ("keras.src.backend.common.global_state:GLOBAL_STATE_TRACKER.__dict__",),
        "an interrupt can leave Keras' scopes entered",
        "after Ctrl-C a later fit can fail: restart the task then",
        only="in keras",
    ),
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
