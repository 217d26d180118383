"""Task names, shapes, TF_CONFIG and selectors."""

import json
import pickle

import pytest

from tfmagic.errors import ClusterSpecError
from tfmagic.spec import ClusterShape, ClusterSpec, TaskId, parse_task, select


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
        ("worker-2, chief", ["chief-0", "worker-2"]),
        ("worker-0,worker-0:2", ["worker-0", "worker-1"]),
    ],
)
def test_selectors(selector, expected):
    assert names(select(selector, ClusterShape(workers=3, chief=True).tasks)) == expected


@pytest.mark.parametrize("selector", ["", " , ", "boss", "worker-7", "worker-3:2", "worker:1", "ps"])
def test_a_selector_that_names_nothing_says_what_there_is(selector):
    with pytest.raises(ClusterSpecError, match="worker-0, worker-1"):
        select(selector, ClusterShape(workers=2).tasks)


def test_task_names_parse_and_pickle():
    assert parse_task("ps-3") == TaskId("ps", 3)
    assert pickle.loads(pickle.dumps(TaskId("ps", 3))) == TaskId("ps", 3)
    with pytest.raises(ClusterSpecError, match="TYPE-INDEX"):
        parse_task("boss-1")
