"""Tasks on simulated hosts: real namespaces, real links, real TensorFlow."""

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import psutil
import pytest
from conftest import wait_until
from IPython.core.error import UsageError
from network_hosts import _pids_in
from no_namespaces import without_namespaces
from ordinary_user import as_ordinary_user

import tfmagic
from tfmagic.errors import ClusterSpecError, LaunchError, TfmagicError

_PORT = 5000


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=4, hosts=2) as cluster:
        yield cluster


@pytest.fixture
def whole(cluster_of_module):
    """The cluster, healed and without limits afterwards."""
    yield cluster_of_module
    cluster_of_module.faults.heal()
    cluster_of_module.network("off")


def look():
    import os
    import socket

    me = tfmagic.current_task()
    own = me.cluster_spec["worker"][me.index].partition(":")[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        outside = sock.connect_ex(("192.0.2.1", 9))
    names = [socket.gethostbyname(f"host-{n}") for n in range(2)]
    return (
        socket.gethostname(),
        socket.gethostbyname(socket.gethostname()) == own,
        outside,
        names,
        os.getuid(),
    )


def measure_rate(size=3_000_000):
    """Send from worker-2 to worker-0; return the bits a second at which the second half arrives."""
    import socket
    import time

    me = tfmagic.current_task()
    if me.index == 0:
        with socket.create_server(("", _PORT)) as server:
            tfmagic.barrier()
            with server.accept()[0] as connection:
                left = size // 2
                while left > 0:
                    left -= len(connection.recv(1 << 16))
                began, got = time.monotonic(), 0
                while data := connection.recv(1 << 16):
                    got += len(data)
                return got * 8 / (time.monotonic() - began)
    tfmagic.barrier()
    if me.index == 2:
        address = me.cluster_spec["worker"][0].partition(":")[0]
        with socket.create_connection((address, _PORT)) as connection:
            connection.sendall(bytes(size))
    return None


def train_together(steps=3):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable(tf.random.stateless_normal([8, 3], seed=(1, 2)))

    @tf.function
    def step(number):
        def one_replica():
            seed = [tfmagic.current_task().index, number]
            x = tf.random.stateless_normal([16, 8], seed=seed)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weights) ** 2)
            (gradient,) = tape.gradient(loss, [weights])
            mean = tf.distribute.get_replica_context().all_reduce("MEAN", gradient)
            weights.assign_sub(0.1 * mean)

        strategy.run(one_replica)

    for number in range(steps):
        step(tf.constant(number))
    return weights.numpy()


def train_on_servers(steps=5):
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(1.0)

    @tf.function
    def step():
        total.assign(total * 1.1 + 1)

    for _ in range(steps):
        coordinator.schedule(step)
        coordinator.join()
    return total.numpy()


def train_until_told(path):
    """Reduce until a file is there; return the number of steps."""
    import os

    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def step():
        return strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)

    steps = 0
    while not os.path.exists(path):
        step()
        steps += 1
        if steps == 5:
            print("trains", flush=True)
    return steps


def says(cluster, word):
    return lambda: all(word in " ".join(lines) for lines in cluster.logs("worker").values())


def test_tasks_are_spread_over_hosts_with_a_name_and_an_address_each(whole):
    seen = whole.run(look, view="quiet").of("worker")
    assert [host for host, *_ in seen] == ["host-0", "host-0", "host-1", "host-1"]
    assert all(knows_itself for _, knows_itself, *_ in seen)
    assert {tuple(names) for *_, names, _ in seen} == {("10.77.0.1", "10.77.0.2")}
    assert {outside for *_, outside, _, _ in seen} == {101}, "a host reaches the others only"  # ENETUNREACH
    assert {uid for *_, uid in seen} == {os.getuid()}
    rows = whole.status()
    assert [row["host"] for row in rows] == ["host-0", "host-0", "host-1", "host-1"]
    assert [row["address"].partition(":")[0] for row in rows] == ["10.77.0.1"] * 2 + ["10.77.0.2"] * 2


