"""The options of a cluster. Each is declared once, as a field of one of the groups below.

    a line ── given_options: argparse ──→ GivenOptions: what it names ──┬─→ words, completed, disagreements
                                                                        └─→ Cluster(**values)
    Cluster(...) ── checks: each by its rule ──→ a typed group ──→ what it is for:
        ShapeOptions    ClusterShape
        BackendOptions  HostRequest: where tasks are
        TaskOptions     TaskSettings, which has these fields ──→ TaskBoot; those of
                        `tfmagic.system.process_options` are obeyed by each task process itself
        NetworkOptions  NetworkRequest: simulated hosts

    help, completion, `tfmagic run` and the reference ←─ OPTIONS ─→ kept clusters, export

To add an option: a field here, the parameter of `Cluster`, and the code that uses it. Imports nothing heavy,
so that `tfmagic --help` is quick.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfmagic.clusters.launch import rules
from tfmagic.clusters.launch.arguments import (
    DEFAULT_KEEP,
    PLACEMENTS,
    parse_count,
    parse_duration,
    parse_number,
    parse_resource,
    parse_variable,
)
from tfmagic.clusters.launch.rules import Rule


@dataclass(frozen=True, slots=True)
class ClusterOption:
    """An option of a cluster.

    Attributes:
        name: Of the argument of `Cluster`.
        rule: What it can be, and how a line spells it.
        default: That of the argument.
        help: What it means, for the help of a line.
        where: The group whose field it is.
    """

    name: str
    rule: Rule
    default: Any
    help: str
    where: type

    @property
    def is_flag(self) -> bool:
        """True if a line names it without a value."""
        return self.rule is rules.FLAG

    @property
    def has_pairs(self) -> bool:
        """True if a line can name it several times, with a NAME=VALUE each."""
        return self.rule.line.get("action") == "append"

    @property
    def word(self) -> str:
        """The word of a line that names it."""
        name = self.name.replace("_", "-")
        if self.is_flag and self.default:
            return f"--no-{name}"
        return f"--{name.removesuffix('s') if self.has_pairs else name}"

    def words(self, value: Any) -> list[str]:
        """Return the words of a line that asks for this value; none where no line can."""
        if self.is_flag:
            return [self.word] if value != self.default else []
        if self.has_pairs:
            pairs = (shlex.quote(f"{key}={part}") for key, part in (value or {}).items())
            return [word for pair in pairs for word in (self.word, pair)]
        return [] if value is None else [self.word, shlex.quote(str(value))]


def _option(rule: Rule, default: Any, help: str) -> Any:
    """Declare an option. The field's default is what the rule makes of that of `Cluster`."""
    declared = {"rule": rule, "default": default, "help": help}
    return dataclasses.field(default_factory=functools.partial(rule.take, default), metadata=declared)


# -- rules, with the spelling on a line --------------------------------------------------------------

_TASKS = Rule("a number of tasks", rules.take_later).spelled(type=parse_count, metavar="N")
_COUNT = rules.COUNT.spelled(type=parse_count, metavar="N")
_NUMBER = Rule("a number of 0 or more", lambda n: rules.require(rules.take_number(n), lambda n: n >= 0))
_DURATION = Rule("a duration, such as '2h', or seconds", rules.take_later)
_RESOURCES = Rule("{name: number}", rules.mapping(rules.of_type(str), rules.take_number))
_ENV = Rule(
    "{name: text}, such as {'TF_CPP_MIN_LOG_LEVEL': '2'}",
    lambda env: dict(rules.of_type(Mapping)({} if env is None else env)),
)
_NICE = Rule(
    "a whole number from -20 to 19",
    lambda n: rules.require(rules.take_integer(n), range(-20, 20).__contains__),
)
_HOSTS = Rule("a number of machines, from 1", rules.take_integer)


# -- the options -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    """Which tasks there are; `ClusterShape` checks them."""

    workers: int | None = _option(_TASKS, None, "number of worker tasks")
    ps: int = _option(_TASKS, 0, "number of parameter servers; adds a chief")
    chief: bool = _option(rules.FLAG, False, "a chief task (at most one)")
    evaluator: bool = _option(rules.FLAG, False, "an evaluator task (at most one)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """Where tasks are; `remote_hosts.request_of` checks them together."""

    backend: str | None = _option(
        rules.TEXT.or_none().spelled(choices=("local", "ray")),
        None,
        "where tasks run: here, or on a Ray cluster",
    )
    address: str | None = _option(
        rules.TEXT.or_none().spelled(metavar="ADDR"),
        None,
        "Ray's head, as 10.0.0.1:6379 (default: auto)",
    )
    placement: str | None = _option(
        Rule("a placement", rules.take_later).spelled(choices=PLACEMENTS),
        None,
        "how Ray places the tasks (default: spread)",
    )
    cpus_per_task: float | None = _option(
        _NUMBER.or_none().spelled(type=parse_number, metavar="N"), None, "CPUs that Ray reserves a task (1)"
    )
    keep: str | float | None = _option(
        _DURATION.spelled(nargs="?", const=DEFAULT_KEEP, type=parse_duration, metavar="TIME"),
        None,
        f"with Ray: go on so long after the kernel has ended (--keep alone: {DEFAULT_KEEP})",
    )
    resources: Mapping[str, float] | None = _option(
        _RESOURCES.or_none().spelled(action="append", type=parse_resource, metavar="NAME=N"),
        None,
        "a custom resource of Ray's for each task",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How task processes are made; `TaskSettings` has these fields."""

    env: Mapping[str, str] = _option(
        _ENV.spelled(action="append", type=parse_variable, metavar="K=V"), None, "environment of the tasks"
    )
    gpus_per_task: int | None = _option(_COUNT.or_none(), None, "GPUs of each computing task")
    keras: int = _option(
        Rule("2 or 3", rules.take_integer).spelled(type=int, choices=(2, 3)), 3, "3, or 2 for tf_keras"
    )
    keras_fix: bool = _option(rules.FLAG, True, "leave Keras 3's fit as it is")
    auto_restart: int = _option(_COUNT, 0, "restart a dead task up to N times")
    isolate: bool = _option(rules.FLAG, False, "a network of the tasks' own")
    nice: int | None = _option(
        _NICE.or_none().spelled(type=_NICE.reads(int), metavar="N"),
        None,
        "priority of the tasks' processes: -20 (highest) to 19",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The simulated hosts of tasks on this machine."""

    hosts: int | None = _option(
        _HOSTS.or_none().spelled(type=parse_count, metavar="N"),
        None,
        "spread the tasks over N simulated machines",
    )
    network: str | None = _option(
        rules.TEXT.or_none().spelled(metavar="LINK"),
        None,
        "the link of each simulated machine: RATE[,LATENCY[,LOSS]], as 1gbit or 100mbit,0.5ms",
    )


@functools.cache
def options_in(group: type) -> tuple[ClusterOption, ...]:
    """Return the options that a group declares, in their order."""
    declared = dataclasses.fields(group)
    return tuple(ClusterOption(name=field.name, where=group, **field.metadata) for field in declared)


def values_in(group: type, part: object) -> dict[str, Any]:
    """Return the options of a group, by name, from an object that has them as attributes."""
    return {option.name: getattr(part, option.name) for option in options_in(group)}


OPTIONS: Mapping[str, ClusterOption] = {
    option.name: option
    for group in (ShapeOptions, BackendOptions, TaskOptions, NetworkOptions)
    for option in options_in(group)
}
