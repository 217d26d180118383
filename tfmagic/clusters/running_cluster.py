"""A cluster between its start and its stop: its parts, and what connects them.

    ClusterProcesses   run folder, backend, addresses, supervisor
    ClusterCells       cells and calls, from their plan to their results
    ClusterViews       what shows them
    files and widgets of the tasks, the timeline, the status file: they listen to the supervisor

`Cluster` and `OneShotTasks` own one each, and call it under their lock: cells begin in the order in which
they were packed.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from tfmagic.clusters.cells import features
from tfmagic.clusters.cells.cell_plan import ViewChoice
from tfmagic.clusters.cells.cluster_cells import ClusterCells
from tfmagic.clusters.cells.cluster_views import ClusterViews
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.cells.task_variables import TaskVariables
from tfmagic.clusters.launch.cluster_processes import ClusterProcesses
from tfmagic.clusters.launch.kept_clusters import KeptRun
from tfmagic.clusters.launch.startup import Progress
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.clusters.tools.status import StatusWriter
from tfmagic.failures.root_cause import FailureContext
from tfmagic.protocol.cluster_spec import Shape, Spec, TaskId
from tfmagic.protocol.events import StopRequested
from tfmagic.supervisor import story_files
from tfmagic.supervisor.state import COMING, CellState
from tfmagic.supervisor.story import Story
from tfmagic.supervisor.story_files import StoryFile
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import memory, notices
from tfmagic.views import task_widgets
from tfmagic.views.task_widgets import TaskWidgets, WidgetPage


class RunningCluster:
    """The processes of a cluster, and the jobs that they run.

    Args:
        setting: Returns the value of a setting of `TFCluster` for this cluster.
        main: Returns the ``__main__`` whose functions and variables travel by name.
        lock: The owner's.
        widget_page: Where widgets of tasks are shown.
        tasks: The tasks that are started; by default all of the shape.
        progress: Called while the hosts of the tasks are not there yet.
        kept: A run whose tasks are taken over instead, and whose cells are shown by `view`.

    Attributes:
        oom_kills: Processes that the kernel of the machine had killed before for lack of memory.
        resumed: The jobs that a former kernel has started.
        imported_under: The variables that TensorFlow's import could see.
        told_late: Names of variables that cells set later, and about which the user was told.
        idle_stop_s: The limit after which it ended by itself, for want of a cell; 0 if it did not.

    Raises:
        LaunchError: It could not be started; no process is left.
        ClusterSpecError: The shape needs more GPUs than there are.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        task_settings: TaskSettings,
        setting: Callable[[str], Any],
        main: Callable[[], dict[str, Any]],
        lock: threading.RLock,
        *,
        widget_page: WidgetPage | None = None,
        tasks: tuple[TaskId, ...] | None = None,
        progress: Progress | None = None,
        kept: KeptRun | None = None,
        view: ViewChoice = "text",
    ):
        self.shape, self.told_late = shape, set[str]()
        self.imported_under = task_settings.flavour.import_time
        self.oom_kills = memory.count_oom_kills()
        variables = TaskVariables(main, setting, task_settings)  # can raise
        self.processes = ClusterProcesses(
            name,
            shape,
            task_settings,
            setting,
            tasks=tasks,
            observer=self._observe,
            progress=progress,
            kept=kept,
        )
        variables.sent = self.processes.stamp_sent
        self.run, self.tasks, self.hosts = self.processes.run, self.processes.tasks, self.processes.hosts
        self.supervisor, self.kept_record = self.processes.supervisor, self.processes.kept_record
        self._status_writer = StatusWriter(name, shape, self.run, lambda: self.spec.addresses)
        self._companions = features.companions()
        widgets = TaskWidgets(widget_page, self.supervisor.ask, lambda: self.cells.is_busy)
        self._views = ClusterViews(name, shape, self.supervisor, widgets, main, self.oom_kills)
        self.cells = ClusterCells(self.processes, self._views, variables, self._companions, main, lock)
        self.recorders = features.recorders(self.run)
        self.idle_stop_s, self._used_at, self._cells_ended = 0.0, time.monotonic(), 0
        for companion in self._companions:
            self.supervisor.listen(companion.hear, companion.heard)
        self.supervisor.listen(widgets.hear, task_widgets.HEARD)
        for recorder in self.recorders:
            self.supervisor.watch(recorder.note)
        for end in (widgets.end, self._end_records, *(each.finish for each in self._companions)):
            self.supervisor.on_end(end)
        self.resumed = self._resume(view) if kept else []
        self.story = Story(self.supervisor.state, story_files.trace(str(self.run)))
        self.story_file = StoryFile(self.story, self.run.folder)
        self.supervisor.watch(self.story.note)
        self.supervisor.start()
        for job in self.resumed:
            job.show_resumed()

    def close(self) -> None:
        """End every task, and what features have beside the cluster. Safe to call twice."""
        self.supervisor.close()
        self.kept_record.close()
        for companion in self._companions:
            for reason in companion.close():
                notices.tell(f"tfmagic: {reason}")

    def _resume(self, view: ViewChoice) -> list[Job]:
        """Go on with the tasks of a cluster that has outlived its kernel; return the jobs that go on."""
        found = self.processes.resume()
        jobs = self.cells.resume(found, view)
        self.supervisor.resume(found.state, jobs)
        return jobs

    def _observe(self, supervisor: Supervisor) -> None:
        """Write the status file, and note tasks that have died. Called by the supervisor."""
        if not self.kept_record.was_taken_over:
            self._status_writer.write_if_due(supervisor)
            self.story_file.write_if_due()
        self._views.note_ends(supervisor.state)
        self._stop_if_idle(supervisor)

    def _end_records(self) -> None:
        """Note in the run folder that the cluster has ended."""
        if not self.kept_record.was_taken_over:
            for recorder in self.recorders:
                recorder.end()
            self.story_file.write()

    def _stop_if_idle(self, supervisor: Supervisor) -> None:
        """End a cluster that no cell has used for `idle_stop_s`."""
        limit, now = self.processes.setting("idle_stop_s"), time.monotonic()
        starts = any(task.phase in COMING for task in supervisor.state.tasks.values())
        if not limit or starts or self.cells.is_busy or supervisor.cells_ended != self._cells_ended:
            self._used_at, self._cells_ended = now, supervisor.cells_ended
        elif now - self._used_at >= limit and not self.idle_stop_s:
            self.idle_stop_s = limit
            self._views.note(
                f"the cluster ended, since no cell ran for {limit:g} s (TFCluster.idle_stop_s); the next "
                "cell starts it again, without variables"
            )
            supervisor.ask(StopRequested())

    @property
    def spec(self) -> Spec:
        """The shape with its present addresses."""
        return self.processes.spec

    @property
    def last(self) -> tuple[CellState, FailureContext] | None:
        """The outcome of the last cell or call of the user, and the context of its failures."""
        return self.cells.last

    def dead_tasks(self) -> tuple[TaskId, ...]:
        """Return the tasks whose last process has ended."""
        return self.processes.dead_tasks()
