"""Lesson 6: parameter servers and the coordinator."""

from tfmagic.features.course.exercises import Answers, exercise, expect


@exercise(
    "6.1",
    "w.assign(0.0), then schedule each of the twelve steps; schedule does not wait.",
    "coordinator.join() waits for all of them; read w after it.",
)
def _(answers: Answers) -> None:
    count = answers.numbers("count", "chief-0")["chief-0"]
    expect(count % 1 == 0, "`w` should be a whole number: each step adds 1.")
    expect(
        count > 0,
        "`w` was 0: no worker had made a step when it was read; those of the chief itself add nothing.",
    )
    expect(count >= 12, f"`w` was {count:.0f}: not all of the twelve steps were done when it was read.")
    expect(count <= 13, f"`w` was {count:.0f}: it did not begin at 0, or there were more than twelve steps.")


@exercise(
    "6.2",
    "a tf.function takes the number as a tensor, and adds number * number with assign_add.",
    "set w to 0, schedule one step for each number from 1 to 40, join, then read w.",
)
def _(answers: Answers) -> None:
    total = answers.numbers("squares", "chief-0")["chief-0"]
    expect(total != 820, "that is the sum of the numbers, not of their squares.")
    expect(total != 20540, "the last number is missing: 40 belongs to them.")
    expect(total != 1600, "that is the square of the last number: the steps replaced the sum.")
    right = sum(number * number for number in range(1, 41))
    expect(total <= right, "that is too much: did the sum begin at 0, and was each number used once?")
    expect(total == right, "that is too little: were all steps done, and was nothing overwritten?")
    given = answers.numbers("given", "chief-0")["chief-0"]
    expect(given == 40, f"the sum is right, but workers were given {given:g} steps for the 40 numbers.")


@exercise(
    "6.3",
    "what dies with a parameter server is lost; what dies with a worker can be computed again.",
    "the program with schedule and join runs on one task only.",
)
def _(answers: Answers) -> None:
    roles = answers.value("roles", dict, "a dict")
    right = {
        "keeps the variables": "ps",
        "computes the gradients": "worker",
        "decides what is computed next": "chief",
        "can be killed while the training goes on": "worker",
    }
    for duty in right:
        expect(duty in roles, f"`roles` has no entry {duty!r}.")
        expect(roles[duty] is not ..., f"{duty!r} is still open.")
        known = isinstance(roles[duty], str) and roles[duty] in ("chief", "worker", "ps")
        expect(known, f'{duty!r} should be "chief", "worker" or "ps".')
    for duty, role in right.items():
        expect(roles[duty] == role, f"it is another task that {duty}.")
