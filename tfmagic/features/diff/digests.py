"""What is compared of a variable over tasks: its parts, each with a digest that is equal where the value is.

    model ── parts_of ──→ {"dense/kernel": PartDigest(array float32 [784, 10], digest), ...}
    arrays whose digests differ ── arrays_of ──→ their values, for the size and the place of the difference
    rows ── row_digests ──→ which task has which rows

Runs on the tasks, and imports nothing that the user's code has not imported.
"""

import dataclasses
import hashlib
import itertools
import numbers
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tfmagic.protocol.payload import Record
from tfmagic.serialization.process_bound import home_of

_MOST_PARTS = 2_000
_MOST_ROWS = 1_000_000
_MOST_DEPTH = 8
_TEXT = 200
_DIGEST_BYTES = 8
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_NUMBER = re.compile(r"_\d+(?=[/_]|$)")  # of a layer: Keras counts what a process has made


class PartDigest(Record, frozen=True):
    """One part of a value.

    Attributes:
        kind: ``array float32 [784, 10]``, a type, or what is missing.
        digest: Equal where the part is.
        text: The value of a short part, else "".
        is_array: Whether the values can be compared number by number.
        is_hidden: Whether it shows nothing but its type, as a generator does.
        unnumbered: The path of a weight without the numbers of its layers, which differ between a process
            that has made other models before and one that was started again; "" if it is no weight.
    """

    kind: str
    digest: str
    text: str = ""
    is_array: bool = False
    is_hidden: bool = False
    unnumbered: str = ""


def parts_of(name: str) -> dict[str, PartDigest]:
    """Return the parts of a variable of this task, by their path within it.

    Raises:
        NameError: There is no such variable.
    """
    return {path: _describe(value, path) for path, value in _walk(lookup(name))}


def arrays_of(name: str, paths: tuple[str, ...]) -> dict[str, Any]:
    """Return the arrays at these paths."""
    wanted = set(paths)
    return {path: _array(value) for path, value in _walk(lookup(name)) if path in wanted}


def own_statistics(name: str) -> list[str]:
    """Return the paths of the statistics of a model that each task keeps of its own rows, by design."""
    value = lookup(name)
    layers: Any = getattr(value, "_flatten_layers", tuple)()
    own = {
        id(weight)
        for layer in layers
        if not getattr(layer, "synchronized", True)  # of BatchNormalization
        for weight in layer.non_trainable_weights
    }
    return [path for path, weight in _walk(value) if id(weight) in own] if own else []


def row_digests(name: str) -> list[bytes]:
    """Return a digest of each row of all arrays of a variable: of a batch, or of a list of batches."""
    return rows_of_value(lookup(name))


def rows_of_value(value: Any) -> list[bytes]:
    """Return the same of a value, at most a million."""
    found: list[bytes] = []
    for _, part in _walk(value):
        array = _array(part)
        if array is not None and array.ndim:
            dtype = str(array.dtype).encode()
            found += [_hash(dtype, row.tobytes()) for row in array[: _MOST_ROWS - len(found)]]
    return found


def lookup(name: str) -> Any:
    """Return a variable of this task, or an attribute of one (``model.optimizer``)."""
    first, *rest = name.split(".")
    namespace = sys.modules["__main__"].__dict__
    if first not in namespace:
        raise NameError(f"name {first!r} is not defined")
    value = namespace[first]
    for attribute in rest:
        value = getattr(value, attribute)
    return value


