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

_TENSORFLOW = "tensorflow>=2.16,<2.23"
_KERAS = "keras>=3.10,<3.17"
_TF_KERAS = "tf_keras>=2.16"
_HERE = "tfmagic.task.tensorflow"
_CONTEXT = "tensorflow.python.eager.context"
_FUNCTIONS = "tensorflow.python.eager.polymorphic_function"
_TRAINER = "keras.src.backend.tensorflow.trainer"
_ONE_FILE = "tasks that save to one {} at the same moment can damage it: let them save to different paths"

TABLE = PatchTable(
    Patch(
        FORKS,
        (f"{_CONTEXT}:_context", f"{_CONTEXT}:Context.__init__ uses _context_handle"),
        _TENSORFLOW,
        "a process in which TensorFlow's context exists cannot be forked",
        "each task imports TensorFlow by itself, which takes some seconds",
    ),
    Patch(
        "servers on loopback",
        (),
        _TENSORFLOW,
        "TensorFlow's servers listen on every interface, and have no password",
        "a program that reaches this machine's ports can read and write your files through the servers of "
        "TensorFlow on this task. Use --isolate, or a firewall",
        only="loopback",
        probe=f"{_HERE}.loopback_only:missing",
    ),
    Patch(
        "cancellation of tf.functions",
        (
            "tensorflow.python.eager.cancellation:context()",
            "tensorflow.python.eager.cancellation:CancellationManager.start_cancel()",
            f"{_CONTEXT}:Context.call_function uses cancellation",
        ),
        _TENSORFLOW,
        "Ctrl-C ends a tf.function that waits for a queue, an iterator or a peer",
        "Ctrl-C in a tf.function that waits ends the task's process, with its variables",
        f"{_HERE}.interrupts:install",
    ),
    Patch(
        CALLS,
        (f"{_CONTEXT}:Context.call_function(name)",),
        _TENSORFLOW,
        "the tf.function that is called most often makes the steps of a cell",
        "no steps are counted, and --watch sees none",
        needs=("cancellation of tf.functions",),
    ),
    Patch(
        "prompt joins of replicas",
        (
            "tensorflow.python.training.coordinator:Coordinator.join(threads, stop_grace_period_secs)",
            "tensorflow.python.training.coordinator:Coordinator.should_stop()",
        ),
        _TENSORFLOW,
        "a strategy whose `run` was interrupted waits for its threads",
        "after Ctrl-C in a strategy's run a cell can take up to 120 s to end",
        f"{_HERE}.interrupts:join_promptly",
    ),
    Patch(
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
        _TENSORFLOW,
        "an interrupt can leave a device, a graph or a strategy entered",
        "after Ctrl-C a later cell can run on a wrong device: restart the task then",
    ),
    Patch(
        "errors without tfmagic's lines",
        ("tensorflow.python.util.tf_stack:StackTraceFilter.get_filtered_filenames()",),
        _TENSORFLOW,
        "TensorFlow's errors show the stack in which an op was made",
        "these stacks show lines of tfmagic among yours",
        f"{_HERE}.graph_settings:hide_our_frames",
    ),
    Patch(
        "print in a tf.function",
        (
            "tensorflow.python.autograph.operators.py_builtins:SUPPORTED_BUILTINS",
            "tensorflow.python.autograph.pyct.inspect_utils:_BUILTIN_FUNCTION_IDS",
        ),
        _TENSORFLOW,
        "AutoGraph recognizes Python's own `print` only, and a task has another one",
        "print in a tf.function shows tensors without values, once: use tf.print",
        f"{_HERE}.graph_settings:know_print",
    ),
    Patch(
        "files of AutoGraph",
        ("tensorflow.python.autograph.pyct.loader:load_source uses tempfile, NamedTemporaryFile",),
        _TENSORFLOW,
        "AutoGraph deletes its files when Python ends, which never happens in a task",
        "AutoGraph's files stay in the folder for temporary files",
        f"{_HERE}.graph_settings:keep_files_in(folder)",
    ),
    Patch(
        COLLECTIVES,
        (
            f"{_CONTEXT}:_context",
            f"{_CONTEXT}:Context.__init__ uses _initialized, _collective_leader",
            f"{_CONTEXT}:Context.abort_collective_ops(code, message)",
        ),
        _TENSORFLOW,
        "a task that waits in a collective for a failed one is freed, and keeps its variables",
        "a task that waits in a collective for a failed one is ended instead, and loses its variables",
        only="strategies",
    ),
    Patch(
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
        _TENSORFLOW,
        "TensorFlow refuses a multi-worker strategy in a process that has run an op",
        "make the strategy in the first cell after a restart: TensorFlow refuses it later",
        f"{_HERE}.collectives:install_new_context",
        "strategies",
        (COLLECTIVES,),
    ),
    Patch(
        "the heartbeat of strategies",
        (f"{_CONTEXT}:Context.configure_coordination_service(heartbeat_timeout_in_ms)",),
        _TENSORFLOW,
        "TensorFlow notices a dead peer after 10 s",
        "TensorFlow notices a dead peer after 10 s instead of heartbeat_timeout_s",
        f"{_HERE}.collectives:install_heartbeat(boot)",
        "strategies",
    ),
    Patch(
        "the meeting before a strategy",
        (
            f"{_CONTEXT}:Context.enable_collective_ops(server_def)",
            f"{_CONTEXT}:Context.__init__ uses _context_handle",
            f"{_CONTEXT}:Context.ensure_initialized()",
        ),
        _TENSORFLOW,
        "tasks that make a strategy wait for each other where Ctrl-C reaches them",
        "Ctrl-C does not reach a task that waits for its peers' strategy, and a second strategy can hang",
        f"{_HERE}.collectives:install_meeting(boot, meet)",
        "strategies",
        (COLLECTIVES,),
    ),
    Patch(
        OPS,
        (
            f"{_CONTEXT}:Context.has_function(name)",
            f"{_CONTEXT}:Context.get_function_def(name)",
            "tensorflow.python.eager.execute:quick_execute(op_name)",
        ),
        _TENSORFLOW,
        "a task that waits names the collective or the tf.function for which it does",
        "a task that waits is not known to be in a collective",
    ),
    Patch(
        PROFILES,
        (
            "tensorflow.python.profiler.profiler_v2:_profiler",
            "tensorflow.python.profiler.profiler_v2:start uses _pywrap_profiler, ProfilerSession",
            "tensorflow.python.profiler.profiler_v2:_pywrap_profiler.ProfilerSession.export_to_tb()",
            "tensorflow.tsl.profiler.protobuf.xplane_pb2:XSpace",
        ),
        _TENSORFLOW,
        "--profile traces a cell, and gives way to a profiler of the cell's own",
        "--profile shows no profile",
    ),
    Patch(
        WHOLE_TRACES,
        (),
        _TENSORFLOW,
        "TensorFlow's fault at the end of a trace with collectives ends the process",
        "a task that is traced with --profile can end by SIGSEGV or SIGABRT at the end of a cell with "
        "collectives, by a fault of TensorFlow",
        needs=(PROFILES,),
        probe=f"{_HERE}.profiler:missing_for_whole_traces",
    ),
    Patch(
        "fit under multi-worker strategies",
        (
            f"{_TRAINER}:reduce_per_replica(values, strategy, reduction)",
            f"{_TRAINER}:_collective_all_reduce_multi_worker()",
            f"{_TRAINER}:TensorFlowTrainer|Trainer._maybe_symbolic_build(iterator, data_batch)",
            f"{_TRAINER}:TensorFlowTrainer|Trainer._symbolic_build(data_batch)",
        ),
        _KERAS,
        "model.fit of Keras 3 is broken under MultiWorkerMirroredStrategy (keras#20585)",
        "model.fit can fail under MultiWorkerMirroredStrategy: use --keras 2",
        f"{_HERE}.keras_repair:install",
        "keras",
    ),
    Patch(
        "whole .keras files",
        ("keras.src.saving.saving_lib:save_model(model, filepath)",),
        _KERAS,
        "two tasks that save to one path damage the file",
        _ONE_FILE.format(".keras file"),
        f"{_HERE}.keras_saving:save_models_whole",
        "keras",
    ),
    Patch(
        "whole files of weights",
        ("keras.src.saving.saving_lib:save_weights_only(model, filepath)",),
        _KERAS,
        "two tasks that save to one path damage the file",
        _ONE_FILE.format("file of weights"),
        f"{_HERE}.keras_saving:save_weights_whole",
        "keras",
    ),
    Patch(
        "whole .h5 files",
        ("keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5(model, filepath)",),
        _KERAS,
        "two tasks that save to one path damage the file",
        _ONE_FILE.format(".h5 file"),
        f"{_HERE}.keras_saving:save_hdf5_whole",
        "keras",
    ),
    Patch(
        "folders of saves",
        ("keras.src.utils.file_utils:makedirs(path)",),
        _KERAS,
        "two tasks that make one folder at the same moment fail",
        "tasks that save to one new folder at the same moment can fail: make it before",
        f"{_HERE}.keras_saving:make_folders_together",
        "keras",
    ),
    Patch(
        "BackupAndRestore",
        (
            "keras.src.callbacks.backup_and_restore:BackupAndRestore.on_train_begin(logs)",
            "keras.src.callbacks.backup_and_restore:BackupAndRestore._save_model()",
            "keras.src.callbacks.backup_and_restore:BackupAndRestore.on_train_end(logs)",
            "keras.src.callbacks.backup_and_restore:BackupAndRestore.__init__(backup_dir)",
        ),
        _KERAS,
        "every worker writes and deletes the same backup",
        "give each task a folder of its own for BackupAndRestore",
        f"{_HERE}.keras_saving:repair_backups",
        "keras",
    ),
    *(
        Patch(
            f"{what} of {package}",
            (target,),
            versions,
            why,
            without_it,
            f"{_HERE}.{install}",
            f"strategies in {package}",
        )
        for package, versions, trainer, callbacks in (
            ("keras", _KERAS, f"{_TRAINER}:TensorFlowTrainer|Trainer", "keras.src.callbacks.callback_list"),
            ("tf_keras", _TF_KERAS, "tf_keras.src.engine.training:Model", "tf_keras.src.callbacks"),
        )
        for what, target, why, without_it, install in (
            (
                "a hint on models",
                f"{trainer}.make_train_function(force)",
                "a model made outside of strategy.scope() is trained by each task alone, without a word",
                "such a model gets no hint",
                f"scope_hint:install_in_{package}",
            ),
            (
                "charts of fit",
                f"{callbacks}:CallbackList.__init__(callbacks, add_history)",
                "the panel draws loss and metrics",
                "no charts of fit: use tfmagic.track in a callback of your own",
                f"keras_tracking:install_in_{package}",
            ),
        )
    ),
    Patch(
        KERAS_SCOPES,
        ("keras.src.backend.common.global_state:GLOBAL_STATE_TRACKER.__dict__",),
        _KERAS,
        "an interrupt can leave Keras' scopes entered",
        "after Ctrl-C a later fit can fail: restart the task then",
        only="in keras",
    ),
)


