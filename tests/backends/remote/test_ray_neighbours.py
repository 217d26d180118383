"""What others see of a cluster on real Ray nodes, and what stays of it for them."""

import contextlib
import json
import re
import subprocess
import sys
import threading
import time

import psutil
import pytest
from conftest import wait_until
from ray_nodes import FAST_DETECTION, RayNodes
from test_ray_failures import agents_of

import tfmagic
from tfmagic.backends.remote import driver_client

TOOK = r"worker-1 was ended by tfmagic: its host 127.0.0.2 had .* in use, of which worker-1 had the most"
TAKE = "taken = []; [taken.append(bytearray(b'x' * (32 << 20))) for _ in range(100)]; input()"
USED_UP = re.compile(
    r"Ray ended it, since the memory of the host is used up \(.* in use\); the most, .* process \d+"
)
LOOK = """
import json, sys, ray
from ray.util.placement_group import placement_group_table
ray.init(sys.argv[1], log_to_driver=False)
actors = sorted(actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True))
groups = [group["name"] for group in placement_group_table().values() if group["state"] == "CREATED"]
known = ray._private.worker.global_worker.gcs_client.get_all_job_info().values()
jobs = [(dict(job.config.metadata), job.entrypoint) for job in known if not job.is_dead]
free = ray.available_resources().get("CPU", 0)
ids = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes()}
print(json.dumps([actors, groups, jobs, free, ids]))
"""
VIEW_OF_AUTOSCALER = """
import json, sys
from ray.autoscaler.v2.sdk import get_cluster_status
status = get_cluster_status(sys.argv[1])
nodes = [*status.active_nodes, *status.idle_nodes]
print(json.dumps({node.ip_address: node.node_status for node in nodes}))
"""
SECOND = """
import sys, tfmagic
with tfmagic.Cluster(workers=1, backend="ray", address=sys.argv[1]) as cluster:
    print(cluster.run_folder, flush=True)
    input()
"""
OTHER = """
import sys, ray
from ray.util.placement_group import placement_group
ray.init(sys.argv[1], log_to_driver=False)
group = placement_group([{"CPU": 1}], name="of another user")
print("asked", flush=True)
ray.get(group.ready())
print("placed", flush=True)
input()
"""
NO_AGENT = "import sys, time\nif any('default_worker' in word for word in sys.orig_argv): time.sleep(600)"
DRAIN = ("-m", "ray.scripts.scripts", "drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION")


@pytest.fixture(scope="module")
def nodes():
    with RayNodes() as made, pytest.MonkeyPatch.context() as patched:
        made.start(cpus=1)
        made.add(cpus=1)
        for name, value in made.driver_variables().items():
            patched.setenv(name, value)
        yield made
        driver_client.close_idle()


def looked_at(nodes):
    """Return what another driver sees: actors, groups, jobs, how many CPUs are free, ids of nodes by address."""
    command = [sys.executable, "-c", LOOK, nodes.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def agents(nodes):
    return [process for node in nodes.nodes for process in agents_of(node)]


def test_others_see_whose_agents_places_and_job_they_are(nodes):
    with tfmagic.Cluster(workers=2, backend="ray", address=nodes.address, name="mine") as cluster:
        run = str(cluster.run_folder)
        actors, groups, jobs, free, _ = looked_at(nodes)
    assert actors == [f"tfmagic:{run}@127.0.0.2", f"tfmagic:{run}@127.0.0.3"]
    assert groups == [f"tfmagic:{run}"] and free == 0
    ((metadata, entrypoint),) = (job for job in jobs if job[0].get("user"))
    assert metadata["name"] == f"tfmagic:{run}"
    assert "ray_driver" in entrypoint and len(entrypoint) < 250, entrypoint


def program(source, nodes):
    words = [sys.executable, "-c", source, nodes.address]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def seen_by_autoscaler(nodes):
    """Return the state of each node for an autoscaler, which gives idle ones back."""
    done = subprocess.run(
        [sys.executable, "-c", VIEW_OF_AUTOSCALER, nodes.address], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]).values())


