"""`tfmagic.attach`: take over a cluster that has outlived its kernel."""

from typing import Any

from tfmagic.clusters.cells.cell_plan import ViewChoice
from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.launch import kept_clusters
from tfmagic.clusters.launch.checks import check, check_settings
from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.clusters.launch.startup import Progress
from tfmagic.errors import LaunchError
from tfmagic.runs import folder
from tfmagic.runs.folder import RunFolder
from tfmagic.views.task_widgets import WidgetPage


def attach(
    run: str | RunFolder,
    *,
    view: ViewChoice = "text",
    namespace: dict[str, Any] | None = None,
    widget_page: WidgetPage | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Cluster:
    """Take over a cluster that was started with `keep`, whose kernel has ended.

    Its tasks have their variables. `Cluster.collect` returns what its cells and calls have returned.

    Args:
        run: The name of the run.
        view: How cells that go on are shown.
        namespace, settings: As for a new `Cluster`.
        widget_page, progress: For other packages of tfmagic.

    Raises:
        TfmagicError: There is no such run, or a living kernel has it.
        LaunchError: It has ended, or cannot be reached, or other users can replace the files of the run.
    """
    base = folder.state_dir(check_settings(settings).get("state_dir", TFCluster.instance().state_dir))
    run_folder = run if isinstance(run, RunFolder) else RunFolder(base / "runs" / check("run", run))
    folder.check_private(run_folder.folder.parent.parent)  # it names the addresses that are connected
    found = kept_clusters.find_run(run_folder)
    cluster = Cluster(**found.cluster.options, namespace=namespace, **settings)
    cluster.widget_page = widget_page
    try:
        opened = cluster._open(kept=found, view=view, progress=progress)
    except LaunchError as error:
        raise LaunchError(f"run {run_folder} cannot be attached: {error}") from error
    cluster.task_settings = opened.processes.task_settings
    return cluster
