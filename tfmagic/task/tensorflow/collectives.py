"""Make TensorFlow's multi-worker strategies work in notebooks, by wrapping three methods of its Context.

Measured on TensorFlow 2.21 (private API, which is named only here):

- A strategy that is made after any op ran raises "Collective ops must be configured at program startup".
  A new context avoids that, and takes over what was made in the old one (`new_context`), except look-up
  tables and queues. So the context is replaced, unless one of those lives.
- A peer that connects before the leader listens loses exactly 1.0 s to gRPC's back-off, and a task that
  waits for its peers inside C++ cannot be interrupted. So all tasks meet on our own channel first (Ctrl-C
  works, a dead peer breaks the barrier). Then the leader starts, and the others when its port answers; no
  interrupt keeps one of them from that, since nothing but SIGKILL would reach the others then.
- A further strategy in the same process makes each task forget its collectives. A task that starts a new
  collective before the leader has forgotten the old ones loses it: "group 1 not found", or a hang (one in
  ten cells of three workers under load). So all tasks meet before and after that.
- A new process beside others whose TensorFlow knows its predecessor is never accepted, without any message.
  So a first strategy and a further one meet at different barriers, which the supervisor detects at once.
- The coordination service notices a dead peer after 10 s. So the heartbeat is 3 s, unless the user sets it.
- A process that gets a new cluster with new ports, and replaces its context, can make strategies there, and
  keeps its variables. The old server cannot be stopped: 97 idle threads, 41 MiB and 3 descriptors each.
- After a collective was aborted or cancelled, every later one of this process fails. A new strategy on all
  tasks repairs that. So a cell that fails with an old one explains it, and the supervisor stops the
  collectives of the other tasks, too, which would wait for this one.
"""

import json
import re
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import FIRST_STRATEGY
from tfmagic.system.advice import Step
from tfmagic.task import cell_position
from tfmagic.task.cell_parts import CellPart
from tfmagic.task.tensorflow import interrupts, keras_scopes, new_context, patches

_UNAVAILABLE = 14  # tf.errors.UNAVAILABLE: what TensorFlow itself raises when a peer is gone
_BACKGROUND_S = 0.2  # for a collective whose partners are on their way
_LEADER_WAIT_S = 60.0  # the leader was at the barrier: it only has to open its port
_UNTIL_RESET = "Restart your program to reset"  # ends TensorFlow's message of each collective after an abort

Meet = Callable[[str, tuple[TaskId, ...]], object]

_NO_HEARTBEAT = re.compile(r"stopped sending heartbeats|CoordinationService/Heartbeat")


class Collectives(CellPart):
    """What has become of this process' collectives: a process has one set of them."""

    def __init__(self) -> None:
        self.stopped = ""  # why they cannot go on
        self.stopped_before = ""  # the same when the cell began
        self.has_peers = False  # whether the last strategy was made with other tasks
        self.resets = 0  # how often this process has left a cluster

    def begin(self, cell: RunCell) -> None:
        """Note whether the strategies that were made before can go on."""
        self.stopped_before = self.stopped
        new_context.start_alone()


STATE = Collectives()


def replacing_context(configure_collectives: Callable[..., None]) -> Callable[..., None]:
    """Replace a context that has run ops, or whose start failed half-way, before a strategy is made.

    Also that of a strategy without other tasks, if the next one has some.
    """

    def configure_collective_ops(self: Any, collective_leader: str = "", *args: Any, **kwargs: Any) -> None:
        is_torn = not self._initialized  # its start failed half-way
        has_none = not self._collective_leader and self._collective_leader != collective_leader  # None, or ""
        if self._context_handle is not None and (is_torn or has_none):
            self = _reset_context("Collective ops must be configured at program startup: ")
        configure_collectives(self, collective_leader, *args, **kwargs)

    return configure_collective_ops


def with_heartbeat(configure_service: Callable[..., None], boot: TaskBoot) -> Callable[..., None]:
    """Let strategies have the heartbeat of the boot message, unless the user sets it."""

    def configure_coordination_service(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) < 5:
            kwargs.setdefault("heartbeat_timeout_in_ms", boot.heartbeat_ms)
        configure_service(self, *args, **kwargs)

    return configure_coordination_service


def meeting_before(
    enable_collectives: Callable[..., None], boot: TaskBoot, meet: Meet
) -> Callable[..., None]:
    """Let all tasks meet before they make a strategy. `meet` raises when a task cannot come."""

    def enable_collective_ops(self: Any, server_def: Any) -> None:
        members = _members(boot, server_def)
        STATE.has_peers = len(members) > 1
        if len(members) < 2 or boot.task not in members:
            enable_collectives(self, server_def)
        elif self._context_handle is None:
            try:
                try:
                    meet(FIRST_STRATEGY, members)  # holds interrupts back from when it opens
                    if boot.task != boot.leader:
                        _wait_for_port(server_def, boot.leader)
                except BaseException:  # also an interrupt: the next strategy is the first one again
                    self._collective_leader = None
                    new_context.start_alone()
                    raise
                enable_collectives(self, server_def)
                self.ensure_initialized()  # TensorFlow's next call
            finally:
                interrupts.STATE.is_held = False
        else:
            meet("further strategy", members)
            enable_collectives(self, server_def)
            meet("further strategy", members)
        STATE.stopped = STATE.stopped_before = ""

    return enable_collective_ops