def test_nothing_of_the_hosts_is_reachable_from_outside(whole):
    whole.run(train_together, 1, view="quiet")  # its servers listen on every interface of a host
    own = {address.address for found in psutil.net_if_addrs().values() for address in found}
    assert not any(address.startswith("10.77.") for address in own)
    for row in whole.status():
        assert os.readlink(f"/proc/{row['pid']}/ns/net") != os.readlink("/proc/self/ns/net")
        routes = Path(f"/proc/{row['pid']}/net/route").read_text().splitlines()[1:]
        assert [line.split()[0] for line in routes] == ["eth0"], "the others, and no way out"
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", int(row["address"].rpartition(":")[2]))) != 0


@pytest.mark.parametrize("train", [train_together, pytest.param(train_on_servers, id="ps")])
def test_strategies_train_over_hosts_to_the_numbers_of_one_machine(train):
    shape = {"workers": 2} | ({"ps": 1} if train is train_on_servers else {})
    found = []
    for hosts in ({}, {"hosts": 2, "network": "1gbit"}):
        with tfmagic.Cluster(**shape, **hosts) as cluster:
            found.append(list(cluster.run(train, view="quiet").values()))
    plain, on_hosts = found
    assert np.array_equal(np.array(plain), np.array(on_hosts))


@pytest.mark.parametrize("mbits", [40, pytest.param(800, marks=pytest.mark.soak)])
def test_a_link_has_the_rate_that_was_asked(whole, mbits):
    whole.network(f"{mbits}mbit")
    before = whole.simulated_hosts().bytes_sent()
    size = mbits * 60_000
    rate = whole.run(measure_rate, size, view="quiet")["worker-0"]
    assert 0.9 * mbits < rate / 1e6 < 1.1 * mbits
    after = whole.simulated_hosts().bytes_sent()
    sent = {host: after[host] - before[host] for host in after}
    assert size < sent["host-1"] < 1.2 * size, "worker-2 is the one that sent"
    assert sent["host-0"] < 0.2 * size


def test_a_link_changes_while_a_cell_runs(whole):
    def receive_until_slow():
        import socket
        import threading
        import time

        me = tfmagic.current_task()
        if me.index in (1, 3):
            return None
        if me.index == 2:
            tfmagic.barrier()
            with socket.create_connection(("host-0", _PORT)) as connection:
                try:
                    while True:
                        connection.sendall(bytes(1 << 16))
                except OSError:
                    return None
        with socket.create_server(("", _PORT)) as server:
            tfmagic.barrier()
            with server.accept()[0] as connection:
                threading.Timer(0.5, print, ["receives"], {"flush": True}).start()
                rate, deadline = float("inf"), time.monotonic() + 30
                while rate > 15e6 and time.monotonic() < deadline:
                    began, got = time.monotonic(), 0
                    while time.monotonic() < began + 0.3:
                        got += len(connection.recv(1 << 16))
                    rate = got * 8 / 0.3
                return rate

    job = whole.submit(receive_until_slow, on="worker-0,worker-2")
    wait_until(lambda: "receives" in " ".join(whole.logs("worker-0")["worker-0"]))
    assert whole.network("10mbit", "host-0") == ("host-0",)
    assert [str(link) for link in whole.simulated_hosts().links.values()] == ["10mbit", "off"]
    assert job.result(60)["worker-0"] < 15e6


def test_what_linux_cannot_do_is_refused_before_anything_starts(whole):
    """Of the machines that run this test, some have the emulator of latency and some have not."""

    def round_trip():
        import socket
        import time

        me = tfmagic.current_task()
        if me.index == 0:
            with socket.create_server(("", _PORT)) as server:
                tfmagic.barrier()
                with server.accept()[0] as connection:
                    connection.sendall(connection.recv(1))
                    return None
        tfmagic.barrier()
        if me.index == 2:
            with socket.create_connection(("host-0", _PORT)) as connection:
                began = time.monotonic()
                connection.sendall(b"x")
                connection.recv(1)
                return time.monotonic() - began
        return None

    try:
        whole.network("off,30ms")
    except ClusterSpecError as error:
        assert "sch_netem" in str(error) and "--network 1gbit" in str(error)
        with pytest.raises(ClusterSpecError, match="sch_netem"):
            tfmagic.Cluster(workers=2, hosts=2, network="1gbit,1ms").start()
        return
    assert 0.06 <= whole.run(round_trip, view="quiet")["worker-2"] < 0.2