def test_two_notebooks_and_another_user_share_a_cluster(nodes):
    with contextlib.ExitStack() as programs:
        with tfmagic.Cluster(workers=1, backend="ray", address=nodes.address) as first:
            second = programs.enter_context(program(SECOND, nodes))
            programs.callback(second.kill)
            runs = sorted((str(first.run_folder), second.stdout.readline().strip()))
            other = programs.enter_context(program(OTHER, nodes))
            programs.callback(other.kill)
            assert other.stdout.readline() == "asked\n"
            actors, groups, *_ = looked_at(nodes)
            assert [actor.partition("@")[0] for actor in actors] == [f"tfmagic:{run}" for run in runs]
            assert sorted(groups) == [f"tfmagic:{run}" for run in runs], "the other one waits for room"
            assert seen_by_autoscaler(nodes) == {"RUNNING"}
        assert other.stdout.readline() == "placed\n", "an agent that waits holds no room"
        for each in (other, second):
            each.communicate("\n")
            assert each.returncode == 0
        assert seen_by_autoscaler(nodes) == {"RUNNING", "IDLE"}, "one node has the agent that waits"
        driver_client.close_idle()
        wait_until(lambda: seen_by_autoscaler(nodes) == {"IDLE"}, 30)


def test_agents_wait_for_the_next_cluster_as_long_as_they_are_told_and_no_longer(nodes):
    for keep_s, waits in ((0, False), (15, True)):
        with tfmagic.Cluster(workers=2, backend="ray", address=nodes.address, keep_hosts_s=keep_s):
            wait_until(lambda: len(agents(nodes)) == 2, 10)  # those of an earlier cluster have ended
        assert agents(nodes) or not waits
        wait_until(lambda: not agents(nodes), 30)
    with cluster_of(nodes) as cluster:
        assert cluster.run(int, view="quiet") == {"worker-0": 0, "worker-1": 0}
    assert agents(nodes)
    driver_client.close_idle()
    wait_until(lambda: not agents(nodes), 10)


@pytest.mark.parametrize("line", ["%tfcluster stop --all", "%unload_ext tfmagic"])
def test_nothing_waits_on_hosts_after_the_last_word(nodes, notebook, line):
    notebook.run(f"%tfcluster start --backend ray --address {nodes.address} --workers 2")
    notebook.run("%tfcluster stop")
    assert agents(nodes)
    notebook.run(line)
    wait_until(lambda: not agents(nodes), 10)
    if "unload" in line:
        notebook.run("%load_ext tfmagic")


def own_view():
    import ray

    ray.init(log_to_driver=False)
    return sorted(node["NodeManagerAddress"] for node in ray.nodes())


def test_a_task_that_connects_to_ray_gets_into_the_cluster_in_which_it_runs(nodes):
    with RayNodes() as others, cluster_of(nodes) as cluster:
        others.start(cpus=1)  # the last Ray that was started here
        found = cluster.run(own_view, on="worker-0", view="quiet")
    assert found["worker-0"] == [node.address for node in nodes.nodes]


def drain(nodes, node, deadline_s):
    *_, ids = looked_at(nodes)
    words = ("--node-id", ids[node.address], "--deadline-remaining-seconds", str(deadline_s))
    told = ("--address", nodes.address, "--reason-message", "the spot machine is taken")
    subprocess.run([sys.executable, *DRAIN, *words, *told], check=True)


