"""Lesson 11: logs, floods and TensorBoard."""

import re
import struct
from pathlib import Path

from tfmagic.frontends.course.exercises import Answers, exercise, expect

# an event of an event file: its time, its step if that is not 0, and its summary
_EVENT = re.compile(rb"\x09.{8}(?:\x10(.))?\x2a", re.S)


@exercise(
    "11.1",
    "%tfcluster logs --grep prints the lines that match, with the name of the task before each.",
    "the warning is written in capitals: --grep WARNING.",
)
def _(answers: Answers) -> None:
    secret = answers.value("secret", dict, "what the cell above has chosen")
    who, step = answers.text("who"), answers.number("step")
    expect(who in ("worker-0", "worker-1"), f"`who` should be the name of a worker, and is {who!r}.")
    expect(who == f"worker-{secret['index']}", f"{who} has printed no warning.")
    expect(step == secret["step"], f"no warning was printed in step {step:g}.")


@exercise(
    "11.2",
    "tfmagic.logdir.tensorboard_dir(folder) returns the folder of this task.",
    'tf.summary.scalar("accuracy", value, step=step) records into the writer that is the default.',
)
def _(answers: Answers) -> None:
    board = Path(answers.text("board"))
    files = [path for path in board.rglob("*tfevents*") if path.is_file()]
    runs = sorted({str(path.parent.relative_to(board)) for path in files})
    expect(files, "there are no event files in the folder: has a worker failed?")
    expect("." not in runs, "there are event files in `folder` itself: TensorBoard draws them as one run.")
    expect(
        len(runs) == 2, f"TensorBoard would show {len(runs)} run(s), and two workers have called `record`."
    )
    last = []
    for run in runs:
        data = b"".join(path.read_bytes() for path in files if path.parent == board / run)
        expect(b"accuracy" in data, f"run {run} has no `accuracy`.")
        steps = {(found[1] or b"\0")[0] for found in _EVENT.finditer(data)}
        lasts = [value for value in (0.7, 0.8) if struct.pack("<f", value) in data]
        expect(
            all(struct.pack("<f", value) in data for value in (0.2, 0.5)) and lasts,
            f"run {run} does not have all the numbers.",
        )
        expect({1, 2} <= steps, f"in run {run} each number should have a step of its own: 0, 1, 2.")
        last += lasts
    expect(sorted(last) == [0.7, 0.8], "each run should have the numbers of one worker.")
