"""The commands of ``%tfcluster`` that injure tasks on purpose: see `tfmagic.clusters.fault_lab`.

`tfmagic.frontends.notebook.line_commands` describes what a command is made of.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from tfmagic.clusters.arguments import parse_count, parse_seconds
from tfmagic.clusters.fault_lab import DEFAULT_KINDS, KINDS, FaultLab
from tfmagic.frontends.notebook.options import (
    LineCommand,
    argument,
    flag,
    line_command,
    parse_bytes,
    parse_factor,
    parse_signal,
    parse_variables,
)

if TYPE_CHECKING:
    from tfmagic.frontends.notebook.magic import TFClusterMagics


@dataclass(frozen=True, slots=True)
class _Fault(LineCommand):
    tasks: tuple[str, ...] = argument("", "TASK", "tasks, by selector", nargs="+", default=())
    after_s: float | None = argument(
        "--after", "S", "seconds until the fault; returns at once", type=parse_seconds
    )
    amount: float = 0  # see `tfmagic.clusters.fault_lab.Fault`

    def run(self, magics: TFClusterMagics) -> None:
        lab = magics.running(self.cluster).faults
        try:
            if self.after_s is None:
                self.injure(lab)
                return
            hit = lab.later(self.after_s, self.name, self.tasks, self.amount)
        except ValueError as error:
            raise UsageError(f"%tfcluster {self.name}: {error}") from None
        print(f"tfmagic: in {self.after_s:g} s: {self.name} {', '.join(map(str, hit))}")

    def injure(self, lab: FaultLab) -> None:
        """Do it now."""
        raise NotImplementedError


@line_command("kill", "let tasks crash: kill them, or signal them (--signal TERM)")
class _Kill(_Fault):
    amount: int = argument("--signal", "S", "default: KILL", type=parse_signal, default=signal.SIGKILL)

    def injure(self, lab: FaultLab) -> None:
        lab.kill(*self.tasks, signal_number=self.amount)


@line_command("pause", "let tasks hang: stop them (SIGSTOP) until resume")
class _Pause(_Fault):
    def injure(self, lab: FaultLab) -> None:
        lab.pause(*self.tasks)


@line_command("resume", "continue paused tasks")
class _Resume(_Fault):
    def injure(self, lab: FaultLab) -> None:
        lab.resume(*self.tasks)


@line_command("preempt", "ask tasks to end (SIGTERM), as a cloud does")
class _Preempt(_Fault):
    def injure(self, lab: FaultLab) -> None:
        lab.preempt(*self.tasks)


@line_command("slow", "make tasks slower:  slow TASK FACTOR ; 1 ends it")
class _Slow(_Fault):
    amount: float = argument("", "FACTOR", "1 to 100", type=parse_factor)

    def injure(self, lab: FaultLab) -> None:
        lab.slow(",".join(self.tasks), self.amount)


@line_command("flood", "let tasks write to their error stream:  flood TASK BYTES , such as 200MB")
class _Flood(_Fault):
    amount: int = argument("", "BYTES", "such as 1000000, 200MB, 1GB", type=parse_bytes)

    def injure(self, lab: FaultLab) -> None:
        lab.flood(",".join(self.tasks), self.amount)


@line_command("chaos", "inject faults at random in the background (--stop ends it)")
class _Chaos(LineCommand):
    seed: int = argument("--seed", "N", "the same seed gives the same faults", type=parse_count, default=0)
    seconds: float = argument("--seconds", "S", "duration (30)", type=parse_seconds, default=30.0)
    every_s: float = argument("--every", "S", "mean time between faults (3)", type=parse_seconds, default=3.0)
    kinds: tuple[str, ...] = argument(
        "--faults", "A,B", f"kinds, of {', '.join(KINDS)}", type=parse_variables, default=DEFAULT_KINDS
    )
    on: str = argument("--on", "SELECTOR", "tasks that the faults can hit", default="all")
    stop: bool = flag("--stop", "end the faults")

    def run(self, magics: TFClusterMagics) -> None:
        lab = magics.running(self.cluster).faults
        if self.stop:
            lab.calm()
            print("tfmagic: all plans of faults have ended; what they had paused or slowed goes on")
            return
        try:
            plan = lab.chaos(self.seed, self.seconds, self.every_s, self.kinds, self.on or "all")
        except ValueError as error:
            raise UsageError(str(error)) from None
        print(f"tfmagic: chaos with seed {self.seed}, {len(plan)} faults; %tfcluster chaos --stop ends it")
        for step in plan:
            print(f"  {step}")
