"""Clusters that outlive their kernel: what a new kernel makes of what their hosts report.

run folder: kept.json ──→ RemoteBackend(resumes) ──→ KeptTask of each task ─┬→ ClusterState ─→ Supervisor
                    cells whose results nobody has taken ───────────────────┴→ ResumedCell ─→ Job
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tfmagic.backends.protocol import Backend
from tfmagic.backends.remote.backend import RemoteBackend
from tfmagic.backends.remote.messages import KeptCell, KeptTask
from tfmagic.clusters.launch.cluster_options import BackendOptions, ShapeOptions, TaskOptions, values_in
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.errors import LaunchError, TfmagicError
from tfmagic.protocol.cluster_spec import ClusterShape, ClusterSpec, Spec, TaskId
from tfmagic.protocol.events import CellRequested, TaskLost
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.kept import KeptCluster, KeptFile, OpenCell, read_kept
from tfmagic.runs.kernels import kernel_of
from tfmagic.supervisor.state import CellState, ClusterState, Phase, TaskState

_UNSENT = "the former notebook ended before this task got the cell"
_FORGOTTEN = "what it returned was lost with its process"
_LOST = "its host or the agent there was lost while no notebook was attached"


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run to which this kernel attaches."""

    run: RunFolder
    cluster: KeptCluster
    spec: ClusterSpec


@dataclass(frozen=True, slots=True)
class ResumedCell:
    """A cell that goes on, or has ended meanwhile.

    Attributes:
        out: The name to which the notebook binds the results, or "".
        starts: The length of each task's log before it, in bytes.
        age_s: The time since it was sent, in seconds.
    """

    request: CellRequested
    out: str
    starts: Mapping[TaskId, int]
    age_s: float


class StartedCell(Protocol):
    """A cell or call that is about to be sent."""

    request: CellRequested

    @property
    def out(self) -> str: ...  #: The name to which the notebook binds its results, or "".


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a kernel goes on with.

    Attributes:
        owned: The attempt of each task, and the names that its cells have assigned.
        last_number: The highest number of a cell that the tasks know.
        env: The environment that the user gave the tasks.
    """

    state: ClusterState
    cells: list[ResumedCell]
    owned: Mapping[TaskId, tuple[int, tuple[str, ...]]]
    last_number: int
    env: Mapping[str, str]


class KeptClusterRecord:
    """Notes in the run folder what another kernel needs to attach. Does nothing for other clusters.

    Args:
        kept: The run to which this kernel attaches, if it does not start a new one.

    Attributes:
        unsent: The notebook's numbers of the cells that a former kernel has not sent.
    """

    def __init__(
        self,
        backend: Backend,
        run: RunFolder,
        name: str,
        spec: Spec,
        settings: TaskSettings,
        kept: KeptRun | None,
    ):
        self._run = run
        self._backend: RemoteBackend | None = None
        self._file: KeptFile | None = None
        self.unsent: tuple[int, ...] = ()
        if not isinstance(backend, RemoteBackend) or not backend.setup.kept_as:
            return
        assert isinstance(spec, ClusterSpec)
        self._backend = backend
        if kept is not None:
            self._content = kept.cluster
        else:
            options = options_of(name, spec.shape, settings)
            self._content = KeptCluster(backend.setup.kept_as, settings.keep_s, options, _texts(spec))
        try:
            self._file = KeptFile(run.folder, self._content)
        except OSError as error:
            backend.close() if kept is None else backend.leave()
            raise LaunchError(
                f"no other kernel could attach, since {run.folder} is not written: {error}"
            ) from error

    @property
    def was_taken_over(self) -> bool:
        """Whether another kernel has attached since: the run folder is that one's."""
        return self._backend is not None and self._backend.was_taken_over

    def resume(self) -> Resumed:
        """Take the run over, and return what its hosts have reported."""
        assert self._backend is not None
        kept, opened = self._backend.kept, self._content.cells
        cells = resume_cells(kept, opened)
        state = resume_state(self._backend.tasks, kept, cells)
        names = {known.task: known.owned for known in kept}
        owned = {task: (seen.attempt, names.get(task, ())) for task, seen in state.tasks.items()}
        numbers = [cell.command.cell for known in kept for cell in known.cells]
        sent = {cell.request.cell for cell in cells}
        self.unsent = tuple(how.prompt for number, how in opened.items() if number not in sent)
        self._run.take()
        return Resumed(state, cells, owned, max([0, *opened, *numbers]), self._backend.setup.task_env)

    def begin(self, cell: StartedCell) -> None:
        """Note a cell or call before it is sent."""
        if self._file is None:
            return
        request, command = cell.request, next(iter(cell.request.commands.values()))
        if command.source or command.call:
            opened = OpenCell(cell.out, request.timeout_s, request.keep_going, command.prompt)
            self._change(lambda file: file.begin(request.cell, opened))

    def settle(self, number: int) -> None:
        """Note that this kernel has taken the results of a cell."""
        self._change(lambda file: file.settle(number))

    def move(self, spec: Spec) -> None:
        """Note new addresses of the tasks."""
        self._change(lambda file: file.move(_texts(spec)))

    def close(self) -> None:
        """Note that the cluster was stopped."""
        self._change(lambda file: file.delete())

    def _change(self, change: Callable[[KeptFile], object]) -> None:
        if self._file is not None and not self.was_taken_over:
            change(self._file)


