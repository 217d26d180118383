"""Lesson 11: logs, floods and TensorBoard."""

import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tfmagic.features.course.exercises import Answers, exercise, expect
from tfmagic.tfrecord import ShardDamaged, iterate


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
    lasts = []
    for run in runs:
        found = _accuracy(path for path in files if path.parent == board / run)
        expect(found, f"run {run} has no `accuracy`.")
        numbers = [number for _, number in found]
        complete = {0.2, 0.5} < set(numbers) <= {0.2, 0.5, 0.7, 0.8}
        expect(complete, f"run {run} does not have all the numbers of one worker, and no others.")
        places = ", ".join(f"{number:g} in step {step}" for step, number in found)
        in_place = [step for step, _ in found] == [0, 1, 2] and numbers == sorted(numbers)
        expect(in_place, f"run {run} has {places}: the step of a number is its place in the list, from 0 on.")
        lasts.append(numbers[-1])
    expect(sorted(lasts) == [0.7, 0.8], "each run should have the numbers of one worker.")


def _accuracy(files: Iterable[Path]) -> list[tuple[int, float]]:
    """Return the steps and numbers that event files have as `accuracy`."""
    from tensorboard.compat.proto.event_pb2 import Event

    found = set()
    for path in files:
        with suppress(ShardDamaged):  # its last record is not whole yet
            for event in map(Event.FromString, iterate(path)):
                for value in event.summary.value:
                    text, numbers = value.tensor.tensor_content, value.tensor.float_val
                    number = struct.unpack("<f", text)[0] if text else [*numbers, value.simple_value][0]
                    if value.tag == "accuracy":
                        found.add((event.step, round(number, 4)))
    return sorted(found)
