"""Counts the lines that tasks print while no cell shows them; the next cell that is shown names them once.

Threads and daemons of an earlier cell print between two cells, and `Cluster.submit` prints nowhere. The logs
have these lines. A cell or call shows the log of each of its tasks from its own begin to its own end; all
else that a process writes after the begin of its first cell is unseen. TensorFlow's log is not counted.

`ClusterCells` calls this under its lock. As long as nothing was printed, only sizes of files are read.
"""

from dataclasses import dataclass, field

from tfmagic.clusters.cells.job import Job
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import TaskExited
from tfmagic.runs.log_reader import tail_lines
from tfmagic.runs.tensorflow_noise import is_record
from tfmagic.supervisor.state import CellState
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import notices
from tfmagic.system.advice import Step

_COUNTED_BYTES = 1 << 18  # of each piece of a log: a flood is not read to its beginning
_NAMED_TASKS = 4


@dataclass
class _Log:
    """The log of a task: the end of what was shown or named, in bytes, and the unseen pieces before it."""

    attempt: int
    end: int
    unseen: list[tuple[int, int]] = field(default_factory=list)

    def add_unseen(self, end: int) -> None:
        """Note that nothing shows the log up to `end`."""
        if end > self.end:
            self.unseen.append((self.end, end))
            self.end = end


class UnseenOutput:
    """Knows which parts of the logs of a cluster's tasks nothing has shown."""

    def __init__(self, supervisor: Supervisor):
        self._supervisor, self._run = supervisor, supervisor.run
        self._logs: dict[TaskId, _Log] = {}
        self._shown: dict[int, Job] = {}  # jobs that show their output and have not ended

    def note_begun(self, job: Job) -> None:
        """Note that a job has begun, of the user or of tfmagic itself."""
        for task, start in job.starts.items():
            self._enter(task, start)
        if not job.options.is_quiet or (job.command.is_users and not job.is_in_background):
            self._shown[job.number] = job

    def note_ended(self, job: Job, outcome: CellState) -> None:
        """Note that a job has ended. Its view shows no line that a task has written after its own part."""
        if self._shown.pop(job.number, None) is None:
            return
        for task, start in job.starts.items():
            log, end = self._logs[task], outcome.outcomes.get(task)
            if end is not None and end.attempt == log.attempt:
                log.add_unseen(start)
                last: int | None = getattr(end, "log_end", None)
                log.end = max(log.end, self._run.log_bytes(task) if last is None else last)

    def tell(self) -> None:
        """Print how many lines nothing has shown since the last call, and where they are."""
        running = self._running()
        for task in self._logs:
            size = self._run.log_bytes(task)
            self._enter(task, size)
            if task not in running:
                self._logs[task].add_unseen(size)
        pieces = [end - start for log in self._logs.values() for start, end in log.unseen]
        if not pieces:
            return
        counts = {task.name: count for task in self._logs if (count := self._take_count(task))}
        if not counts:
            return
        which = ", ".join(counts) if len(counts) <= _NAMED_TASKS else f"{len(counts)} tasks"
        step = Step("logs", *counts) if len(counts) <= _NAMED_TASKS else Step("logs")
        total, least = sum(counts.values()), "at least " * (max(pieces) > _COUNTED_BYTES)
        lines = f"{least}{total:,} line{'s' * (total != 1)}"
        notices.say(f"tfmagic: {which} printed {lines} that no cell shows: {step}")

    def _running(self) -> set[TaskId]:
        """Return the tasks whose present output a job shows."""
        return {task for job in self._shown.values() for task in job.tasks}

    def _enter(self, task: TaskId, start: int) -> None:
        """Note that the present process of a task is used: its log counts from `start` on, if it is new."""
        seen, log = self._supervisor.state.tasks[task], self._logs.get(task)
        if log is None:
            self._logs[task] = _Log(seen.attempt, start)
        elif log.attempt != seen.attempt:
            is_known = isinstance(seen.end, TaskExited) and seen.end.attempt == log.attempt
            if is_known and task not in self._running():
                log.add_unseen(getattr(seen.end, "log_end", None) or 0)
            log.attempt, log.end = seen.attempt, start

    def _take_count(self, task: TaskId) -> int:
        """Return the number of the user's lines in the unseen pieces of a log, and forget these."""
        path, count = self._run.log_path(task), 0
        for start, end in self._logs[task].unseen:
            lines = tail_lines(path, end - start, _COUNTED_BYTES, start, end)
            count += sum(bool(line.strip()) and not is_record(line) for line in lines)
        self._logs[task].unseen.clear()
        return count
