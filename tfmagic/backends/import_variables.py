"""Environment variables that TensorFlow and its libraries read when they are imported.

A launcher imports under those of its environment, and can fork only tasks that have the same.
"""

import sys
from collections.abc import Mapping

_AT_IMPORT = (  # by the beginning of their names; read once, also if the library is not used
    "TF_CPP_", "TF_ENABLE_ONEDNN_OPTS", "TF_ENABLE_ZENDNN_OPTS", "TF_USE_LEGACY_KERAS", "KERAS_",
    "TF_CUFFT_WORKSPACE_LIMIT_IN_MB", "TF_ENABLED_DEVICE_TYPES", "TF_USE_MODULAR_FILESYSTEM",
    "TF_ENABLE_CONTROL_FLOW_V2", "TF_FORWARD_COMPATIBILITY_DELTA_DAYS", "TF_FUNCTION_JIT_COMPILE_DEFAULT",
    "TF_JIT_COMPILE_REWRITE", "TF_NP_", "TF_OPTIONALS_IN_GRADIENTS", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH",
    "TF_XLA_SHARDING_FOR_RESOURCE_VARIABLES", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_",
    "NPY_", "NUMPY_", "NUMEXPR_", "PANDAS_", "SCIPY_", "SKLEARN_", "HDF5_", "GCS_", "ARROW_", "JE_ARROW_",
    "MATPLOTLIBRC", "MPLCONFIGDIR", "PROTOCOL_BUFFERS_", "TMPDIR",
)  # fmt: skip  # measured with TensorFlow 2.21: of os.environ, and of getenv(3) by a preloaded library
_FAMILIES = (  # of which other versions can read more at the import, or the system when a process starts
    "TF_", "XLA_", "CUDA_", "NVIDIA_", "ONEDNN_", "DNNL_", "GRPC_", "ABSL_", "LD_", "PYTHON", "MALLOC_",
)  # fmt: skip
_OF_LIBRARIES = (  # which scikit-learn and TensorFlow set themselves when they are imported
    ("KMP_DUPLICATE_LIB_OK", "True"), ("KMP_INIT_AT_FORK", "FALSE"), ("HDF5_PLUGIN_PATH", "disable"),
)  # fmt: skip
_READ_LATER = (  # by TensorFlow when its context starts, or set by us for each task
    "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS", "TF_DETERMINISTIC_OPS", "PYTHONHASHSEED", "PYTHONUNBUFFERED",
    "GRPC_FAIL_FAST",
)  # fmt: skip


def is_read_at_import(name: str) -> bool:
    """Check whether a program must set this variable before it imports TensorFlow; later is too late."""
    return name.startswith(_AT_IMPORT)


def import_time_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that TensorFlow or its libraries can read when they are loaded.

    What a library has set in this process, since the user has imported it here, is left out.
    """
    found = {
        name: value
        for name, value in environ.items()
        if name.startswith(_AT_IMPORT + _FAMILIES)
        and name not in _READ_LATER
        and (name, value) not in _OF_LIBRARIES
    }
    if "jax" in sys.modules and found.get("TF_CPP_MIN_LOG_LEVEL") == "1":
        del found["TF_CPP_MIN_LOG_LEVEL"]
    path = [folder for folder in found.pop("LD_LIBRARY_PATH", "").split(":") if "/cv2/" not in folder]
    return {**found, "LD_LIBRARY_PATH": ":".join(path)} if any(path) else found


def with_changes(environ: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment with other values; None removes a variable."""
    return {name: value for name, value in {**environ, **changes}.items() if value is not None}
