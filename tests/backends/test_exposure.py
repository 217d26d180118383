"""Which programs can reach TensorFlow's servers, and read the files of tfmagic."""

import os
import shutil
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from conftest import wait_until

import tfmagic

pytestmark = pytest.mark.filterwarnings("error")


def own_address():
    """Return an address of this machine that is not loopback, as for another machine."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup and name != "lo"}
    found = [a.address for n in up for a in psutil.net_if_addrs()[n] if a.family == socket.AF_INET]
    assert found, "this machine has only loopback: give it an address, for example of a dummy interface"
    return found[0]


def reachable(host, port):
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except ConnectionRefusedError:
        return False


def listening(pids):
    """Return (pid, port) of the ports on which these processes listen."""
    found = set()
    for pid in pids:
        for connection in psutil.Process(pid).net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.add((pid, connection.laddr.port))
    return found


def pids_of(cluster):
    return [row["pid"] for row in cluster.status()]


def assert_only_loopback(cluster, ports):
    assert ports, "nothing listens: the test looks at nothing"
    for port in ports:
        assert reachable("127.0.0.1", port)
        assert not reachable(own_address(), port)
        with socket.socket() as other:  # an address of the loopback device that is not 127.0.0.1
            assert other.connect_ex(("127.0.0.2", port)) == 0


def train():
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def step():
        return strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)

    return float(step())


def train_on_servers():
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function
    def add():
        total.assign_add(1.0)

    for _ in range(3):
        coordinator.schedule(add)
    coordinator.join()
    return float(total.numpy())


def serve(open_to_all=False):
    """Start a server of the user's own."""
    import socket

    import tensorflow as tf

    if open_to_all:
        tfmagic.allow_other_machines()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    globals()["server"] = tf.distribute.Server({"local": [f"127.0.0.1:{port}"]}, "local", 0)
    return port


def words_of(process):
    """Return the command of a process; "" if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def cluster():
    with tfmagic.Cluster(workers=2) as made:
        yield made


def test_nothing_of_ours_listens(cluster):
    kernel = psutil.Process()

    def find_everyone():
        jupyter = [child for child in kernel.children() if "ipykernel_launcher" in words_of(child)]
        others = {found.pid for each in jupyter for found in (each, *each.children(recursive=True))}
        return {kernel.pid, *(child.pid for child in kernel.children(recursive=True))} - others

    assert set(pids_of(cluster)) < find_everyone()
    wait_until(lambda: listening(find_everyone()) == set())  # a kernel of other tests can end meanwhile


def test_a_strategys_servers_are_reached_from_loopback_only(cluster):
    assert set(cluster.run(train, view="quiet").values()) == {2.0}
    ports = listening(pids_of(cluster))
    assert len(ports) == 2
    assert_only_loopback(cluster, [port for _, port in ports])
    assert set(cluster.run(train, view="quiet").values()) == {2.0}, "and training goes on"


def test_the_servers_of_ps_and_workers_are_reached_from_loopback_only():
    with tfmagic.Cluster(workers=1, ps=1) as cluster:
        assert list(cluster.run(train_on_servers, view="quiet").values()) == [3.0]
        ports = listening(pids_of(cluster))
        assert len(ports) >= 2
        assert_only_loopback(cluster, [port for _, port in ports])


def test_a_task_with_a_fresh_interpreter_is_kept_to_loopback_too(monkeypatch, capsys):
    with tfmagic.Cluster(workers=1) as cluster:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")  # the launcher has imported without it
        cluster.restart()
        assert cluster.state.tasks[cluster.tasks[0]].fresh
        assert "read at the import" in cluster.status()[0]["not_forked"]
        assert "fork" not in capsys.readouterr().err  # that was asked for
        (environ,) = cluster.run(lambda: Path("/proc/self/environ").read_text(), view="quiet").values()
        assert "TF_ENABLE_ONEDNN_OPTS=0" in environ
        (port,) = cluster.run(serve, view="quiet").values()
        assert_only_loopback(cluster, [port])


def test_libraries_below_another_folder_called_tensorflow_are_not_touched(cluster, tmp_path):
    """Conda's environments have names, and Python with all of its libraries lies below."""
    import _socket

    copy = tmp_path / "envs" / "tensorflow" / "lib" / Path(_socket.__file__).name
    copy.parent.mkdir(parents=True)
    shutil.copy(_socket.__file__, copy)

    def count():
        import importlib.machinery
        import importlib.util

        from tfmagic.system import symbol_interposing
        from tfmagic.task.tensorflow import loopback_only

        loader = importlib.machinery.ExtensionFileLoader("_socket", str(copy))
        importlib.util.module_from_spec(importlib.util.spec_from_loader("_socket", loader))
        ours = loopback_only._replacement
        again = symbol_interposing.interpose(loopback_only.tensorflow_folders(), ours, ours)
        return (
            again == loopback_only._State.slots,
            bool(again),
            copy.name in Path("/proc/self/maps").read_text(),
        )

    assert set(cluster.run(count, view="quiet").values()) == {(True, True, True)}


