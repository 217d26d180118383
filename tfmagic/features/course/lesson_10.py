"""Lesson 10: errors and debugging."""

from tfmagic.features.course.exercises import Answers, exercise, expect, result_of


@exercise(
    "10.1",
    "the notes of the exception say on which task it was raised, and what it caused.",
    "the consequences are BrokenBarrierErrors; the cause is a KeyError.",
)
def _(answers: Answers) -> None:
    guilty = answers.text("guilty")
    names = answers.value("names", list, "the list of the cell above")
    expect(guilty in names, f"it should be the name of one of the three tasks, and is {guilty!r}.")
    expect(guilty == names[0], f"{guilty} failed because another task did.")


@exercise(
    "10.2",
    'variables_of(diverged, "descend") has the variables of the call that raised.',
    "they are in a dict: take step and rate out of it.",
)
def _(answers: Answers) -> None:
    step, rate = answers.number("step"), answers.number("rate")
    weight, right = 1.0, answers.number("start_rate")
    for right_step in range(1000):  # noqa: B007
        weight -= right * 4 * weight
        right *= 1.01
        if abs(weight) > 1e6:
            break
    expect(step == right_step, f"it did not give up at step {step:g}.")
    expect(abs(rate - right) < 1e-4, f"at that step the rate was not {rate:g}: it grows in each step.")


@exercise(
    "10.3",
    "error.failures is a dict: the exception of each task by its name.",
    "type(failure).__name__ is the name of the type of an exception.",
)
def _(answers: Answers) -> None:
    found = answers.value("reported", dict, "a dictionary that `report` has returned")
    expect(set(found) <= {"worker-0", "worker-1", "worker-2"}, "its keys should be names of tasks.")
    expect("worker-0" not in found, "worker-0 has not failed.")
    expect(len(found) == 2, f"two tasks have failed, and it reports {len(found)}.")
    expect(all(isinstance(kind, str) for kind in found.values()), "its values should be names of types.")
    expect(
        found == {"worker-1": "KeyError", "worker-2": "ZeroDivisionError"},
        "these are not the types of their exceptions.",
    )
    report = answers.value("report")
    expect(callable(report), "`report` should be a function of an exception.")
    said, right = result_of(report, _other_failure()), {"worker-0": "OSError", "worker-3": "TypeError"}
    expect(said == right, f"of another exception it should report {right}, and reports {said!r}.")


def _other_failure() -> BaseException:
    """Return an exception as another cell would raise it."""
    error = OSError("no disk")
    vars(error)["failures"] = {"worker-0": error, "worker-3": TypeError("no number")}
    error.__notes__ = ["raised on worker-0", "also on worker-3: TypeError: no number"]
    return error