def test_a_partition_fails_a_collective_and_says_who_was_cut_off(whole, tmp_path):
    job = whole.submit(train_until_told, str(tmp_path / "stop"))
    wait_until(says(whole, "trains"), 60)
    assert whole.faults.partition("worker-3") == ("host-1",)
    assert whole.faults.partition("host-1") == (), "it is cut off already"
    assert [row["cut_off"] for row in whole.status()] == [False, False, True, True]
    with pytest.raises(Exception) as failed:
        job.result(60)
    assert "host-1 was cut off from the others" in " ".join(failed.value.__notes__)
    assert {row["state"] for row in whole.status()} == {"ready"}, "no task has died"
    assert whole.faults.heal() == ("host-1",)
    assert whole.revive() == ()
    assert len(whole.run(train_together, view="quiet")) == 4


def test_a_partition_holds_up_parameter_servers_until_it_is_healed():
    def count_until(path):
        import os

        import tensorflow as tf

        strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.TFConfigClusterResolver()
        )
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            total = tf.Variable(0.0)

        @tf.function
        def step():
            total.assign_add(1.0)

        steps = 0
        while not os.path.exists(path):
            for _ in range(10):
                coordinator.schedule(step)
            coordinator.join()
            if not steps:
                print("trains", flush=True)
            steps += 10
        return steps, float(total.numpy())

    with tfmagic.Cluster(workers=2, ps=1, hosts=4) as cluster:
        stop = cluster.run_folder.folder / "stop"
        job = cluster.submit(count_until, str(stop))
        wait_until(lambda: "trains" in " ".join(cluster.logs("chief-0")["chief-0"]), 60)
        cluster.faults.partition("worker-1")
        wait_until(lambda: "host-2 is cut off" in cluster.news(), 30)
        assert "chief-0 on host-0 waits in coordinator.join" in cluster.news()
        stop.write_text("")
        assert not job.done()
        cluster.faults.heal()
        steps, total = job.result(60)["chief-0"]
        assert total >= steps > 0


def test_faults_of_hosts_come_later_and_at_random(whole):
    places = whole.simulated_hosts()
    assert whole.faults.later(0.05, "partition", ["worker-0"]) == ("host-0",)
    wait_until(lambda: places.cut_off == {"host-0"})
    assert whole.faults.later(0.05, "heal", []) == ("host-0", "host-1")
    wait_until(lambda: not places.cut_off)
    plan = whole.faults.chaos(seed=1, seconds=0.2, every_s=0.05, kinds=("partition",))
    assert plan
    wait_until(lambda: places.cut_off)
    whole.faults.calm()
    assert not places.cut_off
    wait_until(lambda: not any(row["cut_off"] for row in whole.status()))


def test_a_cluster_without_hosts_says_how_to_get_some():
    with tfmagic.Cluster(workers=1) as cluster:
        for change in (cluster.faults.heal, lambda: cluster.network("1gbit")):
            with pytest.raises(TfmagicError, match="no simulated hosts"):
                change()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"isolate": True}, "leave isolate out"),
        ({"backend": "ray"}, "placement"),
        ({"workers": None, "cluster_spec": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}}, "cluster_spec"),
    ],
)
def test_what_does_not_go_with_hosts_is_refused(more, says):
    with pytest.raises(ClusterSpecError, match=says):
        tfmagic.Cluster(**{"workers": 2, "hosts": 2, **more})


