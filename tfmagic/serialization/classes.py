"""Pickle classes, enums and type variables by value. Part of `tfmagic.serialization.definitions`.

    class ──→ an empty class of the same metaclass, bases and slots + its code + its data
    enum  ──→ its members as they are + its code + its data

Making one runs no code of the user's: no ``__init_subclass__``, no metaclass, no ``__new__`` of an enum.
Their effects are part of what travels. Each class and each type variable has an id that travels, so that one
that is sent again is the same object in the other process.
"""

import abc
import contextlib
import dataclasses
import enum
import sys
import types
import typing
import uuid
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from tfmagic.serialization import process_bound

Reduced = tuple[Any, ...]
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # flags of CPython's types: made in Python; frozen
_OF_ENUMS = {"_member_names_", "_member_map_", "_value2member_map_", "_member_type_", "_value_repr_"} | {
    "_use_args_", "_new_member_", "_generate_next_value_", "_flag_mask_", "_singles_mask_", "_all_bits_",
    "_inverted_", "_boundary_", "_order_", "_ignore_", "_hashable_values_", "_unhashable_values_",
    "_unhashable_values_map_", "__new__",
}  # fmt: skip
_OF_MEMBERS = {"_name_", "_value_", "__objclass__", "_sort_order_", "_inverted_"}
TYPE_VARIABLES = (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple, typing.NewType)


@dataclasses.dataclass(frozen=True, slots=True)
class Counting:
    """Marker in a pickle: whether the functions after it count as used."""

    on: bool


def is_made_by_statement(cls: type) -> bool:
    """Check whether Python code has made the class."""
    return bool(cls.__flags__ & _HEAP_TYPE)


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """A class taken apart.

    Attributes:
        make: The function that makes it without the content of its namespace.
        args: The arguments of `make`.
        space: The content of its namespace.
        tests: The tests among it, which no task runs.
        subclasses: The classes that were registered with it.
        members: The attributes of the members of an enum, by the names of the members.
    """

    make: Any
    args: Reduced
    space: dict[str, Any]
    tests: dict[str, Any]
    subclasses: list[type]
    members: dict[str, dict[str, Any]]


def take_apart(cls: Any) -> Parts:
    """Return the parts from which `pickle` rebuilds a class."""
    space = {name: value for name, value in vars(cls).items() if not _is_made_by_python(cls, name, value)}
    first = {name: space.pop(name) for name in ("__module__", "__qualname__", "__slots__") if name in space}
    first.setdefault("__qualname__", cls.__qualname__)
    made = (_id_of(cls), type(cls), cls.__name__, cls.__bases__, first)
    if issubclass(cls, enum.Enum):
        return _take_enum_apart(cls, made, space)
    tests = {name: space.pop(name) for name in list(space) if process_bound.is_test(cls, name)}
    return Parts(_make_class, made, space, tests, virtual_subclasses(cls), {})


def _take_enum_apart(cls: Any, made: Reduced, space: dict[str, Any]) -> Parts:
    members = dict(cls.__members__)
    space = {name: value for name, value in space.items() if name not in _OF_ENUMS and name not in members}
    raws = [(name, _raw_of(member), member._value_) for name, member in members.items()]
    own = {
        name: {key: value for key, value in vars(member).items() if key not in _OF_MEMBERS}
        for name, member in members.items()
    }
    boundary = getattr(cls, "_boundary_", None)
    return Parts(_make_enum, (*made, raws, boundary), space, {}, virtual_subclasses(cls), own)


def _is_made_by_python(cls: type, name: str, value: object) -> bool:
    """Check whether Python itself makes this entry of a namespace, in every such class."""
    if name in ("__weakref__", "__dict__", "__slotnames__", "_abc_impl"):
        return True
    is_slot = isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)
    return is_slot and value.__objclass__ is cls  # type: ignore[attr-defined]  # of both kinds


