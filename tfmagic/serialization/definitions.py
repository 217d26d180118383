"""Pickle functions, classes and type variables by value, for a process that cannot import them.

    function ──→ its code + where it finds its globals + its closure, defaults and attributes
    class    ──→ see `tfmagic.serialization.classes`
    result of a decorator of `functools` ──→ the function in it, decorated again

Each is made in three steps: first the empty object, which pickle remembers, since it can refer to itself.
Then its code. Then its data, such as a list in a class or an object in a closure: making data can run code.
In a pickle of several variables (`ByValue.begin`), all code comes before all data, and an object that both
a class and a variable hold is one object.

A function of the notebook finds its globals by name in the ``__main__`` of the process that unpickles it, a
function of a module in that module. A function of any other namespace takes along the globals that it reads.
"""

import functools
import importlib
import marshal
import pkgutil
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfmagic.serialization import classes
from tfmagic.serialization.classes import TYPE_VARIABLES, Counting
from tfmagic.serialization.free_names import global_names

Reduced = tuple[Any, ...]
_FUNCTION_ATTRIBUTES = (
    "__module__", "__qualname__", "__doc__", "__defaults__", "__kwdefaults__", "__annotations__",
    "__type_params__",  # from Python 3.12 on
)  # fmt: skip
LRU_CACHE = type(functools.lru_cache(lambda: None))
_CODE = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CellType, LRU_CACHE),
    *(property, classmethod, staticmethod, functools.cached_property, types.GenericAlias, *TYPE_VARIABLES),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, int, float, complex, str, bytes, type(None), type(...)),
)
_CONTAINERS = (tuple, list, dict, set, frozenset)
_MAX_PARTS = 100  # a larger container counts as data
SINGLE_DISPATCH = frozenset({"registry", "dispatch", "register", "_clear_cache"})


def is_importable(obj: Any) -> bool:
    """Check whether a module has this function or class under its name."""
    path = getattr(obj, "__qualname__", None)  # an object of the user's can return anything
    return isinstance(path, str) and is_found(obj, getattr(obj, "__module__", None), path)


def is_found(obj: Any, module: str | None, path: str) -> bool:
    """Check whether a loaded module, which can be imported, has `obj` under a dotted name."""
    found: Any = sys.modules.get(str(module)) if module != "__main__" else None
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is obj and obj is not None  # what is not found is None, too


def find(module: str, path: str) -> Reduced:
    """Return how `pickle` imports a module and finds what it has under a dotted name."""
    return pkgutil.resolve_name, (f"{module}:{path}",)


def _module_with(cls: type) -> str:
    """Return the loaded module that has a class under its name; "" if none has."""
    loaded = [(name, module) for name, module in sys.modules.items() if name != "__main__"]
    return next((name for name, module in loaded if vars(module).get(cls.__qualname__) is cls), "")


@dataclass(frozen=True, slots=True)
class FillStep:
    """Stands in a pickle: there, the unpickler adds a part to a definition that it has made.

    Attributes:
        fill: The function that adds it.
        definition: The function or class.
        state: The part.
    """

    fill: Callable[[Any, tuple[Any, ...]], None]
    definition: Any
    state: tuple[Any, ...]