def test_without_its_holder_every_host_is_cut_off(tmp_path):
    with tfmagic.Cluster(workers=2, hosts=2) as cluster:
        places = cluster.simulated_hosts()
        os.kill(places.pids()["hosts"], signal.SIGKILL)
        wait_until(lambda: all(row["cut_off"] for row in cluster.status()))
        assert cluster.run(os.getpid, view="quiet")
        with pytest.raises(TfmagicError, match="restart the cluster"):
            places.bytes_sent()


_SCRIPT = """
import os, signal, sys, tfmagic
with tfmagic.Cluster(workers=2, hosts=2, network="1gbit") as cluster:
    def reach_other():
        import socket
        me = tfmagic.current_task()
        with socket.create_server(("", 5000)) as server:
            tfmagic.barrier()
            socket.create_connection((f"host-{1 - me.index}", 5000)).close()
            tfmagic.barrier()
        return socket.gethostname(), os.getuid() == UID
    UID = os.getuid()
    print(*cluster.run(reach_other, view="quiet").values())
    pids = [row["pid"] for row in cluster.status()] + [cluster.simulated_hosts().pids()["hosts"]]
    print(*[os.stat(f"/proc/{pid}/ns/net").st_ino for pid in pids], flush=True)
    if "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("who", "how"),
    [("ordinary", "kill"), ("this", "kill"), pytest.param("ordinary", "end", marks=pytest.mark.soak)],
)
def test_this_user_and_an_ordinary_one_have_hosts_and_nothing_is_left_of_them(who, how):
    words = [sys.executable, "-c", _SCRIPT, how]
    words = as_ordinary_user(*words) if who == "ordinary" else words
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    said, namespaces = done.stdout.splitlines()
    assert said == "('host-0', True) ('host-1', True)"
    inodes = [int(word) for word in namespaces.split()]
    assert len(set(inodes)) == 3
    wait_until(lambda: not _pids_in(inodes))


def test_where_namespaces_are_forbidden_the_error_has_the_line_that_allows_them():
    code = """
    from pathlib import Path
    from tfmagic.system.processes import call_libc
    call_libc("unshare", 0x10000000)  # a user namespace has limits of its own
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text("0 {uid} 1")
    Path("/proc/sys/user/max_net_namespaces").write_text("0")
    import tfmagic
    try:
        tfmagic.Cluster(workers=2, hosts=2).start()
    except tfmagic.LaunchError as error:
        print(error)
    """
    words = [sys.executable, "-c", textwrap.dedent(code).format(uid=os.getuid())]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert "sysctl -w user.max_net_namespaces=10000" in done.stdout, done.stderr
    assert "Nothing was started" in done.stdout and issubclass(LaunchError, TfmagicError)


def test_without_pyroute2_the_error_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "pyroute2.py").write_text("raise ImportError(\"No module named 'pyroute2'\")")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LaunchError, match=r'pyroute2 .*pip install "tfmagic\[hosts\]"\. Nothing was started'):
        tfmagic.Cluster(workers=2, hosts=2).start()


_STEPS = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()

@tf.function
def step():
    return strategy.reduce("SUM", strategy.run(lambda: tf.ones([250_000])), axis=None)

for _ in range(8):
    step()
"""


def test_compare_shows_what_the_network_costs(notebook):
    notebook.run(f"%%tfcluster --workers 2 --compare network=10mbit,off hosts=2,3 --out found{_STEPS}")
    found = notebook.ns["found"]
    assert list(found) == [("10mbit", 2), ("off", 2)]
    assert found.left_out[0].startswith(
        "network 10mbit, 3 hosts was left out: there are more hosts (3) than tasks (2)"
    )
    slow, fast = found.rows
    assert slow.steps == fast.steps == 8
    sent_s = slow.sent_bytes * 8 / 10e6
    assert 1e6 <= slow.sent_bytes < 1.2e6, "a ring of 2 sends what is reduced once"
    assert slow.step_s > 0.8 * sent_s > fast.step_s
    assert slow.communication > 0.5 > fast.communication, "by TensorFlow's profiler"
    text = found._repr_mimebundle_()["text/plain"]
    assert "ms a step" in text and "sent a step and host" in text and "communication" in text