def probe_all() -> tuple[str, ...]:
    """Probe what a task of this process can use; return a line for each row that does not fit."""
    wanted = {"", "loopback", "strategies", *_words_of_keras()}
    names = [row.name for row in TABLE.rows.values() if row.only in wanted]
    return tuple(TABLE.left_out(name for name in names if not TABLE.fits(name)))


def install_all(boot: TaskBoot, **given: Any) -> list[str]:
    """Install what this task wants, in the order of the table; return a line for each row that is left out.

    Args:
        given: The arguments of the installs, by name.
    """
    if boot.keras_fix:
        with contextlib.suppress(Exception):  # the user's own import of it raises the same
            importlib.import_module("keras")
    wanted = {""} | _words_of_keras() - ({"keras"} if not boot.keras_fix else set())
    wanted |= {"loopback"} if boot.loopback_only else set()
    wanted = (
        wanted | {"strategies"} if not boot.is_plain else {word for word in wanted if "strateg" not in word}
    )
    names = [row.name for row in TABLE.rows.values() if row.only in wanted]
    for name in names:
        TABLE.install(name, boot=boot, **given)
    return TABLE.left_out(names)


def _words_of_keras() -> set[str]:
    """Return the words for the versions of Keras that are imported; only with TensorFlow it is repaired."""
    found = {package for package in ("keras", "tf_keras") if package in sys.modules}
    words = {f"{start}in {package}" for package in found for start in ("", "strategies ")}
    with contextlib.suppress(AttributeError):  # a module of the user's with that name
        if "keras" in found and sys.modules["keras"].backend.backend() == "tensorflow":
            words.add("keras")
    return words
