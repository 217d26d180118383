"""How ``--compare`` reads its axes, and what it says of what was measured."""

from argparse import ArgumentTypeError
from types import SimpleNamespace

import pytest

from tfmagic.features.comparison.axes import name_of, parse_axis, variants_of
from tfmagic.features.comparison.measured import Comparison, cores_sentence


def results(seconds, steps=0, tasks=2):
    """Return what a comparison reads of the results of a cell."""
    names = [f"worker-{n}" for n in range(tasks)]

    class Results(dict):
        pass

    found = Results.fromkeys(names)
    found.profile = None
    found.seconds, found.steps = dict.fromkeys(names, seconds), dict.fromkeys(names, steps)
    return found


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("workers=1,2,4", ("workers", (1, 2, 4))),
        ("hosts=1, 2", ("hosts", (1, 2))),
        ("network=100mbit,off", ("network", ("100mbit", "off"))),
        ("network=1gbit,0.5ms,10gbit,1ms,0.1%,off", ("network", ("1gbit,0.5ms", "10gbit,1ms,0.1%", "off"))),
        ("network=1Gbit/s,100Mbit", ("network", ("1gbit", "100mbit"))),
    ],
)
def test_an_axis_is_read(text, axis):
    assert parse_axis(text) == axis


@pytest.mark.parametrize(
    "text", ["1,2", "workers=", "workers=0", "hosts=a", "network=", "network=1", "network=1mbps", "ps=1"]
)
def test_what_is_no_axis_is_refused(text):
    with pytest.raises(ArgumentTypeError):
        parse_axis(text)


def test_axes_are_combined():
    variants = variants_of([("workers", (1, 2)), ("network", ("off", "1gbit"))])
    assert [name_of(v) for v in variants] == [
        "1 worker, network off",
        "1 worker, network 1gbit",
        "2 workers, network off",
        "2 workers, network 1gbit",
    ]


def test_one_axis_without_steps_is_a_table_of_seconds():
    compared = Comparison()
    compared.add({"workers": 1}, results(2.0, tasks=1), None)
    compared.add({"workers": 2}, results(1.0), None)
    assert list(compared) == [1, 2] and compared.seconds == {1: 2.0, 2: 1.0}
    text = compared._repr_mimebundle_()["text/plain"]
    assert text.splitlines()[0].split() == ["workers", "seconds", "speed-up"]
    assert "2.00 ×" in text and "step" not in text


def test_steps_and_bytes_are_those_of_a_step():
    compared = Comparison()
    compared.add({"hosts": 2, "network": "off"}, results(1.0, 10), {"host-0": 2_000, "host-1": 1_000})
    compared.add({"hosts": 2, "network": "1gbit"}, results(4.0, 20), {"host-0": 8_000, "host-1": 4_000})
    assert list(compared) == [(2, "off"), (2, "1gbit")]
    first, second = compared.rows
    assert (first.step_s, first.sent_bytes, first.efficiency) == (0.1, 200, 1)
    assert (second.step_s, second.sent_bytes, second.efficiency) == (0.2, 400, 0.5)
    assert compared.table[1]["network"] == "1gbit" and compared.table[1]["steps"] == 20
    bundle = compared._repr_mimebundle_()
    assert "include the first step" in bundle["text/plain"]
    for word in ("ms a step", "sent a step and host", "efficiency", "50%"):
        assert word in bundle["text/plain"] and word in bundle["text/html"]
    assert "200.0 ms a step" in bundle["text/html"]


def test_the_cores_of_this_machine_are_no_secret():
    rows = [SimpleNamespace(tasks=2), SimpleNamespace(tasks=4)]
    assert cores_sentence(rows, cores=4) == []
    (sentence,) = cores_sentence(rows, cores=2)
    assert "Up to 4 tasks shared the 2 cores" in sentence and "2.0 times faster" in sentence
