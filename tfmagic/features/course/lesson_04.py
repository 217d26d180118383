"""Lesson 4: sharding."""

import struct
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path

from tfmagic.features.course.exercises import Answers, exercise, expect, expect_new, result_of

_SQUARES = sorted(number * number for number in range(20))


@exercise(
    "4.1",
    "tf.data.Dataset.range(10) has all numbers; shard(n, i) keeps those of one worker.",
    "first shard, then shuffle: then each worker shuffles rows that are its own.",
)
def _(answers: Answers) -> None:
    found = answers.results("mixed", "worker-0", "worker-1")
    rows = {task: _whole_numbers(task, value) for task, value in found.items()}
    both = [number for part in rows.values() for number in part]
    expect(set(both) <= set(range(10)), "there are rows that are not numbers from 0 to 9.")
    twice = len(both) - len(set(both))
    expect(twice < 10 or set(both) < set(range(10)), "each worker has read all rows.")
    expect(not twice, f"{twice} of the rows were read twice.")
    expect(len(both) == 10, f"{10 - len(both)} of the rows were read by nobody.")
    expect(all(rows.values()), "one worker has read everything, the other nothing.")
    in_order = all(part in (sorted(part), sorted(part, reverse=True)) for part in rows.values())
    expect(not in_order, "the rows are divided, but they are still in order.")


@exercise(
    "4.2",
    "the worker with the fewest rows is the first that cannot fill a batch.",
    "whole batches only: 7 rows are three batches of 2, and one row is left over.",
)
def _(answers: Answers) -> None:
    steps = answers.value("steps")
    expect(callable(steps), "`steps` should be a function of `rows` and `batch`.")
    for rows, batch, right in (([8, 8], 4, 2), ([7, 5], 2, 2), ([100, 99, 98], 10, 9), ([3, 10], 4, 0)):
        said = result_of(steps, list(rows), batch)
        what = f"for {rows} rows and batches of {batch}"
        expect(isinstance(said, Integral), f"{what} it should return a whole number.")
        expect(said <= right, f"{what} it returns {said}; then some worker has no full batch left.")
        expect(said == right, f"{what} it returns {said}; one more step is possible.")


@exercise(
    "4.3",
    "ShardWriter(f'{folder}/squares.tfrecord') makes one shard for each task; write only this worker's part.",
    "tfmagic.barrier() waits until both have written; read_shards(f'{folder}/squares-*.tfrecord') reads.",
)
def _(answers: Answers) -> None:
    sums = answers.numbers("sums", "worker-0", "worker-1")
    folder = Path(answers.text("folder"))
    shards = [folder / f"squares-{number:05}-of-00002.tfrecord" for number in range(2)]
    for path in shards:
        expect(path.is_file(), f"`folder` has no {path.name}.")
    expect_new("4.3", answers.value("sums"), shards)
    contents = [_records(path) for path in shards]
    written = sorted(number for shard in contents for number in shard)
    expect(written != sorted(2 * _SQUARES), "each square was written twice: both workers wrote all of them.")
    expect(written == _SQUARES, "the two shards together do not have the twenty squares, each once.")
    expect(len(contents[0]) == len(contents[1]), "one worker has written more squares than the other.")
    expect(sum(sums.values()) != 2 * sum(_SQUARES), "each worker has read both shards.")
    right = all(total == sum(shard) for total, shard in zip(sums.values(), contents, strict=True))
    expect(right, "the shards are right, but a sum is not that of the worker's own shard.")


def _whole_numbers(task: str, values: object) -> list[int]:
    """Return a list of rows as Python's numbers; a tensor has them as well."""
    expect(isinstance(values, Iterable) and not isinstance(values, str), f"{task} should return a list.")
    try:
        return [int(value) for value in values]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        expect(False, f"{task} should return a list of whole numbers.")
    return []


def _records(path: Path) -> list[int]:
    """Return the numbers in a TFRecord file: a length of 8 bytes, 4 bytes, the text, 4 bytes, and so on."""
    data, place, found = path.read_bytes(), 0, []
    while place < len(data):
        expect(len(data) >= place + 16, f"{path.name} is not a whole file of records.")
        (size,) = struct.unpack_from("<Q", data, place)
        text = data[place + 12 : place + 12 + size]
        expect(text.strip().isdigit(), f"{path.name} has a record that is no number, written as text.")
        found.append(int(text))
        place += size + 16
    return found
