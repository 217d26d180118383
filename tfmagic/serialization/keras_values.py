"""Pickle models, layers, metrics and losses of Keras with the functions and classes of the user's in them.

    model ── Keras saves it ──→ its file, where a function or class is a name
          ── its objects are searched ──→ {name: function or class}, which travel by value with what they use

Keras finds such a name in the process that saved it, but not in another one. It saves a ``lambda`` as code,
without the globals that this reads. So each function has another, unique name while Keras saves.
Part of `tfmagic.serialization.tensorflow_values`.
"""

import contextlib
import importlib
import inspect
import io
import json
import sys
import types
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

Reduced = tuple[Any, ...]
_LIBRARIES = frozenset({"tensorflow", "keras", "tf_keras"})


def reduce(obj: Any) -> Reduced:
    """Return how `pickle` rebuilds a Keras object."""
    functions, classes = _users_parts_of(obj)
    with _named_apart(functions) as named:
        for cls in classes:
            named |= {cls.__name__: cls, sys.modules["keras"].saving.get_registered_name(cls): cls}
        if isinstance(obj, sys.modules["keras"].metrics.Metric) and (reduced := _reduce_metric(obj, named)):
            return reduced
        form, config = _saved(obj)
    return _load, (form, {name: part for name, part in named.items() if json.dumps(name) in config})


def _saved(obj: Any) -> tuple[bytes, str]:
    """Return the saved form of a Keras object, which is equal for an equal object: without any time.

    Also return the configuration in it, which names functions and classes.
    """
    found, steady = io.BytesIO(), io.BytesIO()
    save = importlib.import_module("keras.src.saving.saving_lib")._save_model_to_fileobj
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a lambda in it is loaded by ourselves
        save(obj, found, *(["h5"] if "weights_format" in inspect.signature(save).parameters else []))
    with zipfile.ZipFile(found) as parts, zipfile.ZipFile(steady, "w") as made:
        for name in parts.namelist():
            content = parts.read(name)
            if name == "metadata.json":
                content = json.dumps({**json.loads(content), "date_saved": ""}).encode()
            made.writestr(zipfile.ZipInfo(name), content)
        config = parts.read("config.json").decode()
    return steady.getvalue(), config


def _is_users(kind: Any) -> bool:
    return str(kind.__module__).partition(".")[0] not in _LIBRARIES


def _users_parts_of(obj: Any) -> tuple[list[types.FunctionType], set[type]]:
    """Return the functions in a Keras object, and the classes of its parts, that are not of Keras."""
    functions: list[types.FunctionType] = []
    classes: set[type] = set()
    seen: dict[int, object] = {}  # keeps them alive, so that an id is not used twice
    rest: list[Any] = [obj]
    while rest:
        found = rest.pop()
        if id(found) in seen:
            continue
        seen[id(found)] = found
        kind: Any = type(found)
        if kind is types.FunctionType:
            functions += [found] if _is_users(found) else []
        elif isinstance(found, dict):
            rest += found.values()
        elif isinstance(found, list | tuple | set):
            rest += found
        elif str(kind.__module__).partition(".")[0] == "keras" or hasattr(kind, "get_config"):
            rest += getattr(found, "__dict__", {}).values()
            if _is_users(kind):
                classes.add(kind)
    return functions, classes


@contextlib.contextmanager
def _named_apart(functions: list[types.FunctionType]) -> Iterator[dict[str, Any]]:
    """Give each function a name of its own; yield the functions by these names."""
    names = [function.__name__ for function in functions]
    get_name = sys.modules["keras"].saving.get_registered_name
    try:
        for number, function in enumerate(functions):
            function.__name__ = f"function_{number}_{function.__name__.strip('<>')}"
        yield {get_name(function): function for function in functions}
    finally:
        for function, name in zip(functions, names, strict=True):
            function.__name__ = name


def _load(saved: bytes, named: dict[str, Any]) -> Any:
    keras = importlib.import_module("keras")
    load = importlib.import_module("keras.src.saving.saving_lib")._load_model_from_fileobj
    with keras.saving.custom_object_scope(named):
        return load(io.BytesIO(saved), custom_objects=None, compile=True, safe_mode=False)


def _reduce_metric(metric: Any, named: dict[str, Any]) -> Reduced | None:
    """Return how a metric is made with its state, which Keras itself leaves behind, or None."""
    try:
        values = [variable.numpy() for variable in metric.variables]
        made = (type(metric), metric.get_config(), values, named)
        _make_metric(*made)
    except Exception:  # its variables are made later, or it cannot be made from its configuration
        return None
    return _make_metric, made


def _make_metric(cls: Any, config: dict[str, Any], values: list[Any], named: dict[str, Any]) -> Any:
    with importlib.import_module("keras").saving.custom_object_scope(named):
        metric = cls.from_config(config)
    for variable, value in zip(metric.variables, values, strict=True):
        variable.assign(value)
    return metric
