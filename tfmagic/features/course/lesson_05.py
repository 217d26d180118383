"""Lesson 5: batch size, learning rate, and what scaling costs."""

import math
from numbers import Real

from tfmagic.features.course.exercises import Answers, exercise, expect, result_of


@exercise(
    "5.1",
    "weak scaling keeps the 32 rows of each worker, so the global batch grows with the workers.",
    "the learning rate grows by the same factor as the global batch; an epoch is all rows, each once.",
)
def _(answers: Answers) -> None:
    plan = answers.value("plan")
    expect(callable(plan), "`plan` should be a function of the number of workers.")
    for workers in (1, 2, 3, 4, 8):
        said = result_of(plan, workers)
        several = isinstance(said, (tuple, list)) or hasattr(said, "tolist")
        said = list(said) if several and getattr(said, "ndim", 1) == 1 else []
        expect(len(said) == 3, "it should return three numbers.")
        expect(all(isinstance(number, Real) for number in said), "it should return three numbers.")
        batch, rate, steps = said
        of = f"for {workers} worker{'s' * (workers > 1)} "
        expect(batch == 32 * workers, f"{of}the global batch is not {batch}.")
        expect(math.isclose(rate, 0.1 * workers), f"{of}the learning rate is not {rate} by the linear rule.")
        expect(steps == int(steps), f"{of}{steps} is no number of steps: a step is made or not.")
        whole, rest = divmod(1280, 32 * workers)  # the last rows, too few for a batch, may be a step
        expect(steps in (whole, whole + bool(rest)), f"{of}an epoch does not have {steps} steps.")


@exercise(
    "5.2",
    "the mean over all rows is the sum over all rows, divided by the number of all rows.",
    "each worker divides the sum of its own losses by the global batch size.",
)
def _(answers: Answers) -> None:
    parts = answers.numbers("parts", "worker-0", "worker-1")
    total = sum(parts.values())
    both = max(abs(part - 3) for part in parts.values()) < 1e-3
    expect(not both, "each worker returned the mean over all rows; the parts add up to twice that.")
    expect(abs(total - 6) > 1e-3, "the parts add up to twice the mean: each worker returned its own mean.")
    expect(abs(total - 18) > 1e-3, "the parts add up to the sum over all rows, not to their mean.")
    expect(abs(total - 3) < 1e-3, "the parts do not add up to the mean over the six rows.")
    expect(
        abs(parts["worker-0"] - 2) < 1e-3, "the sum is right, but a part is not that of the worker's rows."
    )


@exercise(
    "5.3",
    "bytes to send: 2 * (workers - 1) / workers * weights * 4; a byte has 8 bits.",
    "efficiency is the time of a step with one worker, divided by the time of a step with all of them.",
)
def _(answers: Answers) -> None:
    efficiency = answers.value("efficiency")
    expect(callable(efficiency), "`efficiency` should be a function.")
    for case in ((0.1, 100_000, 20, 1), (0.16, 100_000, 20, 2), (0.5, 1_000_000, 1000, 4), (0.1, 1, 1e-3, 8)):
        compute_s, weights, mbit, workers = case
        said = result_of(efficiency, *case)
        what = f"efficiency{case}"
        expect(isinstance(said, Real), f"{what} should return a number.")
        send_s = 2 * (workers - 1) / workers * weights * 32 / (mbit * 1e6)
        right = compute_s / (compute_s + send_s)
        expect(-1e-9 <= said <= 1 + 1e-9, f"{what} is {said:.3g}: an efficiency is between 0 and 1.")
        expect(workers > 1 or math.isclose(said, 1), f"{what} is {said:.3g}, but one worker sends nothing.")
        expect(math.isclose(said, right, rel_tol=1e-6), f"{what} is not {said:.3g}.")