def _parted(space: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the code of a namespace, and its data. In the code, an empty container or None stands for data.

    To make an object, its class can ask an empty cache; it cannot ask None.
    """
    data = {n: value for n, value in space.items() if type(value) not in _CODE and not _is_code(value)}
    if not data:
        return dict(space), data
    places = {
        name: type(value)() if type(value) in (dict, list, set) else None for name, value in data.items()
    }
    return {**space, **places}, data


def _is_code(value: object, depth: int = 3) -> bool:
    """Check whether rebuilding `value` runs no code of the user's."""
    kind: Any = type(value)
    if kind not in _CONTAINERS:
        return issubclass(kind, _CODE)
    found: Any = value
    parts = (*found, *found.values()) if kind is dict else found
    return not parts or (
        depth > 0 and len(found) <= _MAX_PARTS and all(_is_code(part, depth - 1) for part in parts)
    )


class ByValue:
    """Reduces the definitions that one pickle meets.

    Attributes:
        functions: The functions of `main` in the pickle: the names that they read must be sent too.
    """

    def __init__(self, main: Mapping[str, Any]):
        self.functions: list[types.FunctionType] = []
        self._later: list[FillStep] | None = None
        self._main = main
        self._cells: set[int] = set()
        self._globals: dict[int, tuple[object, dict[str, Any]]] = {}
        self._counts = True

    def begin(self) -> None:
        """Put aside the data of the definitions that follow, for `take_later`."""
        self._later = []

    def take_later(self) -> list[FillStep]:
        """Return the steps that add the data put aside, which come next in the pickle."""
        steps, self._later = self._later or [], None
        return steps

    def reduce(self, obj: Any) -> Reduced | None:
        """Return how `pickle` rebuilds `obj`; None for kinds that this module does not know."""
        if isinstance(obj, type):
            return self._reduce_class(obj) if classes.is_made_by_statement(obj) else None
        if isinstance(obj, types.FunctionType):
            return self._reduce_function(obj)
        if isinstance(obj, types.CellType):
            return self._reduce_cell(obj)
        if isinstance(obj, Counting):
            self._counts = obj.on
            return same, (None,)
        if isinstance(obj, FillStep):
            return obj.fill, (obj.definition, obj.state)
        if isinstance(obj, BaseException):
            return _reduce_exception(obj)
        reducer = _REDUCERS.get(type(obj))
        return None if reducer is None else reducer(obj)

    def _in_steps(self, made: Reduced, code: FillStep, data: FillStep | None) -> Reduced:
        """Return how `pickle` makes a definition, adds its code, and then its data, at once or later."""
        if data is not None and self._later is None:
            return *made, (code, *data.state[1:]), None, None, data.fill
        if data is not None and self._later is not None:
            self._later.append(data)
        return *made, code.state, None, None, code.fill

    def _reduce_class(self, cls: type) -> Reduced:
        if cls.__module__ == "builtins" and (module := _module_with(cls)):  # as pytest says of `Skipped`
            return find(module, cls.__qualname__)
        parts = classes.take_apart(cls)
        code, data = _parted(parts.space)
        has_data = bool(data or parts.members)
        tests = (Counting(False), parts.tests, Counting(True)) if parts.tests else ()
        later = tuple(data) if has_data else None
        return self._in_steps(
            (parts.make, parts.args),
            FillStep(classes.fill_code, cls, (code, later, parts.subclasses, *tests)),
            FillStep(classes.fill_data, cls, (None, data, parts.members)) if has_data else None,
        )

    # -- functions --

    def _reduce_function(self, function: types.FunctionType) -> Reduced:
        own = vars(function)
        if own.keys() >= SINGLE_DISPATCH:
            return _reduce_single_dispatch(function)
        names = function.__globals__
        home: Any = MAIN
        taken: dict[str, Any] = {}
        if names is self._main:
            if self._counts:
                self.functions.append(function)
        elif is_of_module(names):
            home = names["__name__"]
        else:
            home = self._globals.setdefault(id(names), (names, {}))[1]
            taken = {name: names[name] for name in sorted(global_names(function.__code__)) if name in names}
            taken["__name__"] = names.get("__name__", "__main__")
        cells = function.__closure__ or ()
        self._cells.update(map(id, cells))  # which the function fills
        attributes = {
            name: getattr(function, name) for name in _FUNCTION_ATTRIBUTES if hasattr(function, name)
        }
        contents, data_in_cells = _parted({i: contents_of(cell) for i, cell in enumerate(cells)})
        attributes, defaults = _parted(attributes)
        own, own_data = _parted(own)
        data: Reduced = (None, data_in_cells, defaults, own_data, {})
        return self._in_steps(
            (_make_function, (_bytes_of(function.__code__), home, function.__name__, cells)),
            FillStep(_fill_function, function, (None, contents, attributes, own, taken)),
            FillStep(_fill_function, function, data) if any(data[1:]) else None,
        )

    def _reduce_cell(self, cell: types.CellType) -> Reduced:
        contents = None if id(cell) in self._cells else contents_of(cell)
        return _make_cell, (), contents, None, None, _fill_cell


def _bytes_of(code: types.CodeType) -> bytes:
    """Return code as bytes that stay the same; later formats show how many references its constants have."""
    try:
        return marshal.dumps(code, 2)
    except ValueError:  # it has a constant that this format lacks
        return marshal.dumps(code)


MAIN = object()  #: Stands for the ``__main__`` namespace of the process that unpickles.


def is_of_module(names: dict[str, Any]) -> bool:
    """Check whether these are the globals of a module that another process can import."""
    name = names.get("__name__", "__main__")
    return name != "__main__" and getattr(sys.modules.get(name), "__dict__", None) is names


def contents_of(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is not assigned yet
        return ()


# ---- how they are made --------------------------------------------------------------------------


def same(value: Any) -> Any:
    """Return `value`: the reducer of an object that travels as another one."""
    return value


def _make_cell() -> types.CellType:
    return types.CellType()


def _fill_cell(cell: types.CellType, contents: tuple[Any, ...]) -> None:
    if contents:
        (cell.cell_contents,) = contents


def _make_function(code: bytes, home: Any, name: str, cells: tuple[types.CellType, ...]) -> Any:
    names = vars(importlib.import_module(home)) if isinstance(home, str) else home
    return types.FunctionType(marshal.loads(code), names, name, None, cells or None)


def _fill_function(function: Any, state: tuple[Any, ...]) -> None:
    _, contents, attributes, own, taken = state
    for number, content in contents.items():
        _fill_cell(function.__closure__[number], content or ())
    for name, value in attributes.items():
        setattr(function, name, value)
    function.__dict__.update(own)
    function.__globals__.update(taken)


# ---- results of decorators ----------------------------------------------------------------------


def _reduce_single_dispatch(function: Any) -> Reduced:
    others = [(cls, found) for cls, found in function.registry.items() if cls is not object]
    return _make_single_dispatch, (function.registry[object], others)


def _make_single_dispatch(default: Any, others: list[tuple[type, Any]]) -> Any:
    made = functools.singledispatch(default)
    for cls, function in others:
        made.register(cls, function)
    return made


def _reduce_lru_cache(cache: Any) -> Reduced:
    if is_importable(cache):
        return find(cache.__module__, cache.__qualname__)
    made = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters", "cache_clear"}
    own = {name: value for name, value in vars(cache).items() if name not in made}
    return _make_lru_cache, (cache.__wrapped__, cache.cache_parameters()), own or None


class _Clears:
    """Takes the place of a cache's `cache_clear`, and counts its calls."""

    def __init__(self, clear: Callable[[], None]):
        self._clear, self.count = clear, 0

    def __call__(self) -> None:
        self._clear()
        self.count += 1


def clears_of(cache: Any) -> int:
    """Return how often a cache was cleared since this was asked first: nothing else tells it."""
    if not isinstance(clear := vars(cache).get("cache_clear"), _Clears):
        clear = cache.cache_clear = _Clears(cache.cache_clear)
    return clear.count


def _make_lru_cache(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduce_method(method: Any) -> Reduced:
    whose, name = method.__self__, method.__name__
    if getattr(whose, name, None) == method:
        return getattr, (whose, name)
    return types.MethodType, (method.__func__, whose)


def _reduce_exception(error: BaseException) -> Reduced | None:
    """Return the parts of an exception whose own constructor need not take its `args`; None for others."""
    cls: Any = type(error)
    inherits = cls.__reduce__ is BaseException.__reduce__ and cls.__reduce_ex__ is object.__reduce_ex__
    if (
        not inherits
        or isinstance(cls.__new__, types.FunctionType)
        or type(cls.__init__) is not types.FunctionType
    ):
        return None
    return _make_exception, (cls, error.args), vars(error) or None


def _make_exception(cls: Any, args: tuple[Any, ...]) -> BaseException:
    made: BaseException = cls.__new__(cls, *args)
    made.args = args
    return made


_Reducer = Callable[[Any], Reduced | None]
_REDUCERS: dict[type, _Reducer] = {
    LRU_CACHE: _reduce_lru_cache,
    functools.cached_property: lambda p: (functools.cached_property, (p.func,), {"attrname": p.attrname}),
    property: lambda p: (property, (p.fget, p.fset, p.fdel, p.__doc__)),
    classmethod: lambda m: (classmethod, (m.__func__,)),
    staticmethod: lambda m: (staticmethod, (m.__func__,)),
    types.MethodType: _reduce_method,
    types.MappingProxyType: lambda proxy: (types.MappingProxyType, (dict(proxy),)),
    weakref.WeakKeyDictionary: lambda found: (weakref.WeakKeyDictionary, (dict(found),)),
    weakref.WeakValueDictionary: lambda found: (weakref.WeakValueDictionary, (dict(found),)),
    weakref.WeakSet: lambda found: (weakref.WeakSet, (list(found),)),
    **dict.fromkeys(TYPE_VARIABLES, classes.reduce_type_variable),
    **dict.fromkeys(classes.SENTINEL_TYPES, classes.reduce_sentinel),
}
