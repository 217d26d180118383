"""Check settings and environment variables that make no sense, alone or together."""

from __future__ import annotations

from collections.abc import Iterator

from tfmagic.clusters.settings import TFCluster
from tfmagic.frontends.doctor.findings import Case, Finding, note, trouble

_IMPORT_S = 20.0  # for TensorFlow from a cold disk on a busy machine; 5 s on an idle one
_GRACES = ("failure_grace_s", "interrupt_grace_s", "cancel_grace_s", "abort_grace_s")


def timeouts(case: Case) -> Iterator[Finding]:
    """Check the time-outs."""
    found = list(_bad_timeouts(case))
    yield from found or [Finding(f"time-outs: {case.setting('start_timeout_s'):g} s for a start")]


def _bad_timeouts(case: Case) -> Iterator[Finding]:
    start_s, heartbeat_s = case.setting("start_timeout_s"), case.setting("heartbeat_timeout_s")
    what, fix = f"start_timeout_s is {start_s:g}", "%config TFCluster.start_timeout_s = 120"
    if start_s <= 0:
        yield trouble(what, f"no task is ready by then:  {fix}")
    elif start_s < _IMPORT_S:
        yield note(what, f"the import of TensorFlow can take longer:  {fix}")
    what, fix = f"heartbeat_timeout_s is {heartbeat_s:g}", "%config TFCluster.heartbeat_timeout_s = 3"
    if heartbeat_s <= 0:
        yield note(what, f"no heartbeat can be in time:  {fix}")
    elif heartbeat_s < 1:
        yield note(what, f"the others give up a task that a busy machine holds up for so long:  {fix}")
    graces = {name: case.setting(name) for name in _GRACES}
    for name, seconds in graces.items():
        if seconds < 0:
            fix = f"%config TFCluster.{name} = {TFCluster.class_traits()[name].default_value}"
            yield note(f"{name} is {seconds:g}", f"a grace cannot be below 0:  {fix}")
    if sum(max(graces[name], 0) for name in _GRACES[1:]) == 0:
        yield note(
            "interrupt_grace_s, cancel_grace_s and abort_grace_s are 0",
            "Ctrl-C kills the tasks, and they lose their variables:  %config TFCluster.abort_grace_s = 0.8",
        )


def tf_config(case: Case) -> Iterator[Finding]:
    """Note a TF_CONFIG that tfmagic did not set."""
    if "TF_CONFIG" in case.environ:
        yield note(
            "TF_CONFIG is set here",
            "each task gets its own instead; the notebook's is left as it is. If nothing else needs it:  "
            'import os; del os.environ["TF_CONFIG"]',
        )
