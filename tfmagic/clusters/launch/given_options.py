"""The options of a cluster that a line names: parsed, compared with a cluster, and written again."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfmagic.clusters.launch.cluster_options import (
    OPTIONS,
    BackendOptions,
    ClusterOption,
    NetworkOptions,
    ShapeOptions,
    options_in,
)

_LOCAL = "local"
_COUNTS = [option.name for option in options_in(ShapeOptions)]
_OF_ONE_BACKEND = ["isolate", *(n for n, o in OPTIONS.items() if o.where in (BackendOptions, NetworkOptions))]
_ADDED = "env"  # a line adds to it


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """The options of a cluster that a line names, by name; `Cluster` takes them as arguments."""

    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def given(self) -> bool:
        """True if the line names anything about the cluster."""
        return bool(self.values)

    @property
    def names_tasks(self) -> bool:
        """True if the line names any type of task, and so the whole shape."""
        return not self.values.keys().isdisjoint(_COUNTS)

    @property
    def backend(self) -> str:
        """The backend of a cluster with these options."""
        return str(self.values.get("backend", _LOCAL))

    @property
    def words(self) -> list[str]:
        """The words of a line that asks for the same cluster."""
        named = [option for name, option in OPTIONS.items() if name in self.values]
        return [word for option in named for word in option.words(self.values[option.name])]

    def changed(self, **values: Any) -> GivenOptions:
        """Return the options with other values. None takes an option out."""
        changed = {**self.values, **values}
        return GivenOptions({name: value for name, value in changed.items() if value is not None})

    def completed(self, running: GivenOptions) -> GivenOptions:
        """Return these options, with those of the running cluster that the line leaves out.

        A line that names any type of task names the whole shape; one with another backend, all that only one
        of them has. Variables of the environment are added.
        """
        own = set(_COUNTS if self.names_tasks else [])
        if self.values.get("backend", running.backend) != running.backend:
            own.update(_OF_ONE_BACKEND)
        taken = {name: value for name, value in running.values.items() if name not in own}
        env = {**taken.get(_ADDED, {}), **self.values.get(_ADDED, {})}
        return GivenOptions({**taken, **self.values, **({_ADDED: env} if env else {})})

    def disagreements(self, running: GivenOptions) -> list[str]:
        """Return the options of the line that the running cluster does not fulfil."""
        found: list[str] = []
        for name, asked in self.values.items():
            option = OPTIONS[name]
            have: Any = running.values.get(name, option.default)
            have = running.backend if name == "backend" else have
            if name == _ADDED:
                missing = {key: value for key, value in asked.items() if (have or {}).get(key) != value}
                found += option.words(missing)
            elif asked != have:
                found += option.words(asked)
        return found


NO_OPTIONS = GivenOptions()


def other_than_default(values: Mapping[str, Any]) -> GivenOptions:
    """Return the options that a line has to name for these arguments of `Cluster`."""
    return GivenOptions({name: value for name, value in values.items() if value != OPTIONS[name].default})


def add_options(parser: argparse.ArgumentParser, title: str, can_keep: bool = True) -> None:
    """Add all options of a cluster; `keep` not for a program that ends with its cluster."""
    group = parser.add_argument_group(title)
    for option in OPTIONS.values():
        if option.name != "keep" or can_keep:
            group.add_argument(option.word, dest=option.name, help=option.help, **_spelling(option))


def _spelling(option: ClusterOption) -> Mapping[str, Any]:
    if option.is_flag:  # counted, so that an option given twice is seen
        return {"action": "append_const", "const": not option.default}
    return option.rule.line


def given_options(found: argparse.Namespace, parser: argparse.ArgumentParser) -> GivenOptions:
    """Return the options of a parsed line. A type of task that is given twice is an error of the parser."""
    values = {name: value for name in OPTIONS if (value := getattr(found, name, None)) is not None}
    for name, value in values.items():
        option = OPTIONS[name]
        if option.is_flag:
            if len(value) > 1 and option.where is ShapeOptions:
                parser.error(f"a cluster has at most one {name}; give {option.word} once")
            values[name] = value[0]
        elif option.has_pairs:
            values[name] = dict(value)
    return GivenOptions(values)
