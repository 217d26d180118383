"""Replace TensorFlow's context in a process that has already used it, and move the program's objects over.

A multi-worker strategy gives the devices of its process other names, and TensorFlow allows that only before
the first op. Measured on TensorFlow 2.16 and 2.21, where the context is replaced later: tensors still work;
variables, data sets and iterators are bound to a device that is gone, and traced functions run in the old
context. So the program's objects are moved: variables with their values, data sets as they are, iterators
with their position, functions by being traced again. Values are read before the old context goes and written
when the new one has started. Objects that cannot be moved, such as a look-up table, are named in an error
before anything is changed.
"""

import gc
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

_SETTINGS_KEPT = (  # of the old context; the others are set by the strategy or derived
    "_seed",
    "_rng",
    "_soft_device_placement",
    "_log_device_placement",
    "_inter_op_parallelism_threads",
    "_intra_op_parallelism_threads",
    "_visible_device_list",
    "_memory_growth_map",
    "_virtual_device_map",
    "_optimizer_jit",
    "_optimizer_experimental_options",
    "_jit_compile_rewrite",
)
_ALONE = "/job:localhost/"  # the devices of a process without a cluster

Write = Callable[[dict[int, Any]], None]
"""Writes an object to the new context. Its argument maps the `id` of old handles to new ones."""

_waiting: list[Write] = []  # until the new context has started


class NotMovable(Exception):
    """Objects live that cannot be moved to a new context; `kinds` are the names of their classes."""

    def __init__(self, kinds: list[str]):
        self.kinds = kinds
        super().__init__(", ".join(kinds))


def replace_context() -> Any:
    """Replace TensorFlow's context by a new one with the same settings, and return it.

    Raises:
        NotMovable: Objects live that cannot be moved; nothing was changed.
    """
    from tensorflow.python.eager import context

    gc.collect()  # drops objects that only frames of an error refer to
    old = context._context
    living = gc.get_objects()
    lost = _unmovable(living)
    is_alone = not old._collective_leader  # no strategy, or one without other tasks
    writes = _read(living, lost) if is_alone else []  # else the devices keep their names
    if lost:
        raise NotMovable(sorted(lost))
    _waiting.extend(writes)  # after those of a context that did not start
    settings = {name: getattr(old, name) for name in _SETTINGS_KEPT if hasattr(old, name)}
    context._reset_context()
    new = context.context()
    for name, value in settings.items():
        setattr(new, name, value)
    if getattr(new, "_rng", None) is None:
        new._rng = random.Random()
    if _waiting:
        new.ensure_initialized = partial(_start, new)
    return new


def start_alone() -> None:
    """Start the new context without peers, if no strategy has. The program's objects move to it.

    An op that started it would already hold a variable's handle of the old context, and change that in vain.
    """
    if not _waiting:
        return
    from tensorflow.python.eager import context

    current = context._context
    if current is not None and current._context_handle is None and current._collective_ops_server_def is None:
        current._collective_leader = None  # the next strategy is the first one again
        current.ensure_initialized()


def _start(context: Any) -> None:
    """Start the context, which waits for its peers, and write the objects to it."""
    type(context).ensure_initialized(context)
    writes = list(_waiting)
    _waiting.clear()
    vars(context).pop("ensure_initialized", None)
    handles: dict[int, Any] = {}
    failed = []
    for write in writes:
        try:
            write(handles)
        except Exception as error:  # private parts of an object can differ from those measured
            failed.append(error)
    if failed:
        print(
            f"tfmagic: {len(failed)} of {len(writes)} objects that TensorFlow had before this strategy could "
            f"not be carried over; make them again if you need them. The first error: {failed[0]!r}",
            file=sys.stderr,
        )


def _unmovable(objects: list[Any]) -> set[str]:
    """Return the names of classes whose objects can never be moved."""
    from tensorflow.python.ops import data_flow_ops, lookup_ops

    kinds = (lookup_ops.LookupInterface, data_flow_ops.QueueBase, data_flow_ops.BaseStagingArea)
    return {type(item).__name__ for item in _of(objects, kinds)}


def _of(objects: list[Any], kinds: type | tuple[type, ...]) -> list[Any]:
    """Return the objects of these classes; without isinstance(), which runs code of the user's proxies."""
    return [item for item in objects if issubclass(type(item), kinds)]


def _read(living: list[Any], lost: set[str]) -> list[Write]:
    """Read the program's objects in the old context; objects that use others come after them.

    `lost` gets the names of those that cannot be moved.
    """
    from tensorflow.python.data.ops import dataset_ops, iterator_ops
    from tensorflow.python.eager import polymorphic_function as functions
    from tensorflow.python.ops import resource_variable_ops, summary_ops_v2

    writes: list[Write] = []

    def read(kind: type, handle: str, how: Callable[[Any], Write], name: str) -> None:
        for item in _of(living, kind):
            try:
                if _is_alone(getattr(item, handle, None)):
                    writes.append(how(item))
            except Exception:  # the class depends on what the object uses
                lost.add(name)

    if not all(writer._closed for writer in _of(living, summary_ops_v2._ResourceSummaryWriter)):
        lost.add("open summary writer")
    read(resource_variable_ops.BaseResourceVariable, "_handle", _read_variable, "variable")
    read(dataset_ops.DatasetV2, "_variant_tensor_attr", _read_data_set, "tf.data.Dataset")
    read(iterator_ops.OwnedIterator, "_iterator_resource", _read_iterator, "iterator over a tf.data.Dataset")
    writes += [partial(_write_definition, f) for f in _of(living, functions.atomic_function.AtomicFunction)]
    writes += [partial(_write_captures, f) for f in _of(living, functions.concrete_function.ConcreteFunction)]
    writes += [partial(_forget_traces, f) for f in _of(living, functions.polymorphic_function.Function)]
    return writes


