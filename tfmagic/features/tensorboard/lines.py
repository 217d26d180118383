"""The line command ``%tfcluster tensorboard``."""

from tfmagic.clusters.api.lines import Notebook, flag, line_command, option
from tfmagic.clusters.launch.arguments import parse_count
from tfmagic.features.tensorboard.methods import TensorBoards
from tfmagic.runs import trace_folders


@line_command(
    "tensorboard",
    "TensorBoard, which ends with the cluster:  tensorboard [LOGDIR] [--port N]",
    option("logdir", "LOGDIR", "default: the last of tensorboard_dir", nargs="?"),
    option("--port", "N", "default: a free port", type=parse_count),
    option("--host", "ADDRESS", "address to listen on (%(default)s)", default="127.0.0.1"),
    option("--height", "PIXELS", "height of the frame", type=parse_count, default=800),
    flag("--stop", "end TensorBoard"),
    after="pull",
)
def _tensorboard(
    magics: Notebook[TensorBoards],
    name: str,
    logdir: str | None,
    port: int | None,
    host: str,
    height: int,
    stop: bool,
) -> None:
    cluster = magics.running(name)
    if not stop:
        board = cluster.tensorboard(logdir or None, port=port or None, host=host)
        board.show(height)
        if lacks := trace_folders.missing_plugin(board.logdir):
            print(f"tfmagic: {lacks}")
    elif (running := cluster.board) is None:
        print(f"tfmagic: no TensorBoard runs beside cluster {name}")
    else:
        running.close()
        print(f"tfmagic: TensorBoard at {running.url} ended")
