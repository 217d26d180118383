"""Arguments that magic lines and scripts share: what a cluster looks like, as frozen data.

Imports nothing heavy: `tfmagic --help` is to be quick.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """The shape and make of a cluster, as far as the line says it; None where it does not."""

    workers: int | None = None
    ps: int | None = None
    chief: bool | None = None
    evaluator: bool | None = None
    backend: str = "local"
    address: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    gpus_per_task: int | None = None
    keras: int | None = None
    keras_fix: bool = True
    auto_restart: int | None = None
    isolate: bool = False

    @property
    def given(self) -> bool:
        """Whether the line says anything about the cluster."""
        return self != ShapeOptions()

    def disagreements(self, running: ShapeOptions) -> list[str]:
        """What the line asks for that the running cluster is not."""
        found = []
        for name in ("workers", "ps", "chief", "evaluator", "gpus_per_task", "keras", "auto_restart"):
            asked, have = getattr(self, name), getattr(running, name)
            if asked is not None and asked != (have or type(asked)()):
                found.append(f"--{name.replace('_', '-')} {asked}")
        if self.env and self.env != running.env:
            found.append("--env")
        if self.isolate and not running.isolate:
            found.append("--isolate")
        if not self.keras_fix and running.keras_fix:
            found.append("--no-keras-fix")
        return found


def parse_count(text: str) -> int:
    """A number of tasks or of other things, for argparse."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"it cannot be {value}; use 0 or more")
    return value


def parse_seconds(text: str) -> float:
    """A time limit, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"a time limit cannot be {text} s; use more than 0")
    return value


def parse_variable(text: str) -> tuple[str, str]:
    """``NAME=VALUE``, for argparse."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def add_shape(parser: argparse.ArgumentParser, title: str, backends: bool = True) -> None:
    """Add the options of a cluster's shape and make; without `backends`, where the tasks run is settled."""
    group = parser.add_argument_group(title)
    group.add_argument("--workers", type=parse_count, metavar="N", help="number of worker tasks")
    group.add_argument(
        "--ps", type=parse_count, metavar="N", help="number of parameter servers; adds a chief"
    )
    group.add_argument("--chief", action="append_const", const=True, help="a chief task (at most one)")
    group.add_argument(
        "--evaluator", action="append_const", const=True, help="an evaluator task (at most one)"
    )
    if backends:
        group.add_argument("--backend", choices=("local", "ray"), default="local", help="where tasks run")
        group.add_argument("--address", metavar="ADDR", help="address of the backend's cluster")
    group.add_argument(
        "--env",
        type=parse_variable,
        action="append",
        default=[],
        metavar="K=V",
        help="environment of the tasks",
    )
    group.add_argument("--gpus-per-task", type=parse_count, metavar="N", help="GPUs of each computing task")
    group.add_argument("--keras", type=int, choices=(2, 3), help="3, or 2 for tf_keras")
    group.add_argument("--no-keras-fix", action="store_true", help="leave Keras 3's fit as it is")
    group.add_argument(
        "--auto-restart", type=parse_count, metavar="N", help="restart a dead task up to N times"
    )
    group.add_argument("--isolate", action="store_true", help="a network of the tasks' own")


def shape_of(found: argparse.Namespace, parser: argparse.ArgumentParser) -> ShapeOptions:
    """What the line says of the cluster; a flag that is given twice is the parser's error."""
    for flag in ("chief", "evaluator"):
        if len(getattr(found, flag) or ()) > 1:
            parser.error(f"a cluster has at most one {flag}; give --{flag} once")
    return ShapeOptions(
        workers=found.workers,
        ps=found.ps,
        chief=bool(found.chief) or None,
        evaluator=bool(found.evaluator) or None,
        backend=getattr(found, "backend", "local"),
        address=getattr(found, "address", None),
        env=tuple(found.env),
        gpus_per_task=found.gpus_per_task,
        keras=found.keras,
        keras_fix=not found.no_keras_fix,
        auto_restart=found.auto_restart,
        isolate=found.isolate,
    )
