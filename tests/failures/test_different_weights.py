"""What counts as a difference of the weights that `fit` has trained: not the last digits, and no other model."""

import struct
from types import SimpleNamespace

import pytest

from tfmagic.failures.different_weights import different_weights
from tfmagic.protocol.cluster_spec import TaskId

NAN = float("nan")


def sample(*numbers, shapes=1):
    return struct.pack(f"<I{len(numbers)}f", shapes, *numbers)


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
    ends = {
        TaskId("worker", n): SimpleNamespace(trained=one) for n, one in enumerate([sample(1.0, 0.0), *others])
    }
    said = different_weights(ends)
    assert bool(said) == bool(differing) and f"on worker-0 and {differing}" in (said or "on worker-0 and ")


def test_two_nans_are_no_difference():
    ends = {TaskId("worker", n): SimpleNamespace(trained=sample(NAN)) for n in range(2)}
    assert different_weights(ends) == ""
