"""Recognises what TensorFlow logs about itself, which views dim and fold. The log file keeps every byte.

The patterns were collected from TensorFlow 2.21 (absl's log format) and 2.16 (dated lines), and Keras 3.15.
Every line of level INFO is noise. Warnings and errors are noise only if each start on a healthy machine
without a GPU writes them, or each second strategy, or each `fit` of a dataset, or tfmagic has caused them: it
releases tasks whose peer has failed. Views show all other lines as the user's own.
"""

import re

_INFORMATION = (
    r"I0000 00:00:\d+\.\d+ +\d+ [\w.]+:\d+\] |\d{4}-\d\d-\d\d [\d:.]+: I [\w./]+:\d+\] |"
    r"INFO:tensorflow:"  # of its Python part, in a notebook
)
_HARMLESS_SOURCES = (
    # source files that log a warning or an error at each start without a GPU, or in each first epoch
    "cuda_platform|cudart_stub|cuda_executor|cuda_dnn|cuda_fft|cuda_blas|cuda_driver|cuda_diagnostics|"
    "computation_placer|gpu_device|port|cpu_feature_guard|dso_loader|"
    r"coordination_service\w*|grpc_server_lib|local_rendezvous"
)
_HARMLESS = (
    rf"[WE]0000 00:00:\d+\.\d+ +\d+ (?:{_HARMLESS_SOURCES})\.(?:cc|h):\d+\] |"
    rf"\d{{4}}-\d\d-\d\d [\d:.]+: [WE] [\w./]+/(?:{_HARMLESS_SOURCES})\.(?:cc|h):\d+\] |"
    r"W0000 .{0,60}\] Input of GeneratorDatasetOp::Dataset will not be optimized"
)
_BY_ITSELF = (
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR|"
    r"To enable the following instructions: |"
    r"/job:\w+/(?:replica:\d+/)?task:\d+$|"  # the list below "Example stragglers:"
    r"TF-TRT Warning: Could not find TensorRT|"
    r"The error could be from a previous operation\. Restart your program to reset\. \[type\.google|"
    r"\t \[\[\{\{function_node \S+\}\}\{\{node \S+\}\}\]\]$"  # the second line of a record about a failed op
)
_OF_EACH_FIT = (  # which has `shuffle=True` by default
    r"/.{0,300}/keras/src/trainers/\w+\.py:\d+: UserWarning: `shuffle=True` was passed, but will be ignored|"
    r"  self\.data_adapter = data_adapters\.get_data_adapter\($"
)
_OF_EACH_SECOND_STRATEGY = (  # tfmagic takes over the variables that were made before
    r"(?:WARNING:absl:|W\d{4} [\d:.]+ +\d+ context\.py:\d+\] )"
    r"Enabling collective ops after program startup may"
)
_OF_EACH_RELEASE = (  # tfmagic ends the collective of a task whose peer has failed; its error says so, too
    r"E0000 00:00:\d+\.\d+ +\d+ \w+\.cc:\d+\] (?:BaseCollectiveExecutor::StartAbort|Aborting \w+ with) "
    r"UNAVAILABLE: (?:Collective ops is aborted by: )?"
    r"(?:(?:chief|worker|ps|evaluator)-\d+ |tfmagic released this task: |a cell ended while)"
)
_NOISE = re.compile(
    f"(?:{_INFORMATION}|{_HARMLESS}|{_BY_ITSELF}|{_OF_EACH_FIT}|{_OF_EACH_SECOND_STRATEGY}|{_OF_EACH_RELEASE})"
)
_RECORD = re.compile(
    rf"{_NOISE.pattern}|[IWEF]\d{{4}} [\d:.]+ +\d+ [\w.]+:\d+\] |"
    r"\d{4}-\d\d-\d\d [\d:.]+: [IWEF] [\w./]+:\d+\] |"
    # further lines of a record about a peer that is gone
    r"The tasks have crashed\. |Additional GRPC error information |:UNKNOWN:|"
    r"The error could be from a previous operation\.|.*\[type\.googleapis\.com/tensorflow\."
)
_BEHIND = re.compile(
    r"(?<=[\w%])(?:[IWE]0000 00:00:|\d{4}-\d\d-\d\d [\d:.]+: [IWE] )"
)  # without a space: no quotation
_STARTS = frozenset("IWE0123456789/T\t ")  # the first character excludes most lines


def is_noise(text: str) -> bool:
    """Check whether this line, without colours, is TensorFlow's noise."""
    return text[:1] in _STARTS and _NOISE.match(text) is not None


def find_noise(text: str) -> int:
    """Return where TensorFlow's noise begins behind a text without a line break, such as a bar, or -1."""
    if not any(mark in text for mark in ("0000 00:00:", ": I ", ": W ", ": E ")):  # most lines, quickly
        return -1
    found = _BEHIND.search(text)
    return found.start() if found is not None and is_noise(text[found.start() :]) else -1


def is_record(text: str) -> bool:
    """Check whether TensorFlow's own log has this line, of any level: a noise, a warning or an error."""
    return _RECORD.match(text) is not None