def virtual_subclasses(cls: type) -> list[type]:
    """Return the classes that were registered with an abstract class; none for other classes."""
    if not isinstance(cls, abc.ABCMeta):
        return []
    registry = abc._get_dump(cls)[0]  # type: ignore[attr-defined]  # private, and there since Python 3.7
    return [found for reference in registry if (found := reference()) is not None]


def _raw_of(member: Any) -> tuple[Any, ...]:
    """Return the arguments from which a member's data type, such as int, makes it."""
    kind = type(member)._member_type_
    if kind is object:
        return ()
    if hasattr(kind, "__getnewargs__"):
        return tuple(kind.__getnewargs__(member))
    reduced: Any = kind.__reduce__(member) if kind.__reduce__ is not object.__reduce__ else ()
    return tuple(reduced[1]) if len(reduced) > 1 else ()


# ---- ids that travel ----------------------------------------------------------------------------

_ids: dict[int, tuple[weakref.ref[Any], str]] = {}  # by id(), since a class need not be hashable
_filled: dict[int, frozenset[str]] = {}  # the names that a class made here has got
_unfilled: set[int] = set()  # ids of classes that have been made and not filled yet
_known: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def _id_of(obj: Any) -> str:
    """Return the id of a class or type variable, which is the same in every process that has it."""
    reference, number = _ids.get(id(obj), (lambda: None, ""))
    if reference() is not obj:
        number = uuid.uuid4().hex
        _remember(number, obj)
    return number


def _remember(number: str, obj: Any) -> None:
    address = id(obj)
    _ids[address] = (
        weakref.ref(obj, lambda _: (_ids.pop(address, None), _filled.pop(address, None))),
        number,
    )
    _known[number] = obj


# ---- how classes are made ------------------------------------------------------------------------


def _make_class(
    number: str, metaclass: Any, name: str, bases: tuple[type, ...], first: dict[str, Any]
) -> Any:
    """Return an empty class, or the class that has come before under this id."""
    if (found := _known.get(number)) is not None:
        return found
    # the user's metaclass has run where the class was defined; ABCMeta and those in C prepare each class
    maker: Any = next(m for m in metaclass.__mro__ if m is abc.ABCMeta or not m.__flags__ & _HEAP_TYPE)
    with _without_init_subclass(bases):
        return _made(number, maker.__new__(metaclass, name, bases, dict(first)))


def _made(number: str, cls: Any) -> Any:
    _remember(number, cls)
    _unfilled.add(id(cls))
    return cls


class _RawMember:
    """The arguments from which the data type of an enum makes a member, and the member's value."""

    def __init__(self, raw: tuple[Any, ...], value: Any):
        self.raw, self.value = raw, value


def _new_member(cls: Any, *found: Any) -> Any:
    given: Any = found
    while isinstance(given, tuple):  # of an enum of tuples: one more around it
        (given,) = given
    kind = cls._member_type_
    member = kind.__new__(cls, *given.raw) if kind is not object else object.__new__(cls)
    member._value_ = given.value
    return member


def _make_enum(
    number: str,
    metaclass: Any,
    name: str,
    bases: tuple[type, ...],
    first: dict[str, Any],
    raws: list[tuple[str, tuple[Any, ...], Any]],
    boundary: Any,
) -> Any:
    """Return an enum with its members, or the enum that has come before under this id."""
    if (found := _known.get(number)) is not None:
        return found
    space: Any = enum.EnumMeta.__prepare__(name, bases)
    for key, value in first.items():
        space[key] = value
    space["__new__"] = _new_member
    for member, raw, value in raws:
        space[member] = _RawMember(raw, value)
    keywords = {} if boundary is None else {"boundary": boundary}
    with _without_init_subclass(bases):
        cls: Any = enum.EnumMeta.__new__(metaclass, name, bases, space, **keywords)
    if "__new_member__" in vars(cls):
        type.__delattr__(cls, "__new_member__")
    return _made(number, cls)


