"""Every task of a Ray cluster has the versions of the notebook, also one that gets a new host later."""

import re

import pytest
from ray_nodes import RayNodes
from test_ray_failures import LOST_S, row, wait_for_state
from test_ray_neighbours import looked_at

import tfmagic
from tfmagic.errors import LaunchError


def with_versions(folder, **versions):
    """Return an import path on which these packages seem to have other versions."""
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return str(folder)


def test_a_task_is_not_revived_on_a_host_with_other_versions(tmp_path, monkeypatch):
    with RayNodes() as nodes:
        nodes.start(cpus=1)
        lost = nodes.add(cpus=1)
        for name, value in nodes.driver_variables().items():
            monkeypatch.setenv(name, value)
        with tfmagic.Cluster(
            workers=2, backend="ray", address=nodes.address, placement="strict-spread", failure_grace_s=1
        ) as cluster:
            (task,) = (row["task"] for row in cluster.status() if row["host"] == lost.address)
            added = nodes.add(cpus=1, import_path=with_versions(tmp_path, tensorflow="2.20.0", keras="3.1.0"))
            nodes.kill_raylet(lost)
            wait_for_state(cluster, task, "dead", LOST_S)
            words = rf"{task} did not start: .*{added.address}: tensorflow 2\.20\.0 \(here .*keras 3\.1\.0"
            with pytest.raises(LaunchError, match=words):
                cluster.revive()
            assert row(cluster, task)["state"] == "dead"
            right = nodes.add(cpus=1)
            cluster.revive()  # though Ray's first group has its place on the wrong one
            assert row(cluster, task)["host"] == right.address
            cluster.restart()
            assert row(cluster, task)["host"] == right.address
            (other,) = {"worker-0", "worker-1"} - {task}
            assert dict(cluster.run(lambda: 7, view="quiet")) == {task: 7, other: 7}
        _, groups, *_ = looked_at(nodes)
        assert groups == []


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"cpus_per_task": 64}, "can hold 0 of 2 tasks: each needs 64 CPU"),
        ({"resources": {"rack": 1}}, "can hold 0 of 2 tasks: each needs 1 CPU, 1 rack"),
        ({"placement": "strict-spread"}, r"can hold 1 of 2 tasks: .* \(a host for each\)"),
    ],
)
def test_what_can_never_have_a_place_is_told_at_once(one_node, capsys, asked, why):
    cluster = tfmagic.Cluster(workers=2, backend="ray", address=one_node, start_timeout_s=6, **asked)
    with pytest.raises(LaunchError, match="did not have room"):
        cluster.start()
    told = capsys.readouterr().err
    assert re.search(why, told) and "waits 6 s for nodes that join" in told


@pytest.fixture(scope="module")
def one_node():
    with RayNodes() as nodes, pytest.MonkeyPatch.context() as patched:
        nodes.start(cpus=4)
        for name, value in nodes.driver_variables().items():
            patched.setenv(name, value)
        yield nodes.address
