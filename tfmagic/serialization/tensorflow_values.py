"""Pickle objects of TensorFlow and Keras: data sets, tf.functions, models, metrics, composite tensors.

A data set travels as its graph, which holds its data and options. A tf.function travels as its Python
function, which is traced again in the other process. A process that has not imported TensorFlow does not
import it because of this module.
"""

import importlib
import sys
import threading
from importlib.abc import MetaPathFinder
from typing import Any

from tfmagic.serialization import definitions, keras_values
from tfmagic.serialization.process_bound import StaysHere, home_of

ROOTS = frozenset({"tensorflow", "keras", "tf_keras"})
_FUNCTION = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
_DATASETS = "tensorflow.python.data.ops.dataset_ops"
_FIELDS = "tensorflow.python.framework.extension_type_field"
_PYTHON_OPS = ("PyFunc", "EagerPyFunc", "PyFuncStateless")

Reduced = tuple[Any, ...]


class NeedsTensorFlow(Exception):
    """Unpickling would import TensorFlow into a process that has not imported it."""


class WithoutTensorFlow(MetaPathFinder):
    """A context in which any module that would import TensorFlow in this thread gets `NeedsTensorFlow`."""

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        sys.meta_path.insert(0, self)

    def __exit__(self, *error: object) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name in ROOTS and threading.get_ident() == self._thread:
            raise NeedsTensorFlow(name)


def is_of_tensorflow(obj: object) -> bool:
    """Check whether the class of `obj` is TensorFlow's or Keras', and TensorFlow is imported."""
    return "tensorflow" in sys.modules and home_of(type(obj)).partition(".")[0] in ROOTS


def is_of_keras(obj: object) -> bool:
    """Check whether `obj` is a model, layer, metric or optimizer, also of a class of the user's."""
    return _is_a(obj, "keras.src.saving.keras_saveable", "KerasSaveable")


def content_of(obj: Any) -> Any:
    """Return the state of one of TensorFlow's or Keras' objects that can change."""
    if is_of_keras(obj):
        return keras_values.reduce(obj)[1]
    if is_traceable(obj):
        return obj.python_function
    variables = [obj] if is_tensor(obj) and hasattr(obj, "assign") else getattr(obj, "variables", None)
    return [v.numpy() for v in variables] if isinstance(variables, list | tuple) else None


def is_traceable(obj: object) -> bool:
    """Check whether ``@tf.function`` has made it."""
    return _is_a(obj, _FUNCTION, "Function")


def _is_a(obj: object, module: str, name: str) -> bool:
    """Check for a class without importing its module."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(obj, getattr(loaded, name))


def is_tensor(obj: Any) -> bool:
    """Check whether `obj` is an eager tensor or a variable."""
    if not is_of_tensorflow(obj):
        return False
    tensorflow = sys.modules["tensorflow"]
    return isinstance(obj, tensorflow.Tensor | tensorflow.Variable) and hasattr(obj, "numpy")


def reduce(obj: Any) -> Reduced | None:
    """Return how `pickle` rebuilds one of TensorFlow's objects; None if it does so by itself.

    Raises:
        StaysHere: It is part of this process, such as a lookup table.
    """
    if is_of_keras(obj):
        return keras_values.reduce(obj)
    if not is_of_tensorflow(obj):
        return None
    if is_traceable(obj):
        return _reduce_traceable(obj)
    fields = sys.modules.get(_FIELDS)
    if fields is not None and obj is fields.ExtensionTypeField.NO_DEFAULT:  # TensorFlow compares by identity
        return definitions.find(_FIELDS, "ExtensionTypeField.NO_DEFAULT")
    if _is_a(obj, _DATASETS, "DatasetV2"):
        return _reduce_dataset(obj)
    if _is_a(obj, "tensorflow.python.ops.lookup_ops", "LookupInterface"):
        raise StaysHere("a lookup table lives in the TensorFlow of this process; make it in the cell")
    if _is_a(obj, "tensorflow.python.data.ops.iterator_ops", "OwnedIterator"):
        raise StaysHere("an iterator over a tf.data.Dataset stays in its process; call iter() in the cell")
    tensorflow = sys.modules["tensorflow"]
    if isinstance(obj, tensorflow.RaggedTensor | tensorflow.SparseTensor | tensorflow.IndexedSlices):
        parts = tensorflow.nest.flatten(obj, expand_composites=True)
        return _make_composite, (obj._type_spec, [part.numpy() for part in parts])
    return None


def _make_composite(spec: Any, parts: list[Any]) -> Any:
    import tensorflow as tf

    return tf.nest.pack_sequence_as(spec, [tf.constant(part) for part in parts], expand_composites=True)


# ---- tf.function --------------------------------------------------------------------------------


def _reduce_traceable(function: Any) -> Reduced:
    python_function = function.python_function
    module, path = python_function.__module__, getattr(python_function, "__qualname__", "")
    if definitions.is_found(function, module, path):
        return definitions.find(module, path)
    options = {
        "name": function._name,
        "input_signature": function.input_signature,
        "autograph": function._autograph,
        "jit_compile": function._jit_compile,
        "reduce_retracing": function._reduce_retracing,
        "experimental_attributes": function._attributes,
        "experimental_autograph_options": function._experimental_autograph_options,
    }
    return _make_traceable, (python_function, options)


def _make_traceable(python_function: Any, options: dict[str, Any]) -> Any:
    return importlib.import_module(_FUNCTION).Function(python_function, **options)


# ---- data sets ----------------------------------------------------------------------------------


def _reduce_dataset(dataset: Any) -> Reduced:
    graph = _graph_of(dataset)
    ops = _ops_of(graph)
    if ops & set(_PYTHON_OPS):
        raise StaysHere(
            "a tf.data.Dataset that calls Python, as from_generator, py_function and numpy_function do, "
            "stays in its process; make it in a function and call that in the cell"
        )
    if any("HashTable" in op or "LookupTable" in op for op in ops):
        raise StaysHere(
            "a tf.data.Dataset that uses a lookup table stays in its process; make both in the cell"
        )
    return _make_dataset, (graph, dataset.element_spec)


def _graph_of(dataset: Any) -> bytes:
    import tensorflow as tf

    policy = importlib.import_module("tensorflow.python.data.ops.options").ExternalStatePolicy.IGNORE
    try:
        with tf.device("/cpu:0"):
            return bytes(dataset._as_serialized_graph(external_state_policy=policy).numpy())
    except Exception as error:  # the class depends on what the data set uses
        reason = str(error).partition("\n")[0][:200]
        raise StaysHere(
            f"this tf.data.Dataset has no graph that can travel ({reason}); make it in the cell"
        ) from error


def _ops_of(graph: bytes) -> set[str]:
    from tensorflow.core.framework import graph_pb2

    found = graph_pb2.GraphDef.FromString(graph)
    inner = (node.op for function in found.library.function for node in function.node_def)
    return {node.op for node in found.node}.union(inner)


def _make_dataset(graph: bytes, element_spec: Any) -> Any:
    import tensorflow as tf

    ops = importlib.import_module("tensorflow.python.ops.gen_experimental_dataset_ops")
    with tf.device("/cpu:0"):
        variant = ops.dataset_from_graph(graph)
    return importlib.import_module(_DATASETS).from_variant(variant, element_spec)