def find_run(run: RunFolder) -> KeptRun:
    """Return a run that was kept.

    Raises:
        TfmagicError: It was not, or a living kernel of this machine has it.
    """
    found = read_kept(run.folder)
    if found is None:
        raise TfmagicError(f"run {run} was not started with --keep, or was stopped; only its logs are left")
    kernel = kernel_of(run)
    if kernel is not None and kernel.alive:
        raise TfmagicError(
            f"run {run} is attached to the kernel with the process {kernel.pid}, which lives. End that "
            "kernel first; the tasks go on"
        )
    counts = {name: found.options[name] for name in ("workers", "ps", "chief", "evaluator")}
    shape = ClusterShape(**counts)
    return KeptRun(run, found, ClusterSpec(shape, {task: found.addresses[task.name] for task in shape.tasks}))


def _texts(spec: Spec) -> dict[str, str]:
    return {task.name: where for task, where in spec.addresses.items()}


def options_of(name: str, shape: ClusterShape, settings: TaskSettings) -> dict[str, Any]:
    """Return the arguments of `Cluster` for a kernel that attaches, but `env`: it can hold secrets."""
    hosts = settings.hosts
    assert hosts is not None
    asked = BackendOptions(
        backend="ray",
        address=hosts.address,
        placement=hosts.placement,
        cpus_per_task=hosts.cpus,
        resources=dict(hosts.resources),
        keep=hosts.keep_s,
    )
    values = {
        **values_in(ShapeOptions, shape),
        **values_in(BackendOptions, asked),
        **values_in(TaskOptions, settings),
    }
    return {"name": name, **{option: value for option, value in values.items() if option != "env"}}


def resume_cells(kept: Iterable[KeptTask], opened: Mapping[int, OpenCell]) -> list[ResumedCell]:
    """Return the cells that the tasks have got and whose results no kernel has taken, in order."""
    by_number: dict[int, dict[TaskId, KeptCell]] = {}
    for known in kept:
        for cell in known.cells:
            by_number.setdefault(cell.command.cell, {})[known.task] = cell
    found = []
    for number in sorted(by_number.keys() & opened.keys()):
        parts, how = by_number[number], opened[number]
        command = next(iter(parts.values())).command
        commands = {task: parts[task].command if task in parts else command for task in command.tasks}
        request = CellRequested(number, commands, how.timeout_s, how.keep_going)
        starts = {task: cell.log_start for task, cell in parts.items()}
        found.append(ResumedCell(request, how.out, starts, max(cell.age_s for cell in parts.values())))
    return found


def resume_state(
    tasks: Iterable[TaskId], kept: Iterable[KeptTask], cells: Iterable[ResumedCell]
) -> ClusterState:
    """Return the state of the cluster. How its cells have ended is reported later, as events."""
    now, known = time.monotonic(), {found.task: found for found in kept}
    seen = {task: _task_state(known[task], known, now) if task in known else _lost(task) for task in tasks}
    states = {}
    for cell in cells:
        outcomes = {}
        for task in cell.request.commands:
            part = _part_of(known.get(task), cell.request.cell)
            if task not in known:
                outcomes[task] = seen[task].end
            elif part is None:
                outcomes[task] = TaskLost(task, seen[task].attempt, _UNSENT)
            elif part.attempt != known[task].attempt:
                outcomes[task] = part.end or TaskLost(task, part.attempt, _FORGOTTEN)
        ended = {task: end for task, end in outcomes.items() if end is not None}
        states[cell.request.cell] = CellState(
            cell.request,
            now - cell.age_s,
            sent=True,
            outcomes=ended,
            ended_at=dict.fromkeys(ended, now),
            failed_at=now if ended else None,
        )
    return ClusterState(seen, states)


def _part_of(known: KeptTask | None, number: int) -> KeptCell | None:
    cells = () if known is None else known.cells
    return next((cell for cell in cells if cell.command.cell == number), None)


def _task_state(known: KeptTask, others: Mapping[TaskId, KeptTask], now: float) -> TaskState:
    phase = Phase.READY if known.host else Phase.STARTING  # until its end, if it has ended, is reported
    return TaskState(
        Phase.RUNNING if known.is_busy else phase,
        known.attempt,
        known.pid,
        known.host,
        known.fresh,
        known.obstacle,
        since=now,
        joined={task: others[task].attempt if task in others else 0 for task in known.joined},
    )


def _lost(task: TaskId) -> TaskState:
    return TaskState(Phase.DEAD, 1, end=TaskLost(task, 1, _LOST))