def abort_collectives(message: str) -> None:
    """Make waiting collectives of this process raise. For the side thread; never blocks.

    Does nothing to a context that is still starting: it holds its lock.
    """
    current = _context_with_collectives()
    if current is not None:
        current.abort_collective_ops(_UNAVAILABLE, message)
        STATE.stopped = message


def leave_cluster() -> int:
    """Forget the peers of this process' strategies; return how often it has done so.

    Python's objects stay. Raises RuntimeError if one lives that the new context cannot take over.
    """
    if _context_with_collectives() is not None:
        _reset_context("it cannot meet new processes of its peers: ")
        keras_scopes.forget_generator()
        STATE.resets += 1
        STATE.stopped = "the tasks have new addresses"
    return STATE.resets


def note_cancel() -> None:
    """Note that the ops of this process are cancelled now, perhaps a collective."""
    if _context_with_collectives() is not None and cell_position.is_in_collective():
        STATE.stopped = "the cell was interrupted"


def end_background() -> None:
    """Abort a collective for which a thread of a cell still waits that has failed.

    Eager collectives run in threads of TensorFlow's own, which KeyboardInterrupt does not reach. One that is
    left counts as a collective of the next strategy, whose tasks are out of step then.
    """
    began, is_aborted = time.monotonic(), False
    while _context_with_collectives() is not None and cell_position.is_in_collective():
        past_s = time.monotonic() - began
        if past_s > _BACKGROUND_S and not is_aborted:
            abort_collectives("a cell ended while one was under way")
            is_aborted = True
        if past_s > 5 * _BACKGROUND_S:
            break
        time.sleep(0.01)


def have_peers() -> bool:
    """Check whether this process has a strategy with other tasks."""
    return STATE.has_peers and _context_with_collectives() is not None


def are_stopped() -> bool:
    """Check whether the strategies of this process are unusable."""
    return bool(STATE.stopped)


def were_stopped_in_cell() -> bool:
    """Check whether the strategies of this process became unusable in this cell."""
    return bool(STATE.stopped) and not STATE.stopped_before


def has_lost_peers(error: BaseException) -> bool:
    """Check whether the heartbeats between this task and its peers have failed (a cut network, for example).

    TensorFlow then takes the peers for dead, whether they are or not, and fails every later collective.
    """
    return _context_with_collectives() is not None and bool(_NO_HEARTBEAT.search(str(error)))


def explain(error: BaseException) -> str:
    """Return why a strategy made before the cell failed in it; "" if this is no such failure."""
    if not STATE.stopped_before or STATE.stopped != STATE.stopped_before or _UNTIL_RESET not in str(error):
        return ""
    return (
        f"TensorFlow's collectives had been stopped on this task ({STATE.stopped_before}): a strategy made "
        "before that cannot go on. Create it again on every task, or give them new processes with  "
        f"{Step('restart')}"
    )


def _context_with_collectives() -> Any:
    """Return TensorFlow's context if a multi-worker strategy has set up its collectives, else None."""
    module = sys.modules.get("tensorflow.python.eager.context")
    current = module and patches.TABLE.fits(patches.COLLECTIVES) and module._context
    return current if current and current._initialized and current._collective_leader else None


def start_server(boot: TaskBoot) -> Any:
    """Start this task's tf.distribute.Server, which serves from threads of its own, and return it."""
    import tensorflow as tf

    cluster = json.loads(boot.tf_config)["cluster"]
    return tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=boot.task.type, task_index=boot.task.index
    )


def _reset_context(why: str) -> Any:
    """Replace TensorFlow's context, with what the program made there, and return the new one.

    Raises:
        RuntimeError: An object lives that the new context cannot take over.
    """
    if missing := patches.TABLE.missing(patches.NEW_CONTEXT):
        raise RuntimeError(f"{why}its context cannot be replaced ({missing}):  {Step('restart')}")
    try:
        return new_context.replace_context()
    except new_context.NotMovable as error:
        raise RuntimeError(
            f"{why}this task has already run TensorFlow ops, and its {', '.join(error.kinds)} would be lost "
            "if tfmagic started the context again. Create the strategy in the first cell, after:  "
            f"{Step('restart')}"
        ) from None


def _members(boot: TaskBoot, server_def: Any) -> tuple[TaskId, ...]:
    """Return the tasks of the server definition if it is of our own cluster, else none."""
    if not server_def:
        return ()
    jobs = [job for job in server_def.cluster.job if job.name in ("chief", "worker")]
    members = tuple(TaskId(job.name, index) for job in jobs for index in sorted(job.tasks))
    return members if all(t in boot.shape_tasks for t in members) else ()


def _wait_for_port(server_def: Any, task: TaskId) -> None:
    """Poll until the server of this task listens. Ctrl-C works here, unlike in gRPC's own wait."""
    address = str(next(j.tasks[task.index] for j in server_def.cluster.job if j.name == task.type))
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + _LEADER_WAIT_S
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, int(port)), timeout=1):
                return
        except OSError:
            time.sleep(0.002)
    raise RuntimeError(f"{task.name} did not open its port {address} within {_LEADER_WAIT_S:.0f} s")
