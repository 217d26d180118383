"""What travels to a task with a cell, and the record of what the task has already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfmagic.protocol.payload import Packed
from tfmagic.serialization.user_modules import Stamp

_UNKNOWN = object()  # the version of what a task might have


@dataclass(frozen=True, slots=True)
class Captured:
    """What travels to a task with a cell."""

    names: tuple[Packed, ...] = ()  # variables
    sources: tuple[tuple[str, str], ...] = ()  # (file name, text), for AutoGraph and tracebacks in the task
    versions: Mapping[str, object] = field(default_factory=dict)  # of these variables
    links: Mapping[str, frozenset[str]] = field(default_factory=dict)
    pushed: tuple[str, ...] = ()
    modules: frozenset[str] = frozenset()  # that are these variables, or define them


NOTHING = Captured()


@dataclass(frozen=True, slots=True)
class Variable:
    """A notebook variable, examined before it is sent."""

    name: str
    value: Any
    version: object  # equal for equal content; None if it is sent in any case
    size_bytes: int
    needs: frozenset[str] = frozenset()  # other names that its functions read, `links` and `held`
    links: frozenset[str] = frozenset()  # other functions and classes that it refers to by name
    held: frozenset[str] = frozenset()  # other names whose objects this function or class holds
    problem: str = ""  # why it cannot travel
    files: frozenset[str] = frozenset()  # of its functions


@dataclass(slots=True)
class TaskNames:
    """The names and sources that one task process has."""

    owned: frozenset[str] = frozenset()  # assigned by its cells
    coming: dict[int, frozenset[str]] = field(default_factory=dict)  # by cells that still run, by number
    pushed: set[str] = field(default_factory=set)  # the task's own: only another push replaces them
    sent: dict[str, object] = field(default_factory=dict)  # the version of each name that we sent
    links: dict[str, frozenset[str]] = field(default_factory=dict)  # the names whose objects these hold
    sources: set[str] = field(default_factory=set)
    modules: dict[str, Stamp] = field(default_factory=dict)  # of the user's own, when it imported them
    told: dict[str, Stamp] = field(default_factory=dict)  # changes of these that the user knows

    def lacks(self, variable: Variable) -> bool:
        """Check whether a captured variable must be sent to the task."""
        return not self.has_own(variable.name) and (
            variable.version is None or self.sent.get(variable.name) != variable.version
        )

    def forget(self, names: Iterable[str], replaced: frozenset[str]) -> None:
        """Count nothing as sent of what is under way, nor what holds an object that is replaced."""
        holders = [name for name, links in self.links.items() if links & replaced]
        self.sent.update(dict.fromkeys((*names, *holders), _UNKNOWN))

    def forget_all(self) -> None:
        """Count nothing as sent: a cell has not arrived, and with it what it carried."""
        self.forget(self.sent, frozenset())
        self.pushed.clear()
        self.sources.clear()

    def note(self, captured: Captured) -> None:
        """Record what has been handed over for the task."""
        self.sent.update(captured.versions)
        self.links.update(captured.links)
        self.pushed.update(captured.pushed)
        self.sources.update(file for file, _ in captured.sources)

    def has_own(self, name: str) -> bool:
        """Check whether the name is the task's own, so that the notebook's is not sent."""
        return (
            name in self.owned
            or name in self.pushed
            or (bool(self.coming) and any(name in c for c in self.coming.values()))
        )
