"""The methods `Cluster.tensorboard` and `Cluster.board`."""

import os

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.launch.checks import check
from tfmagic.features.tensorboard.process import TensorBoardProcess, find_logdir, start_tensorboard

_NAME = "tensorboard"


class TensorBoards(ClusterBase):
    """The methods that start and find a TensorBoard."""

    @property
    def board(self) -> TensorBoardProcess | None:
        """The TensorBoard of this cluster; None if none runs."""
        found = self._beside.get(_NAME)
        return found if isinstance(found, TensorBoardProcess) and found.running else None

    def tensorboard(
        self,
        logdir: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
    ) -> TensorBoardProcess:
        """Return a TensorBoard, which ends with this cluster.

        A TensorBoard that shows the same folder is kept. Another one is ended, and also one that does not
        answer within 5 s (because it is stopped, for example).

        Args:
            logdir: By default the last folder that a task gave to `tfmagic.logdir.tensorboard_dir`.
            port: By default a free one.
            host: Where it listens. It has no password.

        Raises:
            TfmagicError: It is not installed, or there is no such folder.
            LaunchError: The port is taken, or it did not start.
        """
        logdir, port, host = check("logdir", logdir), check("port", port), check("host", host)
        with self._lock:
            run = self._running_cluster().run
            folder = find_logdir(None if logdir is None else os.fspath(logdir), run)
            present = self.board
            if present is not None and present.shows(folder, port, host) and present.answers():
                return present
            if present is not None:
                present.close()
            self._beside[_NAME] = started = start_tensorboard(folder, port, host, run)
            return started
