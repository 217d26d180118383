"""Lesson 14: a notice before the end."""

import math
from numbers import Real

from tfmagic.features.course.exercises import Answers, exercise, expect, result_of


@exercise(
    "14.1",
    "after each step, add up how many workers have a notice: all of them get the same sum.",
    "`add_up(has_notice(step))` is 0 on all workers, or at least 1 on all of them.",
)
def _(answers: Answers) -> None:
    left = answers.numbers("left", "worker-0", "worker-1")
    notice = int(answers.number("notice"))
    first, other = left["worker-0"], left["worker-1"]
    expect(first == other, f"worker-0 left after step {first:g}, worker-1 after step {other:g}.")
    expect(first < 10, f"nobody left before the last step, although worker-1 had a notice in step {notice}.")
    expect(first >= notice, f"all left after step {first:g}, and the notice came in step {notice}.")
    late = f"all left after step {first:g}: the notice came in step {notice}, and time is short."
    expect(first <= notice + 1, late)


@exercise(
    "14.2",
    "two steps and a save must fit into the grace period.",
    "what is left of the grace period without the save is time for two steps; it is never less than nothing.",
)
def _(answers: Answers) -> None:
    longest_step = answers.value("longest_step")
    expect(callable(longest_step), "`longest_step` should be a function of two numbers.")
    for grace_s, save_s, right in ((30, 10, 10), (120, 20, 50), (30, 30, 0), (30, 45, 0), (25, 10, 7.5)):
        said = result_of(longest_step, grace_s, save_s)
        what = f"longest_step({grace_s}, {save_s})"
        expect(isinstance(said, Real), f"{what} should return a number.")
        expect(said >= 0, f"{what} is {said:g}: no step takes less than no time.")
        expect(
            said <= right or math.isclose(said, right),
            f"{what} is {said:g}: then two steps and the save take {2 * said + save_s:g} s.",
        )
        expect(math.isclose(said, right), f"{what} is {said:g}; a step may be longer.")
