"""Clusters on three hosts with a network of their own: Ray with a token and TLS, TensorFlow over real addresses.

The notebook's part runs on a host too: tests/support/ray_kernel.py.
"""

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray_kernel
from conftest import alive, wait_until
from network_hosts import address_of
from ray_nodes import ray_on_hosts

SLOW_DETECTION = {  # about 20 s until a host is lost: time enough for a host to come back
    "RAY_health_check_period_ms": "4000",
    "RAY_health_check_timeout_ms": "4000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
}
WORKERS = ("worker-0", "worker-1", "worker-2")
SILENT_S = 15.0
ENDED_S = 60.0


class KernelOnHost:
    """A kernel on a host; `ask` calls one of its functions."""

    def __init__(self, process, errors):
        self.process, self.errors = process, errors

    def ask(self, name, **options):
        self.process.stdin.write(json.dumps([name, options]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()[-3000:]
        return json.loads(line)


@contextmanager
def kernel_on(hosts, host, nodes, folder, settings=SLOW_DETECTION):
    """Start a kernel on a host, whose folder has no other modules that a notebook would send."""
    script = Path(shutil.copy(ray_kernel.__file__, folder))
    errors = folder / f"{host}.err"
    environ = {**os.environ, **nodes.driver_variables(), **settings, "TFMAGIC_STATE_DIR": str(folder)}
    with errors.open("w") as file:
        words = [sys.executable, str(script)]
        pipe = subprocess.PIPE
        process = hosts.popen(
            host, words, env=environ, cwd=folder, text=True, stdin=pipe, stdout=pipe, stderr=file
        )
    try:
        yield KernelOnHost(process, errors)
    finally:
        process.kill()
        process.communicate()


def test_strategies_and_keras_work_across_hosts_with_tls_and_survive_a_lost_one(tmp_path):
    with ray_on_hosts(3, tls=True) as (hosts, nodes), kernel_on(hosts, 0, nodes, tmp_path) as kernel:
        addresses = kernel.ask("start", address=nodes.address, workers=1, ps=1, placement="strict-spread")
        assert {where.rpartition(":")[0] for where in addresses.values()} == set(map(address_of, range(3)))
        assert kernel.ask("count_on_parameter_servers") == {"chief-0": 20.0}
        kernel.ask("stop")

        addresses = kernel.ask("start", address=nodes.address, workers=3)
        assert {where.rpartition(":")[0] for where in addresses.values()} == set(map(address_of, range(3)))
        assert kernel.ask("all_reduce") == dict.fromkeys(WORKERS, 3.0)
        (alone,) = kernel.ask("fit", alone=True).values()
        for losses in kernel.ask("fit").values():
            assert losses == pytest.approx(alone, rel=1e-4)

        placed = kernel.ask("tasks")
        (victim,) = (task for task, (host, _) in placed.items() if host == address_of(2))
        nodes.kill_node(nodes.nodes[2])
        kernel.ask("wait_for", task=victim, dead=True)  # measured 1.1 s
        wait_until(lambda: not alive([placed[victim][1]]), ENDED_S)
        told = kernel.ask("run_something")
        assert f"{victim} was lost: its host {address_of(2)} is lost" in told
        assert kernel.ask("revive") == [victim]
        assert kernel.ask("tasks")[victim][0] in map(address_of, range(2))
        assert kernel.ask("all_reduce") == dict.fromkeys(WORKERS, 3.0)


@pytest.mark.soak
def test_a_host_that_was_cut_off_is_silent_and_returns_or_is_lost_and_ends_its_tasks(tmp_path):
    with (
        ray_on_hosts(3, tls=True, settings=SLOW_DETECTION) as (hosts, nodes),
        kernel_on(hosts, 0, nodes, tmp_path) as kernel,
    ):
        kernel.ask("start", address=nodes.address, workers=3, suspect_s=7, lease_s=60)
        before = kernel.ask("tasks")
        (victim,) = (task for task, (host, _) in before.items() if host == address_of(2))
        hosts.cut(2)
        silent_s = kernel.ask("wait_for", task=victim, silent=True)
        hosts.join(2)
        kernel.ask("wait_for", task=victim, silent=False)
        assert silent_s < SILENT_S
        assert kernel.ask("run_something") == "" and kernel.ask("tasks") == before
        kernel.ask("stop")

        kernel.ask("start", address=nodes.address, workers=3, suspect_s=7, lease_s=15)
        placed = kernel.ask("tasks")
        (victim,) = (task for task, (host, _) in placed.items() if host == address_of(2))
        pid = placed[victim][1]
        assert pid in hosts.pids(2)
        hosts.cut(2)
        assert kernel.ask("wait_for", task=victim, silent=True) < SILENT_S
        wait_until(lambda: not alive([pid]), ENDED_S)  # by its lease
        kernel.ask("wait_for", task=victim, dead=True)
        told = kernel.ask("run_something")
        assert f"{victim} was lost: its host {address_of(2)} is lost: Ray says" in told
        assert kernel.ask("revive") == [victim]
        assert kernel.ask("all_reduce") == dict.fromkeys(WORKERS, 3.0)
        hosts.join(2)
        wait_until(lambda: not nodes.nodes[2].pids(), ENDED_S)  # Ray does not take it back
        assert kernel.ask("run_something") == ""


@pytest.mark.soak
def test_a_value_that_is_longer_on_its_way_than_a_lease_is_no_silent_host(tmp_path):
    with (
        ray_on_hosts(2, settings=SLOW_DETECTION) as (hosts, nodes),
        kernel_on(hosts, 0, nodes, tmp_path) as kernel,
    ):
        kernel.ask("start", address=nodes.address, workers=2, suspect_s=2, lease_s=3)
        before = kernel.ask("tasks")
        (far,) = (task for task, (host, _) in before.items() if host == address_of(1))
        hosts.limit(1, bits_per_s=16_000_000)
        size = 12 << 20  # more than 6 s
        for what in ("pull", "push"):
            assert kernel.ask("transfer", what=what, task=far, size=size) == [size, False]
        assert kernel.ask("tasks") == before


@pytest.mark.soak
def test_tasks_on_the_hosts_that_outlive_the_head_are_lost_in_words(tmp_path):
    settings = {"RAY_gcs_rpc_server_reconnect_timeout_s": "20"}
    with (
        ray_on_hosts(2, settings=settings) as (hosts, nodes),
        kernel_on(hosts, 1, nodes, tmp_path) as kernel,
    ):
        kernel.ask("start", address=nodes.address, workers=2, suspect_s=7, lease_s=15, start_timeout_s=40)
        tasks = kernel.ask("tasks")
        (on_head,) = (task for task, (host, _) in tasks.items() if host == address_of(0))
        nodes.kill_head()
        assert kernel.ask("wait_for", task=on_head, silent=True) < SILENT_S
        for task in tasks:
            kernel.ask("wait_for", task=task, dead=True)
        told = kernel.ask("run_something")
        assert "the process that talks to Ray ended" in told and "Failed to connect to GCS" in told
        wait_until(lambda: not alive([pid for _, pid in tasks.values()]), ENDED_S)
