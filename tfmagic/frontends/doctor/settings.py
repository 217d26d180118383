"""Settings and environment variables that make no sense, alone or together."""

from __future__ import annotations

from collections.abc import Iterator

from tfmagic.clusters.settings import TFCluster
from tfmagic.frontends.doctor.findings import Case, Finding, note, trouble

_IMPORT_S = 20.0  # of TensorFlow from a cold disk on a busy machine; 5 s on an idle one
_GRACES = ("failure_grace_s", "interrupt_grace_s", "cancel_grace_s", "abort_grace_s")


def timeouts(case: Case) -> Iterator[Finding]:
    """The time-outs, each with its preset."""
    found = [*_start(case), *_heartbeat(case), *_graces(case)]
    yield from found or [Finding(f"time-outs: {case.setting('start_timeout_s'):g} s for a start")]


def _start(case: Case) -> Iterator[Finding]:
    seconds = case.setting("start_timeout_s")
    mend = "%config TFCluster.start_timeout_s = 120"
    if seconds <= 0:
        yield trouble(f"start_timeout_s is {seconds:g}", f"no task is ready by then:  {mend}")
    elif seconds < _IMPORT_S:
        yield note(f"start_timeout_s is {seconds:g}", f"the import of TensorFlow may take longer:  {mend}")


def _heartbeat(case: Case) -> Iterator[Finding]:
    seconds = case.setting("heartbeat_timeout_s")
    mend = "%config TFCluster.heartbeat_timeout_s = 3"
    if seconds <= 0:
        yield note(f"heartbeat_timeout_s is {seconds:g}", f"no heartbeat can be in time:  {mend}")
    elif seconds < 1:
        yield note(
            f"heartbeat_timeout_s is {seconds:g}",
            f"a task that is held up for so long on a busy machine is given up by the others:  {mend}",
        )


def _graces(case: Case) -> Iterator[Finding]:
    for name in _GRACES:
        seconds = case.setting(name)
        if seconds < 0:
            preset = TFCluster.class_traits()[name].default_value
            yield note(
                f"{name} is {seconds:g}", f"a grace cannot be below 0:  %config TFCluster.{name} = {preset}"
            )
    if sum(max(case.setting(name), 0) for name in _GRACES[1:]) == 0:
        yield note(
            "interrupt_grace_s, cancel_grace_s and abort_grace_s are 0",
            "Ctrl-C kills the tasks, and they lose their variables:  %config TFCluster.abort_grace_s = 0.8",
        )


def tf_config(case: Case) -> Iterator[Finding]:
    """A TF_CONFIG of somebody else's."""
    if "TF_CONFIG" in case.environ:
        yield note(
            "TF_CONFIG is set here",
            "each task gets its own instead; the notebook's is left as it is. If nothing else needs it:  "
            'import os; del os.environ["TF_CONFIG"]',
        )