def test_a_node_that_ray_drains_is_named_at_a_start_and_when_it_is_lost():
    with RayNodes() as nodes, nodes.driver_environment():
        nodes.start(cpus=1)
        leaving = nodes.add(cpus=1)
        with cluster_of(nodes) as cluster:
            call = cluster.submit(time.sleep, 600)
            drain(nodes, leaving, 10)
            deadline = time.monotonic() + 10
            words = rf"{leaving.address}: 1 CPU \(being drained: it gets no task any more\)"
            with pytest.raises(tfmagic.LaunchError, match=words):
                tfmagic.Cluster(workers=1, backend="ray", address=nodes.address, start_timeout_s=1).start()
            time.sleep(max(deadline + 1 - time.monotonic(), 0))  # before it Ray expects no end
            nodes.kill_raylet(leaving)
            with pytest.raises(
                tfmagic.TaskDied,
                match=r"\(Ray had drained it: the spot machine is taken\)|\(Ray is draining its node\)",
            ):
                call.result(60)
        driver_client.close_idle()


def take_memory():
    taken = []
    while True:
        taken.append(bytearray(b"x" * (32 << 20)))


def cluster_of(nodes):
    return tfmagic.Cluster(workers=2, backend="ray", address=nodes.address)


def test_a_node_that_is_lost_while_its_agent_starts_costs_no_start(tmp_path, capsys):
    (tmp_path / "sitecustomize.py").write_text(NO_AGENT)
    with RayNodes() as nodes, nodes.driver_environment():
        head, lost = nodes.start(cpus=1), nodes.add(cpus=1, import_path=str(tmp_path))
        cluster = cluster_of(nodes)
        start = threading.Thread(target=cluster.start)
        start.start()
        try:
            wait_until(lambda: len(looked_at(nodes)[0]) == 2, 60)
            nodes.kill_raylet(lost)
            added = nodes.add(cpus=1)
        finally:
            start.join()
        with cluster:
            assert {row["host"] for row in cluster.status()} == {head.address, added.address}
        driver_client.close_idle()
    told = capsys.readouterr().err
    assert "an agent ended while it started: Ray says: The actor died because its node has died" in told
    assert "(health check failed" in told and "Node Id" not in told


# The memory is that of the whole machine: other tests beside these could use up what they leave free.
@contextlib.contextmanager
def watched_memory(more_bytes):
    """Yield a node on which Ray ends processes as soon as so much more memory is in use than now."""
    memory = psutil.virtual_memory()
    share = (memory.total - memory.available + min(more_bytes, memory.available / 2)) / memory.total
    watches = {"RAY_memory_monitor_refresh_ms": "250", "RAY_memory_usage_threshold": f"{share:.3f}"}
    with RayNodes(settings={**FAST_DETECTION, **watches}) as nodes, nodes.driver_environment():
        nodes.start(cpus=2)
        yield nodes
        driver_client.close_idle()


@pytest.mark.soak
def test_memory_that_others_have_taken_is_said_in_a_sentence():
    with watched_memory(2 << 30) as nodes, cluster_of(nodes) as cluster:
        call = cluster.submit(time.sleep, 600)
        with subprocess.Popen([sys.executable, "-c", TAKE]) as other:
            with pytest.raises(tfmagic.TaskDied) as raised:
                call.result(60)
            other.kill()
        assert USED_UP.search(str(raised.value)) and len(str(raised.value).splitlines()) < 4


@pytest.mark.soak
def test_a_task_that_takes_the_memory_of_its_host_ends_alone():
    with watched_memory(6 << 30) as nodes, cluster_of(nodes) as cluster:
        cluster.run(exec, "import builtins; builtins.kept = 5", view="quiet")
        before = {row["task"]: row["pid"] for row in cluster.status()}
        with pytest.raises(tfmagic.TaskDied, match=TOOK) as raised:
            cluster.run(take_memory, on="worker-1", view="quiet")
        assert len(str(raised.value).splitlines()) < 8
        assert cluster.run(lambda: __import__("builtins").kept, on="worker-0", view="quiet")
        assert {row["task"]: row["pid"] for row in cluster.status()}["worker-0"] == before["worker-0"]
        cluster.revive()
        assert cluster.run(int, view="quiet") == {"worker-0": 0, "worker-1": 0}
