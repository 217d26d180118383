"""The arguments that describe a cluster, for the magics and for ``tfmagic`` on the command line.

Imports nothing heavy, so that `tfmagic --help` is quick.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from tfmagic.system.advice import did_you_mean

DEFAULT_KEEP = "8h"
PLACEMENTS = ("pack", "spread", "strict-spread")
_COUNTS = ("workers", "ps", "chief", "evaluator")
_OF_BACKEND = ("address", "placement", "cpus_per_task", "resources", "keep", "isolate", "hosts", "network")
_COMPARED = (
    *_COUNTS, "gpus_per_task", "keras", "auto_restart", "address", "placement",
    "cpus_per_task", "keep", "hosts", "network",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """The shape and task settings of a cluster that a line names; None for those that it leaves out."""

    workers: int | None = None
    ps: int | None = None
    chief: bool | None = None
    evaluator: bool | None = None
    backend: str | None = None
    address: str | None = None
    placement: str | None = None
    cpus_per_task: float | None = None
    resources: tuple[tuple[str, float], ...] = ()
    keep: float | None = None
    env: tuple[tuple[str, str], ...] = ()
    gpus_per_task: int | None = None
    keras: int | None = None
    keras_fix: bool = True
    auto_restart: int | None = None
    isolate: bool = False
    hosts: int | None = None
    network: str | None = None

    @property
    def given(self) -> bool:
        """True if the line names anything about the cluster."""
        return self != _NOTHING

    @property
    def names_tasks(self) -> bool:
        """True if the line names any type of task, and so the whole shape."""
        return any(getattr(self, name) is not None for name in _COUNTS)

    @property
    def words(self) -> list[str]:
        """The words of a line that asks for the same cluster."""
        found = []
        for item in fields(self):
            value, name = getattr(self, item.name), f"--{item.name.replace('_', '-')}"
            if item.name in ("env", "resources"):
                pairs = [f"{key}={part}" for key, part in value]
                found += [word for pair in pairs for word in (name.removesuffix("s"), shlex.quote(pair))]
            elif item.name == "keras_fix":
                found += [] if value else ["--no-keras-fix"]
            elif value is True:
                found.append(name)
            elif value or (item.name == "workers" and value is not None):
                found += [name, shlex.quote(str(value))]
        return found

    def completed(self, running: ShapeOptions) -> ShapeOptions:
        """Return these options, with those of the running cluster that the line leaves out.

        A line that names any type of task names the whole shape; one with another backend, all that only one
        of them has. Variables of the environment are added.
        """
        own = [*_COUNTS] if self.names_tasks else []
        own += _OF_BACKEND if self.backend not in (None, running.backend or "local") else ()
        missing = [
            field.name
            for field in fields(self)
            if getattr(self, field.name) == getattr(_NOTHING, field.name) and field.name not in own
        ]
        taken = {name: getattr(running, name) for name in missing}
        taken["env"] = tuple({**dict(running.env), **dict(self.env)}.items())
        return replace(self, **taken)

    def disagreements(self, running: ShapeOptions) -> list[str]:
        """Return the options of the line that the running cluster does not fulfil."""
        found: list[str] = []
        if not self.given:  # mostly
            return found
        for name in _COMPARED:
            asked, have = getattr(self, name), getattr(running, name)
            if asked is not None and asked != (have or type(asked)()):
                found += replace(_NOTHING, **{name: asked}).words or [f"--{name.replace('_', '-')} {asked}"]
        if self.backend not in (None, running.backend or "local"):
            found.append(f"--backend {self.backend}")
        if self.resources and self.resources != running.resources:
            found += ShapeOptions(resources=self.resources).words
        if missing := tuple(pair for pair in self.env if pair not in running.env):
            found += ShapeOptions(env=missing).words
        if self.isolate and not running.isolate:
            found.append("--isolate")
        if not self.keras_fix and running.keras_fix:
            found.append("--no-keras-fix")
        return found


_NOTHING = ShapeOptions()


def parse_count(text: str) -> int:
    """Parse a count, for argparse."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"it cannot be {value}; use 0 or more")
    return value


