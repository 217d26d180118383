"""Settings: the same names in an IPython config file, in ``%config TFCluster.x`` and as arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traitlets import All, Bool, Float, Int, Unicode, observe
from traitlets.config import SingletonConfigurable

from tfmagic.supervisor.state import Policy


class TFCluster(SingletonConfigurable):
    """Settings of tfmagic."""

    workers = Int(2, help="Workers of a cluster whose shape is not given.").tag(config=True)
    failure_grace_s = Float(
        3.0, help="Seconds that the other tasks get, after one failed, before they are interrupted."
    ).tag(config=True)
    interrupt_grace_s = Float(
        0.5, help="Seconds between an interrupt and the cancellation of what runs inside TensorFlow."
    ).tag(config=True)
    cancel_grace_s = Float(
        0.5, help="Seconds between that cancellation and the abort of TensorFlow's collectives."
    ).tag(config=True)
    abort_grace_s = Float(
        0.8, help="Seconds between that abort and SIGKILL, after which the task is started anew."
    ).tag(config=True)
    stall_s = Float(
        10.0, help="Seconds without any sign of progress after which a task is called stalled; 0: never."
    ).tag(config=True)
    restart_delay_s = Float(
        0.1, help="Seconds before a dead task is restarted by --auto-restart; doubles each time, up to 30."
    ).tag(config=True)
    dependence_on_chief = Bool(False, help="When the chief's process ends, the others end with it.").tag(
        config=True
    )
    timeout_s = Float(
        0.0, help="Seconds after which a cell or call without a time limit of its own is stopped; 0: never."
    ).tag(config=True)
    start_timeout_s = Float(
        120.0, help="Seconds for every task to be ready, the import of TensorFlow included."
    ).tag(config=True)
    heartbeat_timeout_s = Float(
        3.0, help="Seconds without a heartbeat after which TensorFlow gives up a peer."
    ).tag(config=True)
    max_capture_bytes = Int(
        64 << 20, help="Bytes of notebook variables that travel with a cell by themselves."
    ).tag(config=True)
    max_log_bytes = Int(1 << 30, help="Bytes of output that are kept of a task.").tag(config=True)
    task_bytes = Int(
        64 << 20, help="Memory that an idle task is taken to need when a cluster is started."
    ).tag(config=True)
    state_dir = Unicode("", help="Folder of run logs; TFMAGIC_STATE_DIR wins.").tag(config=True)
    keep_runs_days = Float(7.0, help="Days after which old runs are deleted.").tag(config=True)
    keep_runs_bytes = Int(4 << 30, help="Bytes above which the oldest runs are deleted.").tag(config=True)
    fold_noise = Bool(True, help="Fold TensorFlow's start-up lines into one that opens.").tag(config=True)
    fold_equal = Bool(True, help="Fold equal lines of several tasks in a merged stream.").tag(config=True)
    saved_bytes = Int(200_000, help="Bytes of html and text that stay in the notebook of a cell.").tag(
        config=True
    )
    warm = Bool(True, help="Start the launcher when the extension is loaded.").tag(config=True)

    changes = 0  # of settings, so far

    @observe(All)
    def _count_change(self, change: object) -> None:
        self.changes += 1


class LastPolicy:
    """`policy_of`, made anew when a setting has changed: it is asked for with each event of a cluster.

    Args:
        config: Tells of changes by its `changes`.
        setting: The value of a setting for this cluster.
    """

    def __init__(self, config: TFCluster, setting: Callable[[str], Any], auto_restart: int):
        self._config, self._setting, self._auto_restart = config, setting, auto_restart
        self._made: tuple[int, Policy] | None = None

    def __call__(self) -> Policy:
        changes, made = self._config.changes, self._made
        if made is None or made[0] != changes:
            made = self._made = (changes, policy_of(self._setting, self._auto_restart))
        return made[1]


def policy_of(setting: Callable[[str], Any], auto_restart: int) -> Policy:
    """The policy that the settings make."""
    return Policy(
        failure_grace_s=setting("failure_grace_s"),
        interrupt_grace_s=setting("interrupt_grace_s"),
        cancel_grace_s=setting("cancel_grace_s"),
        abort_grace_s=setting("abort_grace_s"),
        auto_restart=auto_restart,
        restart_delay_s=setting("restart_delay_s"),
        start_timeout_s=setting("start_timeout_s"),
        dependence_on_chief=setting("dependence_on_chief"),
        stall_s=setting("stall_s") if setting("stall_s") > 0 else float("inf"),
    )