def _is_alone(handle: Any) -> bool:
    """Check whether it is a tensor on a device of this process without a cluster."""
    from tensorflow.python.framework import ops

    return isinstance(handle, ops.EagerTensor) and _ALONE in handle.device


def _device_of(handle: Any) -> str:
    return f"/{handle.device.rpartition('/')[2]}"  # such as /device:CPU:0


def _read_variable(variable: Any) -> Write:
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import gen_resource_variable_ops, resource_variable_ops

    old = variable._handle
    value: Any = None
    if gen_resource_variable_ops.var_is_initialized_op(old):
        value = gen_resource_variable_ops.read_variable_op(old, variable.dtype)

    def write(handles: dict[int, Any]) -> None:
        if id(old) not in handles:  # the return value of assign() shares its variable's handle
            with ops.device(_device_of(old)):
                new = resource_variable_ops._variable_handle_from_shape_and_dtype(
                    variable.shape, variable.dtype, None, "Variable", False, value
                )
                if value is not None:
                    gen_resource_variable_ops.assign_variable_op(new, value)
            handles[id(old)] = new
        variable._handle = handles[id(old)]

    return write


def _read_data_set(data_set: Any) -> Write:
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import array_ops, gen_experimental_dataset_ops

    graph = None
    if any(_names_device(function) for function in _functions_of(data_set)):
        from tensorflow.core.framework import graph_pb2
        from tensorflow.python.data.ops import options

        policy = options.ExternalStatePolicy.IGNORE
        graph = graph_pb2.GraphDef.FromString(
            data_set._as_serialized_graph(external_state_policy=policy).numpy()
        )
        for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
            for node in nodes:
                node.device = "" if _ALONE in f"{node.device}/" else node.device
    content = graph and graph.SerializeToString()
    old = data_set._variant_tensor_attr

    def write(handles: dict[int, Any]) -> None:
        if id(old) not in handles:
            with ops.device(_device_of(old)):
                make = gen_experimental_dataset_ops.dataset_from_graph
                handles[id(old)] = make(content) if content else array_ops.identity(old)
        data_set._variant_tensor_attr = handles[id(old)]

    return write


def _functions_of(data_set: Any) -> Iterator[Any]:
    for made in data_set._functions():
        yield made.function._inference_function
    for source in data_set._inputs():
        yield from _functions_of(source)


def _names_device(function: Any) -> bool:
    """Check whether an op of the function was placed on a device by name, as calls of Python are."""
    nodes = function.cached_definition.node_def
    return any(_ALONE in f"{node.device}/" for node in nodes) or any(map(_names_device, function.children))


def _read_iterator(iterator: Any) -> Write:
    from tensorflow.python.data.ops import options
    from tensorflow.python.ops import gen_dataset_ops

    policy, data_set = options.ExternalStatePolicy.IGNORE.value, iterator._dataset
    old = iterator._iterator_resource
    state = gen_dataset_ops.serialize_iterator(old, external_state_policy=policy)

    def write(handles: dict[int, Any]) -> None:
        iterator._create_iterator(data_set)
        gen_dataset_ops.deserialize_iterator(iterator._iterator_resource, state)
        handles[id(old)] = iterator._iterator_resource

    return write


def _write_definition(function: Any, _handles: dict[int, Any]) -> None:
    """Let a traced function run in the new context."""
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function import atomic_function

    old, new = function._bound_context, context.context()
    uses = atomic_function.RUNTIME_FUNCTION_REFS
    here = (new.function_scope_id, function.name)
    if not new.has_function(function.name):
        new.add_function_def(old.get_function_def(function.name))
    uses[here] = uses.get(here, 0) + 1
    uses[old.function_scope_id, function.name] -= 1  # its definition there goes with the old context
    function._bound_context = new


def _write_captures(function: Any, handles: dict[int, Any]) -> None:
    """Let a traced function to which the program refers use the new handles."""
    captures = function._captured_inputs
    for place, captured in enumerate(captures):
        captures[place] = handles.get(id(captured), captured)


def _forget_traces(function: Any, _handles: dict[int, Any]) -> None:
    """Let a tf.function be traced again at its next call."""
    from tensorflow.core.function.capture import capture_container
    from tensorflow.core.function.polymorphism import function_cache

    function._function_cache = function_cache.FunctionCache()
    function._function_captures = capture_container.FunctionCaptures()
    function._created_variables = None
    function._variable_creation_config = None
    function._no_variable_creation_config = None