def _walk(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, at most some thousand."""
    yield from itertools.islice(_parts(value, path, depth), _MOST_PARTS)


def _parts(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    children = None if depth > _MOST_DEPTH else _children(value)
    if children is None:
        yield path, value
        return
    for name, child in children.items():
        yield from _parts(child, f"{path}/{name}" if path else name, depth + 1)


def _children(value: Any) -> dict[str, Any] | None:
    """Split a value into its parts; None if it is compared as a whole."""
    if _array(value) is not None:
        return None
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, str):
        names = getattr(value, "_fields", None) or range(len(value))
        return {str(name): item for name, item in zip(names, value, strict=True)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    module = home_of(type(value))
    if hasattr(value, "element_spec") and hasattr(value, "options"):
        return _dataset(value)
    if module.startswith("pandas") and hasattr(value, "columns"):
        return {str(name): value[name].to_numpy() for name in value.columns}
    if hasattr(value, "history") and hasattr(value, "epoch"):  # what `fit` returns
        return {str(name): losses for name, losses in value.history.items()}
    weights = getattr(value, "weights", None)
    if isinstance(weights, list) and weights:
        names = list(map(_name_of_weight, weights))
        unique = [name if names.count(name) == 1 else f"{name}#{n}" for n, name in enumerate(names)]
        return dict(zip(unique, weights, strict=True))
    local = getattr(value, "values", None)
    if "PerReplica" in type(value).__name__ and isinstance(local, tuple):
        return {f"replica {n}": item for n, item in enumerate(local)}
    if type(value).__name__ in ("Namespace", "SimpleNamespace"):
        return dict(vars(value))
    return _attributes(value) or None


def _name_of_weight(weight: Any) -> str:
    return str(getattr(weight, "path", "") or getattr(weight, "name", ""))


def _unnumbered(path: str, value: Any) -> str:
    own = _name_of_weight(value) if hasattr(value, "trainable") else ""
    return f"{path.removesuffix(own)}{_NUMBER.sub('', own)}" if own and path.endswith(own) else ""


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object of the user's classes that has no repr of its own."""
    kind: Any = type(value)
    file = getattr(sys.modules.get(home_of(kind)), "__file__", None) or ""
    if kind.__repr__ is not object.__repr__ or "site-packages" in file:
        return {}
    found = dict(getattr(value, "__dict__", {}))
    slots = (getattr(one, "__slots__", ()) for one in kind.__mro__)
    names = itertools.chain.from_iterable((each,) if isinstance(each, str) else each for each in slots)
    return found | {
        name: getattr(value, name) for name in {*names} - {"__dict__", "__weakref__"} if hasattr(value, name)
    }


def _dataset(value: Any) -> dict[str, Any]:
    """Return the settings of a data set of tf.data; its elements are not read."""
    options = value.options()
    named = {
        f"options.{name}": str(getattr(options, name)) for name in ("deterministic", "autotune", "threading")
    }
    policy = options.experimental_distribute.auto_shard_policy
    size = value.cardinality() if hasattr(value, "cardinality") else ""
    return {
        "element_spec": str(value.element_spec),
        "cardinality": str(size.numpy() if hasattr(size, "numpy") else size),
        "options.auto_shard_policy": str(policy),
        **named,
    }


def _array(value: Any) -> Any:
    """Return a value as an array of numpy's; None if it is none."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, list) and len(value) > 1 and all(type(item) in (int, float) for item in value):
        return numpy.asarray(value)  # of losses, for example
    if isinstance(value, numpy.ndarray | numpy.generic):
        found = numpy.asarray(value)
    elif callable(getattr(value, "numpy", None)) and hasattr(value, "dtype") and hasattr(value, "shape"):
        found = numpy.asarray(value.numpy())
    elif home_of(type(value)).startswith("pandas") and hasattr(value, "array"):  # a series
        found = value.to_numpy()
    else:
        return None
    return None if found.dtype == object else found


def _describe(value: Any, path: str) -> PartDigest:
    array = _array(value)
    if array is not None:
        kind = f"{array.dtype} {list(array.shape)}" if array.ndim else str(array.dtype)
        is_number = array.dtype.kind in "biufc"
        text = str(array.item()) if not array.ndim else ""
        digest = _hash(kind.encode(), array.tobytes()).hex()
        return PartDigest(kind, digest, text, is_number, unnumbered=_unnumbered(path, value))
    text = repr(value)
    kind = type(value).__name__
    is_number = isinstance(value, numbers.Number)
    shown = _ADDRESS.sub("", text)  # which differs in each process
    is_hidden = shown != text
    return PartDigest(kind, _hash(kind.encode(), shown.encode()).hex(), shown[:_TEXT], is_number, is_hidden)


def _hash(*pieces: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
