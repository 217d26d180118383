"""The settings of tfmagic: the same names in IPython config files, ``%config TFCluster.x`` and `Cluster`."""

import functools
from collections.abc import Callable
from typing import Any

from traitlets import All, Bool, Float, Int, Unicode, observe
from traitlets.config import SingletonConfigurable

from tfmagic.backends.remote.messages import LEASE_S
from tfmagic.supervisor.state import Policy


class TFCluster(SingletonConfigurable):
    """Settings of tfmagic."""

    workers = Int(2, help="Number of workers of a cluster whose shape is not given.")
    backend = Unicode("local", help="Where tasks run: local, or ray.")
    address = Unicode(
        "auto", help="Address of Ray's head, as 10.0.0.1:6379; auto: this machine's Ray cluster."
    )
    failure_grace_s = Float(
        3.0,
        help="Seconds between the failure of a task and the interrupt of the others, and until a wait in a "
        "collective for tasks that have ended the cell is given up.",
    )
    interrupt_grace_s = Float(
        0.5, help="Seconds between an interrupt and the cancellation inside TensorFlow."
    )
    cancel_grace_s = Float(0.5, help="Seconds between that cancellation and the abort of collectives.")
    abort_grace_s = Float(
        0.8, help="Seconds between that abort and SIGKILL, after which the task is restarted."
    )
    stall_s = Float(10.0, help="Seconds without progress after which a task is stalled; 0: never.")
    restart_delay_s = Float(0.1, help="Seconds before --auto-restart; doubled each time, up to 30.")
    dependence_on_chief = Bool(False, help="End the other tasks when the chief ends.")
    timeout_s = Float(
        0.0, help="Time limit, in seconds, of cells and calls without one of their own; 0: none."
    )
    idle_stop_s = Float(
        0.0,
        help="Seconds without a cell after which a cluster ends; the next cell starts it. 0: never.",
    )
    start_timeout_s = Float(
        120.0, help="Seconds until all tasks must be ready, including TensorFlow's import."
    )
    suspect_s = Float(10.0, help="Seconds without an answer after which a host is reported as silent.")
    lease_s = Float(
        LEASE_S, help="Seconds without a sign of the notebook after which a host ends its tasks by itself."
    )
    keep_hosts_s = Float(
        180.0,
        help="Seconds after a stop during which hosts of Ray keep TensorFlow imported for the next cluster, "
        "which keeps an autoscaled node; 0: they end at once.",
    )
    trust_network = Bool(
        False, help="Use a Ray cluster without a token: the network alone keeps others from its ports."
    )
    max_module_bytes = Int(
        32 << 20,
        help="Limit, in bytes, of the notebook's own modules, which hosts of Ray get; 0: they get none.",
    )
    heartbeat_timeout_s = Float(3.0, help="Seconds without a heartbeat until TensorFlow gives up a peer.")
    max_capture_bytes = Int(64 << 20, help="Limit, in bytes, of the notebook variables sent with a cell.")
    max_log_bytes = Int(1 << 30, help="Limit, in bytes, of the log of each task.")
    task_bytes = Int(
        64 << 20, help="Memory, in bytes, that the start of a cluster reserves for an idle task."
    )
    state_dir = Unicode("", help="Folder of the run folders; TFMAGIC_STATE_DIR has precedence.")
    keep_runs_days = Float(7.0, help="Days after which a run folder is deleted.")
    keep_runs_bytes = Int(4 << 30, help="Total size, in bytes, above which the oldest runs are deleted.")
    track_fit = Bool(True, help="Draw loss and metrics of model.fit in the panel, by task.")
    fold_noise = Bool(True, help="Fold TensorFlow's start-up lines into one that opens.")
    fold_equal = Bool(True, help="Show equal lines of several tasks once in a merged stream.")
    notify_command = Unicode(
        "", help="A command that --notify runs when a cell is done, with a sentence about it as last word."
    )
    text_bytes = Int(4000, help="Limit, in bytes, of a failure where no page shows it; 0: none.")
    saved_bytes = Int(200_000, help="Limit, in bytes, of the saved html and text of a cell.")
    warm = Bool(True, help="Start the launcher when the extension is loaded.")
    keep_warm_s = Float(
        600.0,
        help="Seconds without a kernel after which a Jupyter server ends the process that has TensorFlow "
        "imported for the next kernel; 0: each kernel imports it.",
    )

    changes = 0  # how often a setting was changed

    @observe(All)
    def _count_change(self, change: object) -> None:
        self.changes += 1


for _trait in TFCluster.class_own_traits().values():
    _trait.tag(config=True)
    if isinstance(_trait, Int | Float):  # seconds, bytes, days, a count
        _trait.min = 0


def policy_source(
    config: TFCluster, setting: Callable[[str], Any], auto_restart: int
) -> Callable[[], Policy]:
    """Return a function that returns the present policy; it is called with each event of a cluster.

    Args:
        config: Counts the changes of settings; the policy is built again after a change.
        setting: Returns the value of a setting for this cluster.
    """

    @functools.lru_cache(1)
    def build(changes: int) -> Policy:
        values = {name: setting(name) for name in Policy.__struct_fields__ if name != "auto_restart"}
        stall_s = values["stall_s"] if values["stall_s"] > 0 else float("inf")
        return Policy(**{**values, "auto_restart": auto_restart, "stall_s": stall_s})

    return lambda: build(config.changes)
