"""Lesson 3: collectives."""

import re

from tfmagic.features.course.exercises import Answers, exercise, expect

_X = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
_NOISE = (0.3, -0.2, 0.1, -0.1, 1.5, -1.0, 0.5, -0.5)


@exercise(
    "3.1",
    "a mean is a sum divided by a count, and both can be added up over the workers.",
    "two all-reduces with SUM: one of sum(temperatures), one of len(temperatures).",
)
def _(answers: Answers) -> None:
    found = answers.numbers("overall", "worker-0", "worker-1")
    expect(len(set(found.values())) == 1, "the workers do not agree: each should return the same number.")
    mean = found["worker-0"]
    expect(abs(mean - 18) > 1e-3, "that is the mean of two means; the workers have unequally many numbers.")
    expect(abs(mean - 64) > 1e-3, "that is the sum of all temperatures.")
    expect(abs(mean - 16) < 1e-3, "it is not the mean of the four temperatures.")


@exercise(
    "3.2",
    "inside of strategy.run, tf.distribute.get_replica_context().all_reduce averages over the replicas.",
    'the replica averages its gradient with "MEAN" before it changes w, in each of the 20 steps.',
)
def _(answers: Answers) -> None:
    found = answers.numbers("together", "worker-0", "worker-1")
    first, second = found.values()
    expect(abs(first - second) < 1e-5, "the workers ended with different `w`: each has trained alone.")
    right, doubled = _train(0.001), _train(0.002)
    expect(abs(first) > 1e-6, "`w` is still where it began.")
    expect(abs(first - doubled) > 1e-3, "each step was twice as long as the mean gradient says.")
    expect(abs(first - right) < 1e-3, "20 steps of 0.001 times the mean gradient, from 0, lead elsewhere.")


@exercise(
    "3.3",
    "a collective needs all workers: it cannot stand in a branch that only one of them takes.",
    "let both call strategy.reduce first; the chief alone then makes the report.",
)
def _(answers: Answers) -> None:
    reports = answers.results("reports", "worker-0", "worker-1")
    expect(all(isinstance(report, str) for report in reports.values()), "each worker should return a text.")
    expect(reports["worker-1"] == "no report", 'worker-1 is not the chief: it should return "no report".')
    expect(reports["worker-0"] != "no report", "the chief should return the report.")
    numbers = re.findall(r"\d+\.\d+", reports["worker-0"])
    expect(
        any(abs(float(number) - 0.375) < 0.006 for number in numbers),
        "the report does not have the mean of the losses of both workers.",
    )


def _train(rate: float) -> float:
    """Return `w` after 20 steps on all points."""
    w = 0.0
    for _ in range(20):
        slopes = [2 * x * (w * x - (3 * x + noise)) for x, noise in zip(_X, _NOISE, strict=True)]
        w -= rate * sum(slopes) / len(slopes)
    return w