def test_the_magics_show_hosts_links_and_partitions(notebook):
    notebook.run(
        "%%tfcluster --workers 2 --hosts 2 --network 1gbit --out names\nimport socket\nsocket.gethostname()"
    )
    assert list(notebook.ns["names"].values()) == ["host-0", "host-1"]
    assert "host-1" in notebook.run("%tfcluster status")
    assert "host-0, host-1: 1gbit" in notebook.run("%tfcluster network")
    assert "host-0: 1gbit; host-1: no limit" in notebook.run("%tfcluster network host-1 off")
    said = notebook.run("%tfcluster partition worker-1")
    assert "cut host-1 (worker-1) off from the others" in said and "%tfcluster heal host-1" in said
    assert "host-1 (cut off)" in notebook.run("%tfcluster status")
    assert "joined host-1 (worker-1)" in notebook.run("%tfcluster heal")
    assert "no host was cut off" in notebook.run("%tfcluster heal")
    assert "in 0.01 s: partition host-0" in notebook.run("%tfcluster partition host-0 --after 0.01")
    for line, says in {
        "partition host-9": "there is no host 'host-9'",
        "partition worker-7": "its hosts are host-0, host-1",
        "network 5": "RATE",
        "network host-7 1gbit": "there is no host 'host-7'",
    }.items():
        with pytest.raises(UsageError, match=says):
            notebook.run(f"%tfcluster {line}")
    with pytest.raises(UsageError, match="--hosts 1"):
        notebook.run("%%tfcluster --hosts 1\n1")


def test_the_doctor_tries_the_hosts_beforehand(notebook):
    said = notebook.run("%tfcluster doctor --workers 2 --hosts 2 --network 1gbit")
    assert "simulated hosts: 2, link 1gbit" in said
    slow = notebook.run("%tfcluster doctor --workers 2 --hosts 2 --network 1gbit,5ms")
    assert ("no latency and loss" in said) == ("sch_netem" in slow)


def test_an_interrupt_reaches_tasks_that_wait_for_a_host_that_was_cut_off(whole, tmp_path):
    job = whole.submit(train_until_told, str(tmp_path / "stop"))
    wait_until(says(whole, "trains"), 60)
    whole.faults.partition("host-0")
    whole.interrupt()
    with pytest.raises(KeyboardInterrupt):
        job.result(20)
    assert {row["state"] for row in whole.status()} == {"ready"}


@pytest.mark.tfcluster(workers=2, hosts=2, network="1gbit")
def test_the_marker_of_a_test_takes_hosts(tfcluster):
    assert [row["host"] for row in tfcluster.status()] == ["host-0", "host-1"]
    assert not tfcluster.faults.at_work
    tfcluster.network("10mbit")
    assert tfcluster.faults.at_work, "the next test gets another cluster"


def test_a_script_runs_on_hosts(tmp_path):
    script = tmp_path / "where.py"
    script.write_text("import socket\nprint(socket.gethostname())\n")
    words = [sys.executable, "-m", "tfmagic", "run", "--workers", "2", "--hosts", "2", str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = sorted(line.split() for line in done.stdout.splitlines())
    assert lines == [["[worker-0]:", "host-0"], ["[worker-1]:", "host-1"]]


REFUSED = """
%load_ext tfmagic
%tfcluster run --workers 1 kept = 7
try:
    get_ipython().run_line_magic("tfcluster", "restart --workers 2 --hosts 2")
except Exception as error:
    print("refused:", error)
%tfcluster run print(f"kept {kept}")
"""


def test_a_restart_on_a_machine_that_cannot_simulate_hosts_ends_no_cluster(tmp_path):
    script = tmp_path / "refused.ipy"
    script.write_text(REFUSED)
    command = without_namespaces(sys.executable, "-m", "IPython", str(script))
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert re.search(r"refused: .*max_net_namespaces=10000.* Nothing was started", done.stdout), done.stdout
    assert "[worker-0]:    kept 7\n" in done.stdout
