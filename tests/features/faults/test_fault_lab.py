"""Plans of faults, and the parsing of the fault commands. No process."""

import pytest
from IPython.core.error import UsageError

from tfmagic.features.faults.plan import KINDS, Fault, draw_plan
from tfmagic.frontends.notebook.options import parse_line
from tfmagic.frontends.notebook.whole import COMMAND_MODULES  # noqa: F401
from tfmagic.protocol.cluster_spec import TaskId

A, B = TaskId("worker", 0), TaskId("worker", 1)


def test_the_same_seed_gives_the_same_faults_and_another_one_others():
    plan = draw_plan(7, (A, B), 60, 2, KINDS)
    assert plan == draw_plan(7, (A, B), 60, 2, KINDS) != draw_plan(8, (A, B), 60, 2, KINDS)
    assert {fault.task for fault in plan} == {A, B} and {fault.kind for fault in plan} <= set(KINDS)
    assert all(0 < fault.at_s < 60 for fault in plan)
    assert [fault.at_s for fault in plan] == sorted(fault.at_s for fault in plan)
    assert 10 < len(plan) < 70


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"kinds": ("kill", "typo")}, "there is no fault typo; there are kill"),
        ({"kinds": ()}, "none named"),
        ({"seconds": 0}, "times above 0"),
        ({"seconds": float("nan")}, "times above 0"),
        ({"every_s": -1}, "times above 0"),
        ({"seconds": 30, "every_s": 1e-5}, "3000000 faults; chaos has at most 10000"),
    ],
)
def test_a_plan_of_nothing_is_refused(how, message):
    with pytest.raises(ValueError, match=message):
        draw_plan(1, (A,), **{"seconds": 10, "every_s": 1, **how})


def test_a_fault_reads_as_a_line():
    assert str(Fault(1.25, "kill", A)) == "1.2 s: kill worker-0"
    assert str(Fault(2, "slow", B, 3, 5)) == "2.0 s: slow worker-1, 3.0 times slower for 5.0 s"
    assert str(Fault(2, "flood", B, 5e6)) == "2.0 s: flood worker-1 with 4.8 MiB"


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1000", 1000), ("200MB", 2 * 10**8), ("1.5k", 1500), ("2GiB", 2 << 30)]
)
def test_sizes_of_floods(text, size):
    assert parse_line(f"flood worker-1 {text}")[1]["amount"] == size


@pytest.mark.parametrize(
    ("text", "number"), [("", 9), ("--signal TERM", 15), ("--signal SIGSEGV", 11), ("--signal 6", 6)]
)
def test_signals_of_kills(text, number):
    assert parse_line(f"kill worker-1 worker-0 {text}")[1]["amount"] == number


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kill", "TASK"),
        ("kill worker-0 --signal NONE", "there is no signal 'NONE'"),
        ("kill worker-0 --signal 99", "there is no signal '99'"),
        ("slow worker-0 fast", "not a factor"),
        ("flood worker-0 lots", "not a number of bytes"),
        ("flood worker-0 -5", "flood"),
        ("flood worker-0 " + "9" * 400, "not a number of bytes"),
        ("pause worker-0 --after -1", "more than 0"),
        ("chaos --seconds x", "not a number of seconds"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused_with_the_valid_values(line, message):
    with pytest.raises(UsageError, match=message):
        parse_line(line)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(0, "explode", A), "there is no fault 'explode'"),
        (Fault(-1, "kill", A), "in 0 s or more"),
        (Fault(1e300, "kill", A), "in 0 s or more"),
        (Fault(float("nan"), "kill", A), "in 0 s or more"),
        (Fault(0, "slow", A), "1 to 100 times slower, not 0 times"),
        (Fault(0, "slow", A, float("nan")), "1 to 100 times slower"),
        (Fault(0, "flood", A, -1), "a flood has 0 to"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(fault, message):
    with pytest.raises(ValueError, match=message):
        fault.check()
