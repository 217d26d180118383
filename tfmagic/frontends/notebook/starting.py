"""The start of a cluster as a step of its cell: the user can stop waiting for it, and the start goes on."""

import contextlib
import signal
import threading
from collections.abc import Iterator

from tfmagic.clusters.cells.job import CtrlC
from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.launch.startup import Start
from tfmagic.frontends.notebook import reports
from tfmagic.views.progress import StartProgress


class Starting:
    """A cluster that starts, and the bar that shows it.

    Args:
        goes_on: Whether a start for which nobody waits any more goes on; else the caller stops the cluster.
    """

    def __init__(self, cluster: Cluster, progress: StartProgress, goes_on: bool):
        self._cluster, self._progress, self._goes_on = cluster, progress, goes_on
        self._is_pressed = False

    def run(self) -> None:
        """Wait in this thread until every task is ready.

        Raises:
            KeyboardInterrupt: The user did not want to wait.
            LaunchError: The cluster could not be started; no process is left.
        """
        with self._shown():
            if (begun := self._begin()) is not None:
                begun.wait()

    async def run_async(self) -> None:
        """Do as `run`, while the event loop goes on."""
        import asyncio

        with self._shown():
            if (begun := self._begin()) is not None:
                with CtrlC(self._press):
                    try:
                        await begun.wait_async(self._stop_waiting)
                    except asyncio.CancelledError:
                        raise KeyboardInterrupt from None

    def _begin(self) -> Start | None:
        """Open the cluster. A kernel that awaits its cells would only cancel them, so Ctrl-C raises here."""
        is_main = threading.current_thread() is threading.main_thread()
        former = signal.getsignal(signal.SIGINT)
        if not is_main or not callable(former):
            return self._cluster.begin_start(self._progress)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self._cluster.begin_start(self._progress)
        finally:
            signal.signal(signal.SIGINT, former)

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """Show the bar; stop a cluster that did not start; say what a Ctrl-C has done."""
        try:
            yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._what_goes_on()) from None
        except BaseException:
            self._cluster.stop()
            raise
        finally:
            self._progress.end()

    def _what_goes_on(self) -> str:
        name = self._cluster.name
        if not self._goes_on or not self._cluster.running:
            self._cluster.stop()
            return f"interrupted while cluster {name!r} started; it was stopped, and no process is left"
        return (
            f"interrupted while cluster {name!r} started, before the cell ran; the start goes on, and the "
            f"next cell waits for it.  %tfcluster stop{reports.naming(name)}  ends it"
        )

    def _press(self) -> None:
        self._is_pressed = True

    def _stop_waiting(self) -> None:
        if self._is_pressed:
            raise KeyboardInterrupt
