"""The private parts of Keras 3 and tf_keras that a task replaces or relies on: rows for `patches`."""

from tfmagic.task.tensorflow.patch_rows import TRAINER, in_both, keras_row, tf_keras_row

STEPS = "steps of fit"
SCOPES = "Keras' scopes after an interrupt"

_HERE = "tfmagic.task.tensorflow"
_ADAPTERS = "keras.src.trainers.data_adapters"
_BASE = "keras.src.optimizers.base_optimizer:BaseOptimizer"
_SCALING = "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer"
_ONE_FILE = "tasks that save to one {} at the same moment can damage it: let them save to different paths"

ROWS = (
    keras_row(
        "fit under multi-worker strategies",
        (
            f"{TRAINER}:reduce_per_replica(values, strategy, reduction)",
            f"{TRAINER}:_collective_all_reduce_multi_worker()",
            f"{TRAINER}:TensorFlowTrainer|Trainer._maybe_symbolic_build(iterator, data_batch)",
            f"{TRAINER}:TensorFlowTrainer|Trainer._symbolic_build(data_batch)",
        ),
        "model.fit of Keras 3 is broken under MultiWorkerMirroredStrategy (keras#20585)",
        "model.fit can fail under MultiWorkerMirroredStrategy: use --keras 2",
        install=f"{_HERE}.keras_repair:install",
        only="keras",
    ),
    keras_row(
        STEPS,
        (
            f"{TRAINER}:TensorFlowTrainer|Trainer._make_function(step_function) uses jit_compile",
            f"{TRAINER}:TensorFlowTrainer|Trainer._get_metrics_result_or_logs(logs)",
        ),
        "steps of fit that Keras 3 cannot run on several workers: steps_per_execution, jit_compile",
        "fit fails on several workers with steps_per_execution or jit_compile, and trains other weights than "
        "one process with clipped gradients, uneven batches and masks",
        f"{_HERE}.keras_steps:stepping",
        only="keras",
    ),
    keras_row(
        "seeds of steps",
        (
            f"{TRAINER}:TensorFlowTrainer|Trainer._make_function(step_function)",
            "keras.src.random.seed_generator:global_seed_generator() uses get_global_attribute",
            "keras.src.backend.common.global_state:set_global_attribute(name, value)",
        ),
        "keras.random without a seed makes a variable in the step, which fails on several workers",
        "on several workers fit fails with keras.random without a seed: give it a SeedGenerator",
        f"{_HERE}.keras_steps:seeding",
        only="keras",
    ),
    keras_row(
        "gradients summed first",
        (
            f"{_BASE}.apply(grads, trainable_variables)",
            f"{_SCALING}.apply(grads, trainable_variables)",
            "keras.src.backend.tensorflow.optimizer:TFOptimizer._all_reduce_sum_gradients(grads_and_vars)",
        ),
        "Keras 3 clips the gradients of each replica, and sums them then (tensorflow#33929)",
        "fit clips the gradients of each worker, not those of the whole batch: use --keras 2",
        install=f"{_HERE}.keras_gradients:sum_first",
        only="keras",
        needs=(STEPS,),
    ),
    keras_row(
        "conditions of optimizers",
        (
            f"{_BASE}._backend_apply_gradients uses ops, cond",
            f"{_SCALING}._common_apply uses ops, cond",
            f"{_SCALING}._tf_apply(grads, trainable_variables)",
            f"{_SCALING}.check_finite(grads)",
        ),
        "optimizers that accumulate, scale the loss or overwrite by averages fail or hang on several workers "
        "(keras#17429, tensorflow#46863)",
        "on several workers gradient_accumulation_steps and ema_overwrite_frequency fail, and a "
        "LossScaleOptimizer can hang: use bfloat16, or --keras 2",
        install=f"{_HERE}.keras_gradients:decide_outside",
        only="keras",
    ),
    keras_row(
        "losses of all rows",
        (
            "keras.src.losses.loss:scale_loss_for_distribution(value)",
            "keras.src.losses.loss:unscale_loss_for_distribution(value)",
            "keras.src.losses.loss:reduce_values(values, sample_weight, reduction)",
            "keras.src.losses.loss:apply_mask(sample_weight, mask, dtype, reduction)",
            "keras.src.trainers.compile_utils:CompileLoss.call uses unscale_loss_for_distribution",
        ),
        "Keras 3 weighs the parts of a batch alike, also where they have unequal rows, weights or masks",
        "fit on several workers weighs the rows of uneven batches, masks and sample weights otherwise than "
        "one process",
        install=f"{_HERE}.keras_losses:install",
        only="keras",
        needs=(STEPS,),
    ),
    keras_row(
        "numbers of a batch",
        ("keras.src.metrics.reduction_metrics:Mean.update_state(values, sample_weight)",),
        "a mean weighs what workers give it for parts of a batch alike, also where they have unequal rows",
        "a metric that is one number for a batch differs in fit where a batch cannot be divided evenly",
        f"{_HERE}.keras_metrics:sharing",
        only="keras",
        needs=(STEPS,),
    ),
    keras_row(
        "metrics of the user's own",
        (
            "keras.src.trainers.compile_utils:MetricsList.update_state(y_true, y_pred, sample_weight)",
            "keras.src.metrics.metric:Metric.stateless_update_state(metric_variables)",
            "keras.src.metrics.metric:Metric.stateless_reset_state()",
        ),
        "metrics that are no sums over rows have other values on several workers, without a word",
        "such a metric gets no hint",
        f"{_HERE}.keras_metrics:noting",
        only="keras",
        needs=(STEPS,),
    ),
    keras_row(
        "a hint on metrics",
        (f"{TRAINER}:TensorFlowTrainer|Trainer._get_metrics_result_or_logs(logs)",),
        "metrics that are no sums over rows have other values on several workers, without a word",
        "such a metric gets no hint",
        f"{_HERE}.keras_metrics:looking",
        only="keras",
        needs=("metrics of the user's own",),
    ),
    keras_row(
        "activity regularizers",
        (
            "keras.src.layers.layer:Layer.add_loss(loss)",
            "keras.src.layers.layer:Layer.__call__ uses activity_regularizer, add_loss",
        ),
        "before Keras 3.14 an activity regularizer is a sum over the rows, of which workers took the mean",
        "an activity regularizer can count less in fit on several workers than in one process",
        f"{_HERE}.keras_losses:adding",
        only="keras",
        needs=(STEPS,),
    ),
    keras_row(
        "one order of shuffled arrays",
        (
            f"{TRAINER}:TFEpochIterator.__init__(distribute_strategy) uses get_tf_dataset",
            f"{_ADAPTERS}.array_data_adapter:ArrayDataAdapter.get_tf_dataset uses _shuffle",
            "tensorflow.python.eager.context:Context._set_global_seed uses _seed",
        ),
        "each worker shuffles arrays with a seed of its own, so that rows are read twice or never "
        "(tensorflow#56513)",
        "fit on arrays reads some rows twice and some never: call tf.random.set_seed(1) on all tasks",
        install=f"{_HERE}.keras_shuffles:install",
        only="keras",
    ),
    keras_row(
        "rows of predict_on_batch",
        (
            f"{TRAINER}:TensorFlowTrainer|Trainer.predict_on_batch(x) uses predict_function",
            f"{TRAINER}:TensorFlowTrainer|Trainer.make_predict_function(force) uses predict_function",
            f"{TRAINER}:reduce_per_replica(values, strategy, reduction)",
        ),
        "predict_on_batch returns the rows of all workers, although its batch is not divided between them; "
        "an LSTM fails in predict on a worker without rows",
        "on several workers predict_on_batch returns the rows of all: take a slice, or call model(x); an "
        "LSTM fails to predict fewer rows than there are workers",
        install=f"{_HERE}.keras_batches:install",
        only="keras",
    ),
    keras_row(
        "numbers in callbacks",
        (
            "keras.src.backend.common.variables:Variable.__float__()",
            "keras.src.backend.common.variables:Variable.__int__()",
        ),
        "float() and int() refuse variables of Keras 3 under a strategy, which they take in one process",
        "float(model.optimizer.learning_rate) fails under a strategy: write .numpy() behind it",
        install=f"{_HERE}.keras_numbers:install",
        only="keras",
    ),
    keras_row(
        "whole .keras files",
        ("keras.src.saving.saving_lib:save_model(model, filepath)",),
        "two tasks that save to one path damage the file",
        _ONE_FILE.format(".keras file"),
        f"{_HERE}.keras_saving:saving_whole",
        only="keras",
    ),
    keras_row(
        "whole files of weights",
        ("keras.src.saving.saving_lib:save_weights_only(model, filepath)",),
        "two tasks that save to one path damage the file",
        _ONE_FILE.format("file of weights"),
        f"{_HERE}.keras_saving:saving_whole",
        only="keras",
    ),
    keras_row(
        "whole .h5 files",
        ("keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5(model, filepath)",),
        "two tasks that save to one path damage the file",
        _ONE_FILE.format(".h5 file"),
        f"{_HERE}.keras_saving:saving_whole",
        only="keras",
    ),
    keras_row(
        "folders of saves",
        ("keras.src.utils.file_utils:makedirs(path)",),
        "two tasks that make one folder at the same moment fail",
        "tasks that save to one new folder at the same moment can fail: make it before",
        f"{_HERE}.keras_saving:making_folders",
        only="keras",
    ),
    keras_row(
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
    *in_both(
        "a hint on models",
        "{trainer}.make_train_function(force)",
        "a model made outside of strategy.scope() is trained by each task alone, without a word",
        "such a model gets no hint",
        f"{_HERE}.scope_hint:looking",
    ),
    keras_row(
        "a hint on clipping optimizers",
        (f"{_BASE}._clip_gradients(grads)",),
        "in a loop of the user's own an optimizer clips the gradients of one replica, without a word",
        "such an optimizer gets no hint",
        f"{_HERE}.loop_hints:looking_at_clips",
        only="strategies in keras",
    ),
    keras_row(
        "a hint on changed gradients",
        (f"{_BASE}.apply(grads, trainable_variables)",),
        "a loop of the user's own clips or changes the gradients of one replica, without a word",
        "such a loop gets no hint",
        f"{_HERE}.loop_hints:looking_at_gradients",
        only="strategies in keras",
    ),
    keras_row(
        "a hint on statistics",
        (
            f"{TRAINER}:TensorFlowTrainer|Trainer.make_train_function(force)",
            "keras.src.layers.layer:Layer._flatten_layers()",
        ),
        "BatchNormalization keeps statistics of each task's own rows, without a word",
        "a model with such layers gets no hint",
        f"{_HERE}.scope_hint:looking_at_statistics",
        only="strategies in keras",
    ),
    keras_row(
        "a hint on random layers",
        (
            f"{TRAINER}:TensorFlowTrainer|Trainer.make_train_function(force)",
            "keras.src.layers.layer:Layer._flatten_layers()",
        ),
        "layers such as Dropout draw other numbers on several tasks than in one process, without a word",
        "a model with such layers gets no hint",
        f"{_HERE}.scope_hint:looking_at_random_layers",
        only="strategies in keras",
    ),
    keras_row(
        "a hint on rows",
        (f"{TRAINER}:TFEpochIterator.__init__(distribute_strategy) uses _distributed_dataset",),
        "with the policy OFF a part of the rows is never read, without a word",
        "such data get no hint",
        f"{_HERE}.scope_hint:counting_rows",
        only="strategies in keras",
    ),
    tf_keras_row(
        "a hint on rows of tf_keras",
        ("tf_keras.src.engine.data_adapter:DataHandler.__init__(x, steps_per_epoch) uses _inferred_steps",),
        "with the policy OFF a part of the rows is never read, without a word",
        "such data get no hint",
        f"{_HERE}.scope_hint:counting_rows_of_keras_2",
        only="strategies in tf_keras",
    ),
    tf_keras_row(
        "a hint on changed gradients of tf_keras",
        ("tf_keras.src.optimizers.optimizer:Optimizer.apply_gradients(grads_and_vars)",),
        "a loop of the user's own changes the gradients of one replica, without a word",
        "such a loop gets no hint",
        f"{_HERE}.loop_hints:looking_at_gradients_of_keras_2",
        only="strategies in tf_keras",
    ),
    tf_keras_row(
        "hints on data of tf_keras",
        (
            "tf_keras.src.engine.data_adapter:DataHandler.__init__(x, shuffle) uses _adapter",
            "tf_keras.src.engine.data_adapter:DataAdapter.partial_batch_size()",
            "tensorflow.python.data.experimental.ops.distribute:compute_batch_size(dataset)",
            "tensorflow.python.eager.context:Context._set_global_seed uses _seed",
        ),
        "batches that cannot be divided evenly, and shuffled arrays, train other weights, without a word",
        "such data get no hint",
        f"{_HERE}.keras_2_hints:looking_at_data",
        only="strategies in tf_keras",
    ),
    keras_row(
        SCOPES,
        ("keras.src.backend.common.global_state:GLOBAL_STATE_TRACKER.__dict__",),
        "an interrupt can leave Keras' scopes entered",
        "after Ctrl-C a later fit can fail: restart the task then",
        only="in keras",
    ),
)