def test_other_servers_of_tensorflow_are_kept_to_loopback_too(cluster):
    def start():
        import tensorflow as tf

        service = tf.data.experimental.service
        dispatcher = service.DispatchServer()
        address = dispatcher.target.partition("://")[2]
        worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
        data = tf.data.Dataset.range(5).apply(service.distribute("parallel_epochs", dispatcher.target))
        globals()["kept"] = dispatcher, worker
        return sorted(int(x) for x in data)

    assert cluster.run(start, on="worker-0", view="quiet")["worker-0"] == [0, 1, 2, 3, 4]
    ports = [port for _, port in listening(pids_of(cluster))]
    assert len(ports) == 2
    assert_only_loopback(cluster, ports)


def test_what_a_cell_opens_by_itself_stays_as_it_is(cluster):
    def listen():
        import http.server

        server = http.server.HTTPServer(("0.0.0.0", 0), http.server.BaseHTTPRequestHandler)
        globals()["web"] = server
        return server.server_port

    ports = cluster.run(listen, view="quiet").values()
    assert all(reachable(own_address(), port) for port in ports)


def read_through(address, path):
    """Read as any process can that reaches the port, since there is no password."""
    import tensorflow as tf

    tf.config.experimental_connect_to_host(address, "local")
    with tf.device("/job:local/task:0/device:CPU:0"):
        return tf.io.read_file(path).numpy()


def test_a_stranger_reads_files_through_a_server_of_plain_tensorflow_and_not_through_ours(cluster, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"for my eyes")
    secret.chmod(0o600)
    for open_to_all in (True, False):  # as TensorFlow does it, as it is with us
        port = cluster.run(serve, open_to_all, on="worker-0", view="quiet")["worker-0"]
        cluster.restart("worker-1")
        address = f"{own_address()}:{port}"
        assert reachable(own_address(), port) == open_to_all
        if open_to_all:
            found = cluster.run(read_through, address, str(secret), on="worker-1", view="quiet")
            assert found["worker-1"] == b"for my eyes"
            cluster.restart("worker-0")
        else:
            with pytest.raises(tfmagic.TaskTimeoutError):  # TensorFlow tries for ever
                cluster.run(read_through, address, str(secret), on="worker-1", view="quiet", timeout=3)


def test_a_server_that_cannot_be_kept_to_loopback_gives_one_line_in_the_log(cluster):
    def refuse():
        import errno

        from tfmagic.task.tensorflow import loopback_only

        class Refusing:
            def __getattr__(self, name):
                return getattr(real, name)

            def setsockopt(self, *args):
                import ctypes

                ctypes.set_errno(errno.EPERM)
                return -1

        real = loopback_only._libc
        loopback_only._libc = Refusing()

    cluster.run(refuse, view="quiet")
    ports = [cluster.run(serve, view="quiet") for _ in range(2)]
    assert all(reachable(own_address(), port) for round_ in ports for port in round_.values())
    log = cluster.run_folder.log_path(cluster.tasks[0]).read_text()
    assert log.count("could not be kept to loopback (Operation not permitted)") == 1
    assert "--isolate" in log


