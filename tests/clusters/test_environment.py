"""The environment of a task: our presets, the user's variables on top, and GPUs."""

import sys
from pathlib import Path

import pytest

from tfmagic.clusters.launch.task_settings import TaskSettings, assign_gpus, visible_gpus
from tfmagic.errors import ClusterSpecError
from tfmagic.protocol.cluster_spec import ClusterShape, ClusterSpec, TaskId
from tfmagic.runs.folder import RunFolder

SHAPE = ClusterShape(workers=2, ps=1, evaluator=True)


def environ(task, base, shape=SHAPE, gpus_per_task=None, extra=()):
    return TaskSettings(env=dict(extra), gpus_per_task=gpus_per_task).environ(task, shape, base)


def test_gpus_are_divided_over_the_workers_and_the_others_get_none():
    base = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    seen = {t.name: environ(t, base)["CUDA_VISIBLE_DEVICES"] for t in SHAPE.tasks}
    assert seen == {"chief-0": "", "worker-0": "0,1", "worker-1": "2,3", "ps-0": "", "evaluator-0": ""}
    assert environ(TaskId("worker", 0), base)["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_a_number_of_gpus_a_task_is_kept_and_too_many_are_refused():
    shape = ClusterShape(workers=2)
    base = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    assert environ(TaskId("worker", 1), base, shape, 1)["CUDA_VISIBLE_DEVICES"] == "5"
    with pytest.raises(ClusterSpecError, match="2 tasks with 2 GPUs each need 4; this machine shows 3"):
        environ(TaskId("worker", 0), base, shape, 2)


def test_fewer_gpus_than_tasks_are_shared():
    shape = ClusterShape(workers=3)
    assert [assign_gpus(t, shape, ["0", "1"], None) for t in shape.tasks] == [["0"], ["1"], ["0"]]


def test_without_gpus_no_variable_mentions_them():
    assert "CUDA_VISIBLE_DEVICES" not in environ(TaskId("worker", 0), {})
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == []


def test_the_users_environment_wins_over_the_presets_and_env_over_both():
    base = {"MPLBACKEND": "agg", "A": "1"}
    seen = environ(TaskId("worker", 0), base, extra={"A": "2", "TF_NUM_INTRAOP_THREADS": "7"}.items())
    assert (seen["MPLBACKEND"], seen["A"], seen["TF_NUM_INTRAOP_THREADS"]) == ("agg", "2", "7")


@pytest.mark.parametrize(("gpus", "kinds"), [("-1", 2), ("0,1", 3)])
def test_the_boots_of_a_start_have_one_environment_but_for_what_is_a_tasks_own(monkeypatch, gpus, kinds):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    shape, run = ClusterShape(workers=3 if gpus == "-1" else 2, evaluator=True), RunFolder(Path("/run"))
    spec = ClusterSpec(shape, {task: f"127.0.0.1:{n + 1}" for n, task in enumerate(shape.tasks)})
    settings = TaskSettings(task_env={TaskId("worker", 1): {"OWN": "1"}})
    monkeypatch.setattr(sys, "path", [*sys.path, "/new"])
    make = settings.boots("c", spec, run, 3.0)
    boots = [make(task, 2) for task in shape.tasks]
    assert [boot.task for boot in boots] == list(shape.tasks)
    for boot in boots:
        assert boot.environ == settings.environ(boot.task, shape) and boot.attempt == 2
        assert boot.tf_config == spec.tf_config(boot.task) and boot.sys_path[-1] == "/new"
        assert boot.stacks_path == f"/run/{boot.task}.stacks"
    assert len({id(boot.environ) for boot in boots}) == kinds
    monkeypatch.setenv("A", "later")
    assert settings.boots("c", spec, run, 3.0)(shape.leader, 3).environ["A"] == "later"


PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ({}, None),
        ({"http_proxy": PROXY}, "127.0.0.1"),
        ({"https_proxy": PROXY, "no_proxy": "a.example,b"}, "127.0.0.1,a.example,b"),
        ({"grpc_proxy": PROXY, "no_proxy": "a", "no_grpc_proxy": "c"}, "127.0.0.1,c"),
        ({"HTTP_PROXY": PROXY, "all_proxy": PROXY}, None),
        ({"http_proxy": ""}, None),
        ({"http_proxy": "socks5://proxy.example"}, None),
        ({"grpc_proxy": "", "http_proxy": PROXY}, None),
    ],
)
def test_tasks_speak_with_each_other_past_a_proxy(base, expected):
    found = environ(SHAPE.tasks[0], base)
    assert found.get("no_grpc_proxy") == expected
    assert {name: found.get(name) for name in base if name != "no_grpc_proxy"} == {
        name: value for name, value in base.items() if name != "no_grpc_proxy"
    }
    own = environ(SHAPE.tasks[0], base, extra={"no_grpc_proxy": "x"})
    assert own["no_grpc_proxy"] == "x"  # the user's variable wins
