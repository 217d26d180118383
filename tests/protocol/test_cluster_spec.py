"""Task names, shapes, TF_CONFIG and selectors."""

import json
import pickle
import time

import pytest

import tfmagic
from tfmagic.errors import ClusterSpecError
from tfmagic.protocol.cluster_spec import ClusterShape, ClusterSpec, TaskId, parse_task, select


def names(tasks):
    return [t.name for t in tasks]


def test_tasks_are_ordered_chief_worker_ps_evaluator():
    shape = ClusterShape(workers=2, ps=1, chief=True, evaluator=True)
    assert names(shape.tasks) == ["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"]
    assert sorted(set(shape.tasks)) == list(shape.tasks)


def test_parameter_servers_bring_a_chief_that_alone_runs_cells():
    shape = ClusterShape(workers=2, ps=1)
    assert shape.chief
    assert names(shape.cell_tasks) == ["chief-0"]


def test_without_a_chief_worker_0_leads():
    assert ClusterShape(workers=2).leader == TaskId("worker", 0)
    assert ClusterShape(workers=2, chief=True).leader == TaskId("chief", 0)


def test_an_evaluator_does_not_run_cells_by_default():
    assert names(ClusterShape(workers=1, evaluator=True).cell_tasks) == ["worker-0"]


@pytest.mark.parametrize(
    "shape",
    [{"workers": -1}, {"ps": -2}, {"chief": 2}, {"workers": 0}, {"workers": 0, "ps": 1}, {"workers": 1.5}],
)
def test_a_shape_that_cannot_be_is_refused_with_a_next_step(shape):
    with pytest.raises(ClusterSpecError, match=r"use|add|at most|number of tasks"):
        ClusterShape(**shape)


def test_tf_config_leaves_the_evaluator_out_of_all_but_its_own():
    shape = ClusterShape(workers=1, chief=True, evaluator=True)
    spec = ClusterSpec(shape, {t: f"127.0.0.1:{i}" for i, t in enumerate(shape.tasks)})
    chief = json.loads(spec.tf_config(TaskId("chief", 0)))
    assert chief == {
        "cluster": {"chief": ["127.0.0.1:0"], "worker": ["127.0.0.1:1"]},
        "task": {"type": "chief", "index": 0},
    }
    assert "evaluator" in json.loads(spec.tf_config(TaskId("evaluator", 0)))["cluster"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("all", ["chief-0", "worker-0", "worker-1", "worker-2"]),
        ("worker", ["worker-0", "worker-1", "worker-2"]),
        ("worker-1", ["worker-1"]),
        ("worker-0:2", ["worker-0", "worker-1"]),
        ("worker-::2", ["worker-0", "worker-2"]),
        ("worker-1::2", ["worker-1"]),
        ("worker-1:", ["worker-1", "worker-2"]),
        ("worker-:1", ["worker-0"]),
        ("worker-2, chief", ["chief-0", "worker-2"]),
        ("worker-0,worker-0:2", ["worker-0", "worker-1"]),
    ],
)
def test_selectors(selector, expected):
    assert names(select(selector, ClusterShape(workers=3, chief=True).tasks)) == expected


@pytest.mark.parametrize("selector", ["worker-::0", "worker--1:", "worker-a:b", "worker:2"])
def test_what_is_no_slice_of_tasks_is_told_its_form(selector):
    with pytest.raises(ClusterSpecError, match=rf"^'{selector}' is no slice of tasks: worker-FROM:TO:STEP"):
        select(selector, ClusterShape(workers=2).tasks)


@pytest.mark.parametrize(
    "selector",
    [["worker-2", "chief-0"], ("chief", "worker-2"), [TaskId("worker", 2), "chief"], {"worker-2", "chief-0"}],
)
def test_a_selector_may_be_a_list(selector):
    tasks = ClusterShape(workers=3, chief=True).tasks
    assert names(select(selector, tasks)) == ["chief-0", "worker-2"]
    assert names(select(TaskId("worker", 1), tasks)) == ["worker-1"]


@pytest.mark.parametrize("selector", [1, ["worker-0", 1], b"all", [["worker-0"]], [("worker", 0)], None])
def test_a_selector_that_is_no_text_is_refused_in_words(selector):
    with pytest.raises(ClusterSpecError, match=r"tasks are named by text, such as 'worker-0' or \["):
        select(selector, ClusterShape(workers=2).tasks)


@pytest.mark.parametrize("shape", [{"workers": 3_000_000}, {"workers": 1, "ps": 10**12}])
def test_a_shape_that_no_machine_can_hold_is_refused_at_once(shape):
    began = time.process_time()
    with pytest.raises(ClusterSpecError, match=r"at most 65000 tasks, since each needs a port of its own"):
        ClusterShape(**shape)
    assert time.process_time() - began < 1  # to make three million took 25 s


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "<script>", "a\0", "a\n", "-x", "x" * 101, 5, None])
def test_a_name_that_no_cluster_can_have_is_refused(name):
    with pytest.raises(ClusterSpecError, match="cannot name a cluster"):
        tfmagic.Cluster(workers=1, name=name)


@pytest.mark.parametrize("env", [{"A": "b\0"}, {"": "x"}, {"A=B": "x"}, {"A": 1}])
def test_an_environment_that_no_process_can_have_is_refused(env):
    with pytest.raises(ClusterSpecError, match="env"):
        tfmagic.Cluster(workers=1, env=env)


@pytest.mark.parametrize("selector", ["", " , ", [], "boss", "worker-7", "worker-3:2", "worker:1", "ps"])
def test_a_selector_that_names_nothing_says_what_there_is(selector):
    with pytest.raises(ClusterSpecError, match="worker-0, worker-1"):
        select(selector, ClusterShape(workers=2).tasks)


def test_task_names_parse_and_pickle():
    assert parse_task("ps-3") == TaskId("ps", 3)
    assert pickle.loads(pickle.dumps(TaskId("ps", 3))) == TaskId("ps", 3)
    with pytest.raises(ClusterSpecError, match="TYPE-INDEX"):
        parse_task("boss-1")


@pytest.mark.parametrize(
    ("selector", "end"),
    [
        ("wroker", "it has worker-0, worker-1; did you mean worker?"),
        ("wroker-1", "it has worker-0, worker-1; did you mean worker-1?"),
        ("worker-7", "it has worker-0, worker-1"),
    ],
)
def test_only_a_word_that_is_no_name_gets_a_question(selector, end):
    with pytest.raises(ClusterSpecError) as found:
        select(selector, ClusterShape(2).tasks)
    assert str(found.value) == f"there is no task {selector!r} in this cluster; {end}"
