"""Lesson 13: GPUs, and when to distribute at all."""

from tfmagic.features.course.exercises import Answers, exercise, expect, result_of

_ROWS = ((0, ((1, 2), (3, 4))), (2, ((5, 6), (7, 8))))  # of the matrix of 13.2, and where they begin


@exercise(
    "13.1",
    "what is needed is 16 * weights bytes; of each device, 0.8 * gb * 1e9 bytes can be used.",
    "ask for one device first, then for all of them together.",
)
def _(answers: Answers) -> None:
    place = answers.value("place")
    expect(callable(place), "`place` should be a function of three numbers.")
    for case, right in (
        ((1e9, 1, 80), "one device"),
        ((3.9e9, 8, 80), "one device"),
        ((4.5e9, 8, 80), "sharded"),
        ((7e9, 2, 80), "sharded"),
        ((9e9, 2, 80), "nowhere"),
        ((5e9, 1, 80), "nowhere"),
        ((1e9, 4, 16), "sharded"),
        ((7e9, 1, 180), "one device"),
    ):
        said = result_of(place, *case)
        known = isinstance(said, str) and said in ("one device", "sharded", "nowhere")
        expect(known, f'place{case} should return "one device", "sharded" or "nowhere", not {said!r}.')
        needs = f"{16 * case[0] / 1e9:g} GB are needed, and of each device {0.8 * case[2]:g} GB can be used."
        expect(said == right, f'place{case} is not "{said}": {needs}')


@exercise(
    "13.2",
    "`x[:, :2]` meets the first two rows of the matrix, `x[:, 2:]` the last two.",
    "each worker has a part of every number of the product: add the parts up with `strategy.reduce`.",
)
def _(answers: Answers) -> None:
    product = answers.results("product", "worker-0", "worker-1")
    x: list[int] = answers.value("x_row", list, "the list of the cell above")
    parts = [[x[n] * a + x[n + 1] * b for a, b in zip(*rows, strict=True)] for n, rows in _ROWS]
    right = [sum(pair) for pair in zip(*parts, strict=True)]
    alone = dict(zip(product, parts, strict=True))
    for task, value in product.items():
        value = value.tolist() if hasattr(value, "tolist") else value
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        is_list = isinstance(value, list) and all(isinstance(number, int | float) for number in value)
        expect(is_list, f"{task} should return a list of numbers, and returned {value!r}.")
        expect(
            value != parts[0] + parts[1], "the parts stand side by side: that is right for columns, not rows."
        )
        expect(
            value != [number / 2 for number in right],
            "each number is half of what it should be: parts add up, to no mean.",
        )
        expect(
            value != alone[task], f"{task} returned what its own rows give; the other worker's are missing."
        )
        expect(value == right, f"{value} is not the product of `x` and all four rows.")


@exercise(
    "13.3",
    "write a function for the time of a step with N workers first; one worker sends nothing.",
    "min(range(1, most + 1), key=step_s) is the first number with the shortest step.",
)
def _(answers: Answers) -> None:
    best = answers.value("best")
    expect(callable(best), "`best` should be a function.")
    for case, right in (
        ((8, 1.0, 25e6, 3.0, False), 8),  # a large batch, a small model
        ((8, 0.02, 100e6, 3.0, False), 1),  # the wire needs longer than one worker computes
        ((8, 0.2, 100e6, 3.0, False), 1),
        ((8, 0.2, 100e6, 3.0, True), 2),
        ((8, 0.4, 100e6, 3.0, False), 8),
        ((8, 0.4, 100e6, 3.0, True), 3),
        ((1, 5.0, 1e6, 10.0, True), 1),
    ):
        said = result_of(best, *case)
        whole = isinstance(said, int) or hasattr(said, "__index__")
        expect(
            whole and 1 <= said <= case[0], f"best{case} should be a number of workers from 1 to {case[0]}."
        )
        expect(said == right, f"best{case} is {said}; {_why(said, right, *case[1:])}")


def _why(said: int, right: int, compute_s: float, weights: float, gb_s: float, overlap: bool) -> str:
    """Return the times of both steps."""

    def step_ms(workers: int) -> float:
        parts = compute_s / workers, 2 * (workers - 1) / workers * 4 * weights / (gb_s * 1e9)
        return 1000 * (max(parts) if overlap else sum(parts))

    return f"then a step takes {step_ms(said):.0f} ms, and with another number {step_ms(right):.0f} ms."
