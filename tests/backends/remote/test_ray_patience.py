"""How long the hosts of a Ray cluster and their notebook wait for each other."""

import os
import signal
import threading
import time

import psutil
import pytest
from conftest import wait_until
from ray_nodes import FAST_DETECTION, RayNodes, ray_on_hosts
from test_ray_failures import agents_of, own_pid
from test_ray_hosts import kernel_on

import tfmagic

_BREAK_S = 55.0  # Ray gives a node up after 65 s
_CUT_S = 50.0  # and a process that reaches no head ends after 60 s
# a worker process of Ray does not begin before a file exists: a host with a slow file system, for example
_SLOW = """\
import os, sys, time
if any(word.endswith("default_worker.py") for word in sys.orig_argv):
    while not os.path.exists({go!r}):
        time.sleep(0.05)
"""


def test_a_host_that_is_slower_than_a_lease_does_not_cost_the_others_theirs(tmp_path, monkeypatch):
    go, lease_s = tmp_path / "go", 4
    (tmp_path / "sitecustomize.py").write_text(_SLOW.format(go=str(go)))
    with RayNodes() as nodes:
        quick = nodes.start(cpus=1)
        nodes.add(cpus=1, import_path=str(tmp_path))
        for name, value in nodes.driver_variables().items():
            monkeypatch.setenv(name, value)

        def let_it_go() -> None:
            wait_until(lambda: agents_of(quick), 60)
            (agent,) = agents_of(quick)
            wait_until(lambda: not agent.is_running() or _age_s(agent) > 3 * lease_s, 60)
            go.touch()

        slow = threading.Thread(target=let_it_go)
        slow.start()
        with tfmagic.Cluster(
            workers=2,
            backend="ray",
            address=nodes.address,
            placement="strict-spread",
            lease_s=lease_s,
            start_timeout_s=100,
        ) as cluster:
            assert cluster.run(lambda: 1, view="quiet") == {"worker-0": 1, "worker-1": 1}
        slow.join()


@pytest.mark.soak  # it waits for most of the time that Ray gives a node
@pytest.mark.parametrize("stopped", ["host", "driver"])
def test_a_break_that_ray_forgives_costs_no_task(monkeypatch, stopped):
    with RayNodes(settings={}) as nodes:
        nodes.start(cpus=1)
        other = nodes.add(cpus=1)
        for name, value in nodes.driver_variables().items():
            monkeypatch.setenv(name, value)
        with tfmagic.Cluster(
            workers=2, backend="ray", address=nodes.address, placement="strict-spread"
        ) as cluster:
            before = {row["task"]: row["pid"] for row in cluster.status()}
            pids = other.pids() | {before["worker-1"]} if stopped == "host" else {own_pid(cluster)}
            _signal_all(pids, signal.SIGSTOP)
            time.sleep(_BREAK_S)  # that it lasts so long is what is tested
            _signal_all(pids, signal.SIGCONT)
            assert cluster.run(lambda: 1, view="quiet") == {"worker-0": 1, "worker-1": 1}
            assert {row["task"]: row["pid"] for row in cluster.status()} == before


@pytest.mark.soak
@pytest.mark.parametrize("cut_off", ["a host", "the notebook's host"])
def test_a_network_that_is_cut_for_less_than_ray_waits_costs_no_task_and_no_line(tmp_path, cut_off):
    """The head, the notebook and a third host, with Ray's own time limits."""
    rays_own = dict.fromkeys(FAST_DETECTION, "")
    with (
        ray_on_hosts(3, settings=rays_own) as (hosts, nodes),
        kernel_on(hosts, 1, nodes, tmp_path, settings={}) as kernel,
    ):
        kernel.ask("start", address=nodes.address, workers=3, placement="strict-spread")
        before = kernel.ask("tasks")
        go = tmp_path / "go"
        kernel.ask("begin_counting", go=str(go))
        logs = [tmp_path / "runs" / kernel.ask("run_name") / f"{task}.log" for task in before]
        wait_until(lambda: all("\n9\n" in log.read_text() for log in logs), 60)
        cut = 2 if cut_off == "a host" else 1
        hosts.cut(cut)
        time.sleep(_CUT_S)  # that it lasts so long is what is tested
        hosts.join(cut)
        kernel.ask("wait_for", task="worker-2", silent=False)
        go.touch()
        for number, lines in kernel.ask("end_counting").values():
            assert lines == [str(n + 1) for n in range(number)] and number > 10 * _CUT_S / 2
        assert kernel.ask("run_something") == "" and kernel.ask("tasks") == before


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def _age_s(process: psutil.Process) -> float:
    return time.time() - process.create_time()
