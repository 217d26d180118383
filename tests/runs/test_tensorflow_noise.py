"""Noise is distinguished from lines that a user must see. All are real lines of TensorFlow 2.21 and 2.16."""

import pytest

from tfmagic.runs.tensorflow_noise import is_noise, is_record

CHATTER = [
    "The error could be from a previous operation. Restart your program to reset. "
    "[type.googleapis.com/tensorflow.DerivedStatus='']",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795263132.426098   21339 port.cc:153] oneDNN custom operations are on. You may see",
    "I0000 00:00:1795263132.426632   21339 cudart_stub.cc:31] Could not find cuda drivers on your machine",
    "To enable the following instructions: AVX2 AVX512F AVX512_VNNI FMA, in other operations, rebuild",
    "E0000 00:00:1795263138.809366   21339 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error",
    "I0000 00:00:1795263129.712874   20724 coordination_service.cc:502] Waiting for 1/2 tasks to connect.",
    "/job:worker/replica:0/task:0",
    "I0000 00:00:1795263130.448638   20707 generator_dataset_op.cc:213] Memory patch applied",
    "W0000 00:00:1795263130.458728   20707 dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be optimized because",
    "2024-05-01 10:00:00.123456: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.",
    "2024-05-01 10:00:00.123456: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN",
    "INFO:tensorflow:Using MirroredStrategy with devices ('/job:localhost/replica:0/task:0/device:CPU:0',)",
    "WARNING:absl:Enabling collective ops after program startup may cause error when accessing previously created",
    "W1128 22:35:21.321846   24590 context.py:818] Enabling collective ops after program startup may cause error when",
    "/home/me/my venv/lib/python3.11/site-packages/keras/src/trainers/epoch_iterator.py:74: UserWarning: `shuffle=True` "
    "was passed, but will be ignored since the data `x` was provided as a tf.data.Dataset. The Dataset is expected",
    "  self.data_adapter = data_adapters.get_data_adapter(",
    "E0000 00:00:1795980965.471013    7066 base_collective_executor.cc:252] BaseCollectiveExecutor::StartAbort UNAVAILABLE: "
    "worker-1 raised ValueError",
    "E0000 00:00:1795980965.471142    7066 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE: Collective ops is aborted "
    "by: worker-1 raised ValueError",
    "\t [[{{function_node __inference_one_step_on_data_841}}{{node sequential_1/embedding_1/GatherV2}}]]",
]
NEWS = [
    "",
    "E0000 00:00:1795980965.471013    7066 base_collective_executor.cc:252] BaseCollectiveExecutor::StartAbort UNAVAILABLE: "
    "Connection reset by peer",
    "epoch 1: loss 0.3",
    "Traceback (most recent call last):",
    "I am worker-0",
    "WARNING: my own",
    "WARNING:tensorflow:5 out of the last 9 calls to <function f> triggered tf.function retracing.",
    "INFO:mine:epoch 1",
    "W0000 00:00:1795263130.458728   20707 op_kernel.cc:1857] OP_REQUIRES failed at transpose_op.cc:157",
    "E0000 00:00:1795263130.458728   20707 out_of_memory.cc:1] OOM",
    "2024-05-01 10:00:00.123456: W tensorflow/core/framework/op_kernel.cc:1839] OP_REQUIRES failed",
    "To enable it, set x",
    "/job:worker/replica:0/task:0 said this",
    "2024-05-01 10:00:00 my own log line",
    "\t [[{{node MatMul}}]] [Op:__inference_f_54]",  # the end of an exception that the user has printed
    "\tmy own",
    "  my own",
    "/home/me/train.py:74: UserWarning: `shuffle=True` was passed, but will be ignored",
    "WARNING:absl:my own",
    "  adapter = data_adapters.get_data_adapter(x)",
]


@pytest.mark.parametrize("line", CHATTER)
def test_start_up_lines_are_noise(line):
    assert is_noise(line)


@pytest.mark.parametrize("line", NEWS)
def test_lines_that_matter_are_not_noise(line):
    assert not is_noise(line)


@pytest.mark.parametrize("line", CHATTER)
def test_start_up_lines_are_of_tensorflows_log(line):
    assert is_record(line)


@pytest.mark.parametrize("line", NEWS)
def test_warnings_and_errors_in_cpp_are_of_tensorflows_log_and_lines_of_python_are_not(line):
    assert is_record(line) == any(
        name in line for name in ("op_kernel.cc", "out_of_memory.cc", "collective_executor.cc")
    )
