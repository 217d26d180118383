"""Lesson 8: killing workers."""

from numbers import Integral
from typing import Any

from tfmagic.features.course.exercises import Answers, exercise, expect


@exercise(
    "8.1",
    "two lines of the table in this lesson bring a dead task back; one of them ends the living ones as well.",
    "%tfcluster revive gives new processes to dead tasks only.",
)
def _(answers: Answers) -> None:
    expect(answers.value("survived") is not None, "the cell below yours has failed: is a worker still dead?")
    found = answers.results("survived", "worker-0", "worker-1")
    expect(
        found["worker-0"] != "nothing", "`worker-0` has lost its `kept`: it has got a new process as well."
    )
    expect(
        found["worker-1"] == "nothing",
        "`worker-1` has `kept`, which a new process does not have: nothing should be sent again.",
    )
    expect(found["worker-0"] == 7, "`kept` on `worker-0` has another value than at first.")


@exercise(
    "8.2",
    'tfmagic.logdir.checkpoints({"number": number}, folder) has the methods save and restore_or_initialize.',
    "restore before the loop, save inside it, before the barrier; both on all tasks.",
)
def _(answers: Answers) -> None:
    second, fresh = answers.value("second"), answers.value("fresh")
    expect(second is not None, "the second call has failed; its error is above.")
    expect(fresh is not None, "the call with an empty folder has failed; its error is above.")
    for name in ("second", "fresh"):
        found = answers.results(name, "worker-0", "worker-1")
        expect(
            all(isinstance(x, list) and all(isinstance(n, Integral) for n in x) for x in found.values()),
            "`count_to` should still return the list of the numbers that it has counted.",
        )
        expect(found["worker-0"] == found["worker-1"], f"the two workers counted differently: {dict(found)}")
    counted = second["worker-0"]
    expect(fresh["worker-0"] == [1, 2, 3], "with an empty folder it should count from 1.")
    expect(counted[:1] != [1], "the second call began with 1 again: nothing was saved, or nothing restored.")
    # worker-0 can count and save once more before it is released
    expect(counted in ([5, 6], [6]), f"the first call had counted to 4; the second one counted {counted}.")


@exercise(
    "8.3",
    "a training that saves every 5 steps and dies in step 13 begins again after step 10.",
    "of what it had completed, everything after the last multiple of `every` is computed again.",
)
def _(answers: Answers) -> None:
    computed_again: Any = answers.value("computed_again")
    expect(callable(computed_again), "`computed_again` should be a function of two numbers.")
    cases = {(5, 13): 2, (5, 11): 0, (5, 10): 4, (1, 8): 0, (10, 7): 6, (100, 100): 99, (7, 1): 0}
    for (every, died_in), right in cases.items():
        try:
            said = computed_again(every, died_in)
        except Exception as error:
            expect(False, f"computed_again({every}, {died_in}) raises {type(error).__name__}: {error}")
        expect(
            not isinstance(said, bool) and said == right,
            f"computed_again({every}, {died_in}) returns {said!r}. Which step was saved last?",
        )
