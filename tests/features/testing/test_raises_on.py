"""`tfmagic.testing.raises_on`, around calls of real clusters and on their tasks."""

import os

import pytest

import tfmagic
from tfmagic.testing import raises_on

TOO = "raised ValueError, and others did, too: "


@pytest.fixture(scope="module")
def cluster():
    with tfmagic.Cluster(workers=2) as running:
        yield running


def fail_on(index, message="no number"):
    if tfmagic.current_task().index == index:
        raise ValueError(message)


def fail_everywhere():
    raise ValueError("alike")


def fail_with_name():
    raise ValueError(f"of {tfmagic.current_task().name}")


def test_the_failure_of_the_task_passes(cluster):
    with raises_on("worker-1", ValueError, match="no num") as caught:
        cluster.run(fail_on, 1)
    assert str(caught.value) == "no number"
    with raises_on("worker", (KeyError, ValueError)):
        cluster.run(fail_everywhere)
    with raises_on(["worker-0", "worker-1"], ValueError):
        cluster.run(fail_on, 0)
    with raises_on("worker", ValueError, match="of worker-1") as caught:
        cluster.run(fail_with_name)
    assert str(caught.value) == "of worker-1"


@pytest.mark.parametrize(
    "task, expected, call, message",
    [
        (
            "worker-1",
            ValueError,
            (fail_on, 0),
            r"worker-1 did not raise ValueError.*'no number'\) on worker-0",
        ),
        (
            "worker-1",
            KeyError,
            (fail_on, 1),
            r"did not raise KeyError.*ValueError\('no number'\) on worker-1",
        ),
        ("worker-1", ValueError, (fail_everywhere,), rf"worker-1 {TOO}ValueError\('alike'\) on worker-0"),
        ("worker-0", ValueError, (fail_everywhere,), rf"worker-0 {TOO}ValueError\('alike'\) on worker-1"),
        ("worker-1", ValueError, (int,), r"worker-1 did not raise ValueError: no task has failed"),
        (
            "chief-0",
            ValueError,
            (fail_on, 1),
            r"chief-0 did not raise ValueError\. The failure is ValueError",
        ),
    ],
)
def test_any_other_end_fails_and_says_what_was_raised_where(cluster, task, expected, call, message):
    with pytest.raises(AssertionError, match=message), raises_on(task, expected):
        cluster.run(*call)


def test_a_message_that_does_not_match_fails(cluster):
    problem = "ValueError matching 'late'.*no number"
    with pytest.raises(AssertionError, match=problem), raises_on("worker-1", ValueError, match="late"):
        cluster.run(fail_on, 1)


def test_a_death_is_a_failure_of_its_task():
    with tfmagic.Cluster(workers=2) as cluster, raises_on("worker-1", tfmagic.TaskDied):
        cluster.run(os._exit, 3, on="worker-1")


def test_an_exception_of_this_process_fails():
    problem = "ValueError.*'here'.* was raised in this process, by no task"
    with pytest.raises(AssertionError, match=problem), raises_on("worker-1", ValueError):
        raise ValueError("here")
    with pytest.raises(KeyboardInterrupt), raises_on("worker-1", ValueError):
        raise KeyboardInterrupt


def expect(task, index, expected=ValueError):
    with raises_on(task, expected) as caught:
        fail_on(index)
    return str(caught.value)


def test_in_a_body_the_task_must_raise_and_the_others_must_not(cluster):
    assert dict(cluster.run(expect, "worker-1", 1)) == {"worker-0": "None", "worker-1": "no number"}
    with pytest.raises(AssertionError, match="worker-0 did not raise ValueError: the block has ended"):
        cluster.run(expect, "worker-0", 5)
    with pytest.raises(
        AssertionError, match=r"worker-1 did not raise KeyError, but ValueError\('no number'\)"
    ):
        cluster.run(expect, "worker-1", 1, KeyError)
    with pytest.raises(ValueError, match="no number") as caught:
        cluster.run(expect, "worker-1", 0, on="worker-0")
    assert "raises_on() expects ValueError on worker-1, and nothing on worker-0" in caught.value.__notes__


@pytest.mark.parametrize("selector", ["wrker-1", "", None, 3, "worker-"])
def test_a_selector_that_makes_no_sense_is_refused(selector):
    with pytest.raises(tfmagic.ClusterSpecError, match="raises_on.. takes a task, such as 'worker-1'"):
        raises_on(selector, ValueError)


def test_a_task_that_the_cluster_does_not_have_is_refused_in_a_body(cluster):
    with pytest.raises(tfmagic.ClusterSpecError, match="there is no task 'worker-7' in this cluster"):
        cluster.run(expect, "worker-7", 5)


@pytest.mark.parametrize("expected", [5, (), "ValueError", (ValueError, 5)])
def test_what_is_no_class_of_exceptions_is_refused(expected):
    with pytest.raises(TypeError, match="expects a class of exceptions"):
        raises_on("worker-1", expected)