def fill_code(cls: Any, state: tuple[Any, ...]) -> None:
    """Put the code of a class into its namespace. If it has come before, delete what does not come now.

    Data that comes later has its place there, so that the names have the order of the definition.
    """
    space, later, subclasses, *tests = state
    if later is None:
        _unfilled.discard(id(cls))
    names = frozenset(name for found in (space, *tests) for name in found or {})
    for name in (_filled.get(id(cls), frozenset()) - names) & vars(cls).keys():
        type.__delattr__(cls, name)
    _filled[id(cls)] = names
    for found in (space, *tests):
        for name, value in (found or {}).items():
            if name in (later or ()) and name in vars(cls):
                continue
            type.__setattr__(cls, name, value)
            if type(value) is property:
                value.__set_name__(cls, name)  # type: ignore[attr-defined]  # for its messages
    for subclass in subclasses:
        cls.register(subclass)


def fill_data(cls: Any, state: tuple[Any, ...]) -> None:
    """Put the data of a class into its namespace, when its code is there."""
    _, space, members = state
    _unfilled.discard(id(cls))
    for name, value in space.items():
        type.__setattr__(cls, name, value)
    for name, attributes in members.items():
        vars(cls.__members__[name]).update(attributes)


def fill_new_code(cls: Any, state: tuple[Any, ...]) -> None:
    """Put the code of a class into its namespace, unless the class has come before."""
    if id(cls) in _unfilled:
        fill_code(cls, state)


def fill_new_data(cls: Any, state: tuple[Any, ...]) -> None:
    """Put the data of a class into its namespace, unless the class has come before."""
    if id(cls) in _unfilled:
        fill_data(cls, state)


FILL_NEW = {"fill_code": fill_new_code, "fill_data": fill_new_data}


@contextlib.contextmanager
def _without_init_subclass(bases: Iterable[Any]) -> Iterator[None]:
    """Disable the bases' ``__init_subclass__``: it has run where the class was defined."""
    owners = {cls for base in bases for cls in base.__mro__ if "__init_subclass__" in vars(cls)}
    changed = {
        cls: vars(cls)["__init_subclass__"]
        for cls in owners
        if cls.__flags__ & _HEAP_TYPE and not cls.__flags__ & _IMMUTABLE_TYPE
    }
    try:
        for cls in changed:
            type.__setattr__(cls, "__init_subclass__", classmethod(lambda cls, **_: None))
        yield
    finally:
        for cls, own in changed.items():
            type.__setattr__(cls, "__init_subclass__", own)


# ---- type variables -----------------------------------------------------------------------------


def reduce_type_variable(variable: Any) -> Reduced | None:
    """Return how `pickle` rebuilds a type variable; None if its module has it."""
    module, name = variable.__module__, variable.__name__
    if module != "__main__" and getattr(sys.modules.get(str(module)), name, None) is variable:
        return None
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = {}
    if isinstance(variable, typing.TypeVar):
        args = variable.__constraints__
        names = {"bound": "__bound__", "covariant": "__covariant__", "contravariant": "__contravariant__"}
        options = {option: getattr(variable, name) for option, name in names.items()}
        if getattr(variable, "__infer_variance__", False):
            options["infer_variance"] = True
    elif isinstance(variable, typing.NewType):
        args = (variable.__supertype__,)
    if getattr(variable, "has_default", bool)():  # from Python 3.13 on
        options["default"] = variable.__default__
    return _make_type_variable, (_id_of(variable), type(variable), name, args, options, module)


def _make_type_variable(
    number: str, kind: Any, name: str, args: tuple[Any, ...], options: dict[str, Any], module: str
) -> Any:
    if (found := _known.get(number)) is not None:
        return found
    made = kind(name, *args, **options)
    made.__module__ = module
    _remember(number, made)
    return made


# ---- markers that dataclasses compares by identity ----------------------------------------------

_SENTINELS = {
    id(getattr(dataclasses, name)): name
    for name in ("_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR", "MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")
}
SENTINEL_TYPES = tuple(type(getattr(dataclasses, name)) for name in _SENTINELS.values())


def reduce_sentinel(sentinel: Any) -> Reduced:
    """Return how `pickle` finds one of the markers of `dataclasses`."""
    return getattr, (dataclasses, _SENTINELS[id(sentinel)])
