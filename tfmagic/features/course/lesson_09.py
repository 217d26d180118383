"""Lesson 9: hangs and stragglers."""

from typing import Any

from tfmagic.features.course.exercises import Answers, exercise, expect


@exercise(
    "9.1",
    "%tfcluster status says what each task does: two of the three wait for another one.",
    "the cause is the task that does not wait at the barrier; its stack is in time.sleep.",
)
def _(answers: Answers) -> None:
    chance = int(answers.number("chance"))
    culprit = answers.text("culprit")
    tasks = [f"worker-{index}" for index in range(3)]
    expect(culprit in tasks, f"it should be the name of one of the three tasks, and is {culprit!r}.")
    expect(culprit == tasks[chance], f"{culprit} waits at the barrier itself: for whom?")


@exercise(
    "9.2",
    "with 8 batches and 3 workers each can have two; two batches are left out.",
    "count // tasks is the number of batches for each worker.",
)
def _(answers: Answers) -> None:
    my_batches: Any = answers.value("my_batches")
    expect(callable(my_batches), "`my_batches` should be a function of three numbers.")
    for count, tasks in ((8, 2), (8, 3), (7, 2), (2, 3), (100, 7)):
        case = f"with {count} batches and {tasks} workers,"
        try:
            parts = [list(my_batches(count, index, tasks)) for index in range(tasks)]
            together = sorted(batch for part in parts for batch in part)
        except Exception as error:
            expect(False, f"{case} it raises {type(error).__name__}: {error}")
        expect(
            all(batch in range(count) for batch in together),
            f"{case} it returns a batch that does not exist.",
        )
        sizes = [len(part) for part in parts]
        expect(len(set(together)) == len(together), f"{case} two workers take the same batch.")
        expect(len(set(sizes)) == 1, f"{case} they take {sizes}: one will wait for another.")
        expect(sizes[0] == count // tasks, f"{case} each takes {sizes[0]}, and could take another number.")


@exercise(
    "9.3",
    "all tasks meet in every step, so a task that computes longer is waited for by all others.",
    'compare found["computed"] of the tasks: the largest with the smallest.',
)
def _(answers: Answers) -> None:
    straggler: Any = answers.value("straggler")
    expect(callable(straggler), "`straggler` should be a function of the results of `work`.")
    cases = (
        ({"worker-0": (0.14, 0.64), "worker-1": (0.62, 0.14)}, "worker-1"),
        ({"worker-0": (2.0, 0.1), "worker-1": (0.4, 1.7), "worker-2": (0.5, 1.6)}, "worker-0"),
        ({"worker-0": (1.0, 0.2), "worker-1": (1.1, 0.1), "worker-2": (1.05, 0.15)}, None),
        ({"worker-0": (0.7, 0.3), "worker-1": (1.0, 0.0)}, None),
        ({"worker-0": (1.0, 0.0), "worker-1": (0.6, 0.4)}, "worker-0"),
        ({"chief-0": (0.3, 0.7), "worker-0": (0.8, 0.2), "worker-1": (0.9, 0.1)}, "worker-1"),
    )
    for pairs, right in cases:
        seconds = {task: {"computed": c, "waited": w} for task, (c, w) in pairs.items()}
        try:
            said = straggler(seconds)
        except Exception as error:
            expect(False, f"it raises {type(error).__name__}: {error}")
        kind = type(said).__name__
        expect(said is None or isinstance(said, str), f"it should return a name or None, and returns {kind}.")
        expect(right is not None or said is None, f"it names {said} where all compute about equally long.")
        expect(said == right, f"it returns {said!r} for {seconds}: who is waited for?")