def test_isolated_tasks_are_not_reachable_and_reach_no_other_machine():
    def look_outside():
        import errno
        import socket

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            return errno.errorcode.get(sock.connect_ex(("192.0.2.1", 9)))

    with tfmagic.Cluster(workers=2, isolate=True) as cluster:
        assert set(cluster.run(train, view="quiet").values()) == {2.0}
        ports = {port for pid in pids_of(cluster) for port in ports_in_namespace(pid)}
        assert len(ports) == 2
        for port in ports:
            assert not reachable("127.0.0.1", port) and not reachable(own_address(), port)
        assert set(cluster.run(look_outside, view="quiet").values()) == {"ENETUNREACH"}


def ports_in_namespace(pid):
    """Return the ports with a listener in the network of this process."""
    found = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{name}") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        found |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
    return found


@pytest.mark.parametrize("umask", [pytest.param(0o022, marks=pytest.mark.soak), 0])
def test_state_is_for_its_user_alone_under_any_umask(tmp_path, umask):
    code = f"""
    import os
    os.umask({umask})
    import tfmagic

    def show():
        from IPython.display import display, HTML
        import os
        display(HTML("<b>x</b>"))
        print("x")
        return os.umask(0o022)

    if __name__ == "__main__":
        with tfmagic.Cluster(workers=1) as cluster:
            (seen,) = cluster.run(show).values()
            assert seen == {umask}, "the cells' own files are the user's business"
            cluster.stacks()
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    base = tmp_path / "deep" / "state"
    environ = {**os.environ, "TFMAGIC_STATE_DIR": str(base)}
    subprocess.run([sys.executable, str(script)], env=environ, check=True, timeout=120)
    paths = [base, *base.rglob("*")]
    names = {path.name for path in paths if path.is_file()}
    assert {"run.json", "processes.jsonl", "worker-0.log", "worker-0.stacks", "worker-0.displays"} <= names
    loose = {
        str(path): oct(stat.S_IMODE(path.stat().st_mode)) for path in paths if path.stat().st_mode & 0o077
    }
    assert loose == {}


def test_records_of_cells_are_for_their_user_alone(tmp_path):
    from tfmagic.runs.cell_records import CellRecord, append_record
    from tfmagic.runs.folder import create_run

    before = os.umask(0)
    try:
        run = create_run(tmp_path, "c", {})
        append_record(run, CellRecord(1, "c", "1 worker", ()))
    finally:
        os.umask(before)
    assert stat.S_IMODE((run.folder / "cells.jsonl").stat().st_mode) == 0o600


def test_a_loose_folder_of_runs_is_closed_again(tmp_path):
    from tfmagic.runs.folder import create_run

    (tmp_path / "runs").mkdir(mode=0o777)
    (tmp_path / "runs").chmod(0o777)
    create_run(tmp_path, "c", {})
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == 0o700


def test_control_channels_have_no_name(cluster):
    """No process can connect to a socket that has neither a path nor an abstract name."""
    reapers = [child for child in psutil.Process().children() if "reaper" in words_of(child)]
    inodes = set()
    for pid in [os.getpid(), *(p.pid for k in reapers for p in (k, *k.children(recursive=True)))]:
        for name in os.listdir(f"/proc/{pid}/fd"):
            target = (
                os.readlink(f"/proc/{pid}/fd/{name}") if os.path.lexists(f"/proc/{pid}/fd/{name}") else ""
            )
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    with open("/proc/net/unix") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    ours = [row for row in rows if row[6] in inodes]
    assert len(ours) >= 4
    assert [row[7:] for row in ours if row[7:]] == []
