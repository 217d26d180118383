"""Who is let in and where nothing is started, on real Ray nodes with tokens, without, and on several hosts."""

import json
import os
import subprocess
import sys

import psutil
import pytest
from network_hosts import NetworkHosts
from ray_nodes import RayNodes, ray_on_hosts, short_folder

from tfmagic.backends.remote import ray_head

_LOOK = """
import dataclasses, json, sys
from tfmagic.backends.remote import ray_head
print(json.dumps(dataclasses.asdict(ray_head.look(sys.argv[1]))))
"""
_START = """
import sys, tfmagic
settings = {name: True for name in sys.argv[2:]}
try:
    with tfmagic.Cluster(workers=2, backend="ray", address=sys.argv[1], **settings) as cluster:
        print(sorted({row["host"] for row in cluster.status()}))
except tfmagic.LaunchError as error:
    print(error)
"""


def printed_by(process):
    """Return the output of a process that ends by itself."""
    try:
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return output


def test_a_head_lets_in_who_has_its_token_by_whatever_way(tmp_path):
    file = tmp_path / "token"
    with RayNodes() as nodes:
        nodes.start(cpus=1)
        file.write_text(nodes.token)
        ways = [
            {"RAY_AUTH_TOKEN": nodes.token},
            {"RAY_AUTH_TOKEN_PATH": str(file)},
            {"RAY_AUTH_TOKEN": "wrong"},
        ]
        asked = [
            subprocess.Popen(
                [sys.executable, "-c", _LOOK, nodes.address],
                env={**os.environ, **way},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for way in ways
        ]
        by_variable, by_file, wrong = (json.loads(printed_by(process)) for process in asked)
        assert by_variable == by_file and by_file["reason"] == ""
        assert by_file["asks_token"] and by_file["nodes"] == ["127.0.0.2"]
        assert "refuses the token" in wrong["reason"]


@pytest.fixture
def open_cluster():
    """Three hosts, and Ray without a token on the first two."""
    folder = short_folder()
    with (
        NetworkHosts(3, private=["/dev/shm", str(folder)]) as hosts,
        RayNodes(token="", hosts=hosts, folder=folder) as nodes,
    ):
        nodes.start(cpus=1)
        nodes.add(cpus=1)
        yield hosts, nodes


def test_nothing_is_started_on_other_machines_without_a_token_or_from_a_machine_without_a_node(
    open_cluster, state_dir
):
    hosts, nodes = open_cluster
    before = set((state_dir / "hosts").glob("*"))  # of tests that ran before on the same state folder
    started = [
        hosts.popen(
            host,
            [sys.executable, "-c", _START, nodes.address],
            env={**os.environ, **nodes.driver_variables()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in (0, 2)
    ]
    on_a_node, elsewhere = map(printed_by, started)
    assert "asks for no token" in on_a_node and "10.77.0.2" in on_a_node and "RAY_AUTH_TOKEN" in on_a_node
    assert "not one of its nodes (10.77.0.1, 10.77.0.2)" in elsewhere and "--num-cpus=0" in elsewhere
    assert set((state_dir / "hosts").glob("*")) <= before
    trusting = started_on(hosts, nodes, "trust_network")
    assert printed_by(trusting).strip() == "['10.77.0.1', '10.77.0.2']"


def started_on(hosts, nodes, *settings):
    """Start a cluster of two workers from the first host."""
    return hosts.popen(
        0,
        [sys.executable, "-c", _START, nodes.address, *settings],
        env={**os.environ, **nodes.driver_variables()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_certificates_of_both_sides_admit_a_cluster_without_a_token():
    with ray_on_hosts(2, tls=True, token="") as (hosts, nodes):
        assert printed_by(started_on(hosts, nodes)).strip() == "['10.77.0.1', '10.77.0.2']"


def test_auto_finds_the_one_head_that_runs_here_whatever_its_folder(monkeypatch, tmp_path):
    for name in ("RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    every = psutil.process_iter

    def of_this_test(attributes):  # other tests can run a Ray
        clusters = [cluster for cluster in (nodes, others) if cluster is not None]
        mine = {pid for cluster in clusters for node in cluster.nodes for pid in node.pids()}
        return (process for process in every(attributes) if process.pid in mine)

    monkeypatch.setattr(psutil, "process_iter", of_this_test)
    others = None
    with RayNodes() as nodes:
        nodes.start(cpus=1)
        assert ray_head.resolve("auto", os.environ) == nodes.address
        with RayNodes() as others:
            others.start(cpus=1)
            assert ray_head.resolve("auto", os.environ) == ""
            reason = ray_head.look("auto").reason
            assert nodes.address in reason and others.address in reason
