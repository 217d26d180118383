"""Members of enums stay the same objects when their module is reloaded, wherever a task holds them.

A reload makes a new class with new members. IPython's autoreload gives the old members the new class, but
``held is Kind.A`` is False then, for a variable, in a list, as the key of a dictionary. So the new class gets
the old members, with what the new ones hold. A member that is a number or a text whose value has changed
cannot be changed in place; it stays an old one, as do members that the new class lacks.
"""

import enum
from collections.abc import Iterator, Mapping
from typing import Any

Members = dict[str, tuple[dict[str, Any], dict[Any, Any]]]
"""Members by name, and by value, of each enum of a module, by its qualified name."""


def members_of(module: Mapping[str, Any]) -> Members:
    """Return the present members of the enums of a module, those inside other classes included."""
    found = {cls.__qualname__: cls for cls in _enums(module, module.get("__name__"))}
    return {name: (dict(cls._member_map_), dict(cls._value2member_map_)) for name, cls in found.items()}


def keep(before: Members, module: Mapping[str, Any]) -> None:
    """Put the members from before a reload into the classes of the module as it is now."""
    for cls in _enums(module, module.get("__name__")):
        by_name, by_value = before.get(cls.__qualname__, ({}, {}))
        kept: dict[int, Any] = {}  # old members by the ids of new ones
        for name, new in list(cls._member_map_.items()):
            old = by_name.get(name)
            if old is not None and id(new) not in kept and _becomes(old, new, cls):
                kept[id(new)] = old
        for space in (cls._member_map_, cls._value2member_map_):
            space.update({key: kept[id(new)] for key, new in space.items() if id(new) in kept})
        for name, value in list(vars(cls).items()):
            if id(value) in kept:
                type.__setattr__(cls, name, kept[id(value)])
            elif id(member := getattr(value, "member", None)) in kept and isinstance(value, enum.property):
                vars(value)["member"] = kept[id(member)]
        if issubclass(cls, enum.Flag):  # combinations, which are made when they are first met
            for value, old in by_value.items():
                if old.name not in by_name and type(old) is cls and value == value & ~cls(0).value:
                    cls._value2member_map_.setdefault(value, old)


def _enums(space: Mapping[str, Any], module: Any) -> Iterator[Any]:
    """Yield the enums that a module has made, from this namespace on."""
    for name, value in list(space.items()):
        if isinstance(value, type) and value.__module__ == module and value.__name__ == name:
            if issubclass(value, enum.Enum):
                yield value
            yield from _enums(vars(value), module)


def _becomes(old: Any, new: Any, cls: Any) -> bool:
    """Give an old member the class and content of the new one. Return False if that cannot be."""
    if cls._member_type_ is not object and old._value_ != new._value_:
        return False
    try:
        object.__setattr__(old, "__class__", cls)
    except TypeError:  # its layout is another one
        return False
    vars(old).clear()
    vars(old).update(vars(new))
    return True