def parse_number(text: str) -> float:
    """Parse a number of 0 or more, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return value


def parse_resource(text: str) -> tuple[str, float]:
    """Parse ``NAME=NUMBER``, for argparse."""
    name, value = parse_variable(text)
    return name, parse_number(value)


def parse_seconds(text: str) -> float:
    """Parse a time limit in seconds, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"a time limit cannot be {text} s; use more than 0")
    return value


def read_duration(text: str | float) -> float:
    """Return the seconds of a duration: ``90s``, ``30m``, ``2h``, ``1d``, or a number of seconds.

    Raises:
        ValueError: It is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(text).strip())
    seconds = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]] if found else 0.0
    if not seconds:
        raise ValueError(f"{text!r} is not a duration; write 30m, 2h or 1d")
    return seconds


def parse_duration(text: str) -> float:
    """Parse a duration, for argparse."""
    try:
        return read_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_variable(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``, for argparse."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def add_shape(parser: argparse.ArgumentParser, title: str, can_keep: bool = True) -> None:
    """Add the options of `ShapeOptions`; `keep` not for a program that ends with its cluster."""
    group = parser.add_argument_group(title)
    add = group.add_argument
    add("--workers", type=parse_count, metavar="N", help="number of worker tasks")
    add("--ps", type=parse_count, metavar="N", help="number of parameter servers; adds a chief")
    add("--chief", action="append_const", const=True, help="a chief task (at most one)")
    add("--evaluator", action="append_const", const=True, help="an evaluator task (at most one)")
    add("--backend", choices=("local", "ray"), help="where tasks run: here, or on a Ray cluster")
    add("--address", metavar="ADDR", help="Ray's head, as 10.0.0.1:6379 (default: auto)")
    add("--placement", choices=PLACEMENTS, help="how Ray places the tasks (default: spread)")
    add("--cpus-per-task", type=parse_number, metavar="N", help="CPUs that Ray reserves a task (1)")
    if can_keep:
        keep = f"with Ray: go on so long after the kernel has ended (--keep alone: {DEFAULT_KEEP})"
        add("--keep", nargs="?", const=DEFAULT_KEEP, type=parse_duration, metavar="TIME", help=keep)
    resource = "a custom resource of Ray's for each task"
    add("--resource", type=parse_resource, action="append", default=[], metavar="NAME=N", help=resource)
    environment = "environment of the tasks"
    add("--env", type=parse_variable, action="append", default=[], metavar="K=V", help=environment)
    add("--gpus-per-task", type=parse_count, metavar="N", help="GPUs of each computing task")
    add("--keras", type=int, choices=(2, 3), help="3, or 2 for tf_keras")
    add("--no-keras-fix", dest="keras_fix", action="store_false", help="leave Keras 3's fit as it is")
    add("--auto-restart", type=parse_count, metavar="N", help="restart a dead task up to N times")
    add("--isolate", action="store_true", help="a network of the tasks' own")
    add("--hosts", type=parse_count, metavar="N", help="spread the tasks over N simulated machines")
    link = "the link of each simulated machine: RATE[,LATENCY[,LOSS]], as 1gbit or 100mbit,0.5ms"
    add("--network", metavar="LINK", help=link)


def refuse_unknown(words: Iterable[str], parser: argparse.ArgumentParser) -> None:
    """Call the parser's `error` for a word that looks like an option and is none of its options."""
    for word in words:
        name = word.partition("=")[0]
        if re.match("--?[a-zA-Z]", name) and name not in parser._option_string_actions:
            question = did_you_mean(name, parser._option_string_actions)
            parser.error(f"unrecognized arguments: {word}{question}")


def shape_of(found: argparse.Namespace, parser: argparse.ArgumentParser) -> ShapeOptions:
    """Return the options of a parsed line. A flag that is given twice is an error of the parser."""
    for flag in ("chief", "evaluator"):
        if len(getattr(found, flag) or ()) > 1:
            parser.error(f"a cluster has at most one {flag}; give --{flag} once")
    given: dict[str, Any] = {
        field.name: getattr(found, field.name, field.default) for field in fields(ShapeOptions)
    }
    flags = {"chief": bool(found.chief) or None, "evaluator": bool(found.evaluator) or None}
    resources = tuple(getattr(found, "resource", ()))
    return ShapeOptions(**{**given, **flags, "env": tuple(found.env), "resources": resources})
