"""Lesson 1: a first cluster."""

import os

from tfmagic.features.course.exercises import Answers, exercise, expect


@exercise(
    "1.1",
    "a process asks for its own number with os.getpid().",
    "the last line of the cell is what each task returns; --out NAME binds it.",
)
def _(answers: Answers) -> None:
    pids = answers.results("pids", "worker-0", "worker-1")
    expect(all(isinstance(pid, int) for pid in pids.values()), "a process number is one whole number.")
    expect(os.getpid() not in pids.values(), "that is the process of the notebook, not of a worker.")
    expect(len(set(pids.values())) == 2, "each worker is a process of its own: their numbers differ.")
    small = [pid for pid in pids.values() if pid < 2]
    expect(not small, f"{small[:1]} is not the number of a worker's process.")


@exercise(
    "1.2",
    "tfmagic.current_task().index is 0 on worker-0 and 1 on worker-1.",
    "range(start, stop, step) can begin at the index, and step over the numbers of the others.",
)
def _(answers: Answers) -> None:
    parts = answers.results("squares", "worker-0", "worker-1")
    expect(all(isinstance(part, list) for part in parts.values()), "each worker should return a list.")
    both = [number for part in parts.values() for number in part]
    wanted = {number * number for number in range(10)}
    strange = sorted(set(both) - wanted)
    expect(not strange, f"{strange[:1]} is not the square of a number from 0 to 9.")
    missing = wanted - set(both)
    expect(not missing, f"nobody has computed {len(missing)} of the ten squares.")
    expect(len(both) == len(set(both)), "some squares were computed twice: the work is not shared.")
    sizes = [len(part) for part in parts.values()]
    expect(max(sizes) - min(sizes) <= 1, "one worker has much more to do than the other.")


@exercise(
    "1.3",
    "raise in the cell, but only if tfmagic.current_task().index is 1.",
    "%%tfcluster raises in the notebook, too; the cell after yours takes the exception.",
)
def _(answers: Answers) -> None:
    caught = answers.value("caught")
    expect(
        caught is not None, "there is no new exception: run the cell that should raise, then the next one."
    )
    kind = type(caught).__name__
    expect(kind != "ZeroDivisionError", "that is the exception of *Break it*: your cell has raised none.")
    expect(isinstance(caught, ValueError), f"the notebook should show a ValueError; it has shown: {kind}.")
    expect("batch" in str(caught), "its message should speak of the batch.")
    notes = " ".join(getattr(caught, "__notes__", ()))
    expect("raised on" in notes, "it was not raised by a task of the cluster.")
    expect("also on" not in notes, "both workers have raised it; only worker-1 should.")
    expect("raised on worker-1" in notes, "it was raised on another worker than worker-1.")
