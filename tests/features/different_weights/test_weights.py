"""What counts as a difference of the weights that `fit` has trained: not the last digits, and no other model."""

import struct

import pytest

from tfmagic.features.different_weights import kernel as weights
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellReturned

NAN = float("nan")


def sample(*numbers, shapes=1):
    return struct.pack(f"<I{len(numbers)}f", shapes, *numbers)


def ended(*samples):
    """Return the reports of tasks, each with its sample."""
    ends = {}
    for number, one in enumerate(samples):
        task = TaskId("worker", number)
        ends[task] = CellReturned(task, 1, 1, 0.1, 0, extras={weights.FEATURE.name: one} if one else {})
    return ends


@pytest.mark.parametrize(
    ("others", "differing"),
    [
        ([sample(1.0, 0.0)], ""),
        ([sample(1.0 + 1e-5, 1e-6)], ""),
        ([sample(1.0, 0.0), sample(1.0, 0.1)], "worker-2"),
        ([sample(1.0, NAN)], "worker-1"),
        ([sample(3.0, 0.0, shapes=2)], ""),
        ([sample(3.0)], ""),
        ([b""], ""),
        ([], ""),
    ],
)
def test_different_weights(others, differing):
    said = list(weights.FEATURE.find_hints(ended(sample(1.0, 0.0), *others)))
    assert bool(said) == bool(differing)
    assert not said or f"on worker-0 and {differing}" in said[0].advice


def test_two_nans_are_no_difference():
    assert list(weights.FEATURE.find_hints(ended(sample(NAN), sample(NAN)))) == []


def test_the_weights_of_the_variants_are_compared():
    one, near, other = (sample(number, shapes=0) for number in (1.0, 1.0001, 2.0))
    names = ["1 worker", "2 workers", "4 workers"]

    def compare(*samples):
        variants = [(name, ended(each).values()) for name, each in zip(names, samples, strict=False)]
        return weights.FEATURE.compare(variants)

    assert compare(one, near, one) == ["The models ended with equal weights."]
    (said,) = compare(one, other, near)
    assert said.startswith("The models ended with other weights with 2 workers than with 1 worker: ")
    assert compare(one, b"", one) == compare(one) == []
