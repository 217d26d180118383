"""The server extension in a real Jupyter Server, over HTTP, beside a real cluster."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import wait_until
from prometheus_client.parser import text_string_to_metric_families
from snippets import snippets

import tfmagic
from tfmagic.runs.folder import find_runs

SWITCH = Path(__file__).parents[2] / "jupyter-config" / "jupyter_server_config.d" / "tfmagic.json"
TOKEN = "a-secret"
MIB = 1 << 20


class Reply:
    def __init__(self, response, body):
        self.status, self.headers, self.body = response.status, response.headers, body

    @property
    def json(self):
        return json.loads(self.body)


class JupyterServer:
    """`jupyter server` with settings, a runtime folder and a token of its own.

    Args:
        config: The content of jupyter_server_config.py.
    """

    def __init__(self, folder, config="", **environ):
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        for name in ("config", "runtime", "data", "root"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "config" / "jupyter_server_config.d").mkdir()
        shutil.copy(SWITCH, folder / "config" / "jupyter_server_config.d")
        (folder / "config" / "jupyter_server_config.py").write_text(config)
        folders = {f"JUPYTER_{n.upper()}_DIR": str(folder / n) for n in ("config", "runtime", "data")}
        self.log = folder / "server.log"
        command = [
            *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"),
            *(f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1"),
            *(f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder / 'root'}"),
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **folders, **environ},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, 60)

    def _answers(self):
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        with contextlib.suppress(OSError):
            return self.get("/api/status").status == 200
        return False

    def open(self, path, token=TOKEN, **headers):
        """Send a request; the path is not normalised."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if token is not None:
            headers["Authorization"] = f"token {token}"
        connection.request("GET", path, headers=headers)
        return connection

    def get(self, path, token=TOKEN, **headers):
        with contextlib.closing(self.open(path, token, **headers)) as connection:
            response = connection.getresponse()
            return Reply(response, response.read())

    def metrics(self):
        """Return the values on /metrics by name and labels; a sample that is there twice is an error."""
        reply = self.get("/metrics")
        assert reply.status == 200
        found = {}
        for family in text_string_to_metric_families(reply.body.decode()):
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in found
                found[key] = sample.value
        return found

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture(scope="module")
def server(tmp_path_factory, state_dir):
    started = JupyterServer(tmp_path_factory.mktemp("jupyter"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=2, name="served") as started:
        started.run(print, "hello <script>alert(1)</script>", "\x1b[31mred\x1b[0m", view="text")
        yield started


@pytest.fixture
def run(cluster_of_module, state_dir):
    return [run for run in find_runs(state_dir) if run.cluster == "served"][-1]


@pytest.fixture
def other_run(state_dir):
    """Make a run folder without a kernel; the test fills it."""
    folder = state_dir / "runs" / "20990101-000000-other-1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"pid": os.getpid(), "started": time.time()}))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1]])
def test_without_the_token_there_is_nothing_to_read(server, run, token):
    for path in (f"/tfmagic/runs/{run}/logs/worker-0", "/tfmagic/runs", "/tfmagic/runs/x/logs/y", "/metrics"):
        reply = server.get(path, token=token)
        assert reply.status == 403
        assert b"hello" not in reply.body and b"tfmagic_cluster" not in reply.body


def test_the_commands_of_the_page_work(server, run):
    (log_line,) = snippets("docs/monitoring.md", "text")
    (command,) = snippets("docs/monitoring.md", "bash")
    code = command.code.replace("127.0.0.1:8888", f"127.0.0.1:{server.port}")
    assert code != command.code
    environ = {**os.environ, "TOKEN": TOKEN, "no_proxy": "*"}
    shown = subprocess.run(["bash", "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and "tfmagic_cluster_up{" in shown.stdout, shown.stderr
    assert log_line.code.rpartition(" ")[0] in server.log.read_text()


def test_a_log_is_served_as_it_was_written(server, run):
    content = (run.folder / "worker-0.log").read_bytes()
    reply = server.get(f"/tfmagic/runs/{run}/logs/worker-0")
    assert (reply.status, reply.body) == (200, content)
    assert b"<script>" in content and b"\x1b[31m" in content
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
    assert reply.headers["Tfmagic-Next-Offset"] == str(len(content))
    assert server.get(f"/tfmagic/runs/{run}/logs/worker-0?token={TOKEN}", token=None).body == content


def test_a_part_of_a_log_is_served(server, other_run):
    (other_run / "worker-0.log").write_bytes(b"one\ntwo\nthree\n")
    path = f"/tfmagic/runs/{other_run.name}/logs/worker-0"
    assert server.get(f"{path}?tail=2").body == b"two\nthree\n"
    assert server.get(f"{path}?tail=0").body == b""
    assert server.get(f"{path}?tail=99").body == b"one\ntwo\nthree\n"
    assert server.get(f"{path}?offset=4").body == b"two\nthree\n"
    beyond = server.get(f"{path}?offset=99")
    assert (beyond.status, beyond.body, beyond.headers["Tfmagic-Next-Offset"]) == (200, b"", "14")
    part = server.get(path, Range="bytes=4-6")
    assert (part.status, part.body, part.headers["Content-Range"]) == (206, b"two", "bytes 4-6/14")
    none = server.get(path, Range="bytes=14-")
    assert (none.status, none.body, none.headers["Content-Range"]) == (416, b"", "bytes */14")
    for query in ("tail=-1", "tail=x", "offset=1e3", "offset=", "tail=1&offset=1", "tail=" + "9" * 5000):
        assert server.get(f"{path}?{query}").status == 400
    (other_run / "worker-0.log").write_bytes(b"")
    empty = server.get(path)
    assert (empty.status, empty.body, empty.headers["Content-Type"]) == (
        200,
        b"",
        "text/plain; charset=utf-8",
    )


def test_a_live_log_can_be_followed(server, cluster_of_module, run, tmp_path):
    def speak(folder):
        import pathlib
        import time

        print("first", flush=True)
        while not pathlib.Path(folder, "go").exists():
            time.sleep(0.01)
        print("second", flush=True)
        while not pathlib.Path(folder, "end").exists():
            time.sleep(0.01)

    offset = (run.folder / "worker-1.log").stat().st_size
    future = cluster_of_module.submit(speak, str(tmp_path))
    heard = b""

    def hear():
        nonlocal heard, offset
        reply = server.get(f"/tfmagic/runs/{run}/logs/worker-1?offset={offset}")
        heard, offset = heard + reply.body, int(reply.headers["Tfmagic-Next-Offset"])
        return heard

    try:
        wait_until(lambda: hear() == b"first\n")
        (tmp_path / "go").touch()
        wait_until(lambda: hear() == b"first\nsecond\n")
        assert not future.done()
    finally:
        (tmp_path / "go").touch()
        (tmp_path / "end").touch()
        future.result(20)


ODD_PATHS = [
    "{run}/logs/..",
    "{run}/logs/run.json",
    "{run}/logs/run",
    "{run}/logs/cells",
    "{run}/logs/../run.json",
    "{run}/logs/..%2frun.json",
    "{run}/logs/%2e%2e%2f{run}%2fworker-0",
    "{run}/logs/worker-0%00",
    "{run}/logs/worker-0.log",
    "{run}/logs/%2Fetc%2Fpasswd",
    "{run}/logs//etc/passwd",
    "{run}/logs/worker-9",
    "{run}/logs/worker-%D9%A0",
    "../logs/worker-0",
    "%2e%2e/logs/worker-0",
    "..%2f..%2fsecret/logs/worker-0",
    "%2e/logs/worker-0",
    "{run}%2f/logs/worker-0",
    "{run}%00/logs/worker-0",
    "{run}%252f/logs/worker-0",
    "%5c..%5c/logs/worker-0",
    "{quoted}/logs/worker-0",
    "linked/logs/worker-0",
    "{run}/logs/worker-8",
]


@pytest.mark.parametrize("odd", ODD_PATHS)
def test_no_path_leads_out_of_the_run_folders(server, run, state_dir, odd):
    outside = state_dir.parent / "secret"
    outside.mkdir(exist_ok=True)
    (outside / "worker-0.log").write_text("SECRET")
    (outside / "run.json").write_text("{}")
    linked, file_link = state_dir / "runs" / "linked", run.folder / "worker-8.log"
    linked.symlink_to(outside)
    file_link.symlink_to(outside / "worker-0.log")
    try:
        quoted = str(run.folder).replace("/", "%2F")
        reply = server.get("/tfmagic/runs/" + odd.format(run=run, quoted=quoted))
        assert reply.status == 404
        assert b"SECRET" not in reply.body and b"root:" not in reply.body and b"hello" not in reply.body
    finally:
        linked.unlink()
        file_link.unlink()
    assert server.process.poll() is None


def test_metrics_show_the_running_cluster_whatever_lies_beside_it(server, run, other_run):
    (other_run / "status.json").write_bytes(b'{"tasks": [\xff')

    def value(name, run=run, **labels):
        wanted = {*labels.items(), *{"cluster": run.cluster, "run": str(run)}.items()}
        return next((v for (n, has), v in server.metrics().items() if n == name and wanted <= has), None)

    wait_until(lambda: value("tfmagic_task_state", task="worker-1", state="ready") == 1)
    wait_until(lambda: (value("tfmagic_task_memory_bytes", task="worker-0", kind="unique") or 0) > 1 << 20)
    assert value("tfmagic_cluster_up") == 1 and value("tfmagic_task_restarts_total", task="worker-0") == 0
    found = server.metrics()
    assert found["tfmagic_unreadable_runs", frozenset()] == 1
    assert any(name == "terminal_currently_running_total" for name, _ in found), (
        "the server's own are there, too"
    )
    with tfmagic.Cluster(workers=1, name="brief") as brief:
        folder = brief.run_folder
        wait_until(lambda: value("tfmagic_cluster_up", folder) == 1)
        brief.kill("worker-0")
        wait_until(lambda: value("tfmagic_task_state", folder, task="worker-0", state="dead") == 1)
        brief.restart("worker-0")
        wait_until(lambda: value("tfmagic_task_restarts_total", folder, task="worker-0") == 1)
    assert value("tfmagic_cluster_up", folder) is None


def test_a_notebooks_cells_are_counted_and_its_killed_kernel_is_down(server, kernel, state_dir):
    kernel.run("%load_ext tfmagic")
    kernel.run("%%tfcluster --workers 1 --cluster metered\n1 + 1")
    kernel.error("%%tfcluster --cluster metered\n1 / 0")
    found = server.metrics()
    for verdict in ("done", "failed"):
        cells = frozenset({"cluster": "metered", "verdict": verdict}.items())
        assert found["tfmagic_cell_duration_seconds_count", cells] == 1
    run = next(run for run in find_runs(state_dir) if run.cluster == "metered")
    up = ("tfmagic_cluster_up", frozenset({"cluster": "metered", "run": str(run)}.items()))
    wait_until(lambda: server.metrics().get(up) == 1)
    os.kill(json.loads((run.folder / "run.json").read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: server.metrics()[up] == 0)
    entry = next(e for e in server.get("/tfmagic/runs").json if e["run"] == str(run))
    assert entry["live"] is False and {t["state"] for t in entry["tasks"]} == {"dead"}
    log = server.get(f"/tfmagic/runs/{run}/logs/worker-0")
    assert log.status == 200, "the log of a dead kernel's task can be read"


def test_the_runs_are_listed(server, run, other_run):
    def look():
        return {entry["run"]: entry for entry in server.get("/tfmagic/runs").json}

    wait_until(lambda: look()[str(run)]["cells"].get("ended", 0) >= 1)
    listed = look()
    entry = listed[str(run)]
    assert (entry["cluster"], entry["shape"], entry["live"]) == ("served", "2 workers", True)
    assert abs(entry["started"] - time.time()) < 600
    assert [(t["task"], t["state"]) for t in entry["tasks"]] == [("worker-0", "ready"), ("worker-1", "ready")]
    assert listed[other_run.name] == {
        "run": other_run.name,
        "cluster": "",
        "shape": "",
        "live": False,
        "host": "",
        "tasks": [],
        "started": listed[other_run.name]["started"],
        "cells": {"ended": 0},
    }
    (other_run / "worker-0.log").touch()  # as a run of an older version
    entry = look()[other_run.name]
    assert entry["live"] is False and [t["task"] for t in entry["tasks"]] == ["worker-0"]


HUGE = 320 * MIB  # five times the memory that the server may take for it


def test_a_huge_log_costs_the_server_neither_memory_nor_its_loop(server, other_run):
    with (other_run / "worker-0.log").open("wb") as file:
        file.truncate(HUGE)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe end\n")
    path = f"/tfmagic/runs/{other_run.name}/logs/worker-0"
    process = psutil.Process(server.process.pid)
    server.get(path, Range="bytes=0-100")
    before = process.memory_info().rss
    with contextlib.closing(server.open(path)) as idle, contextlib.closing(server.open(path)) as reader:
        waiting = idle.getresponse()  # reads no further
        response = reader.getresponse()
        total, slowest, highest, began = 0, 0.0, 0, time.monotonic()
        while piece := response.read(16 * MIB):
            total += len(piece)
            asked = time.monotonic()
            assert server.get("/api/status").status == 200
            slowest = max(slowest, time.monotonic() - asked)
            highest = max(highest, process.memory_info().rss)
        assert total == HUGE + 9
        assert waiting.read(5) == b"\0" * 5
    assert slowest < (time.monotonic() - began) / 4  # others are answered in between
    assert highest - before < 64 * MIB
    assert server.get(f"{path}?tail=1").body == b"the end\n"
    assert len(server.get(f"{path}?tail=2").body) == HUGE + 9
    wait_until(lambda: not [f for f in process.open_files() if f.path.endswith(".log") and "other" in f.path])


def test_a_log_that_becomes_shorter_is_cut_off_and_the_server_goes_on(server, other_run):
    log = other_run / "worker-0.log"
    with log.open("wb") as file:
        file.truncate(256 * MIB)
    connection = server.open(f"/tfmagic/runs/{other_run.name}/logs/worker-0")
    with contextlib.closing(connection):
        response = connection.getresponse()
        log.write_bytes(b"")
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            while response.read(MIB):
                pass
            raise http.client.IncompleteRead(b"")  # read(n) ends without one when the connection does
    assert server.get("/api/status").status == 200


def test_a_server_that_cannot_have_it_goes_on_without(tmp_path):
    (tmp_path / "broken").mkdir()
    missing = "import sys; sys.modules['tfmagic.runs.status_reader'] = None"
    (tmp_path / "broken" / "sitecustomize.py").write_text(missing)
    path = f"{tmp_path / 'broken'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    server = JupyterServer(tmp_path, PYTHONPATH=path)
    try:
        assert server.get("/api/status").status == 200
        assert server.get("/metrics").status == 200
        assert server.get("/tfmagic/runs").status == 404
        said = [line for line in server.log.read_text().splitlines() if "tfmagic: " in line]
        assert len(said) == 1 and "tfmagic.runs.status_reader" in said[0]
        assert "tfmagic.server | extension failed" not in server.log.read_text()
    finally:
        server.close()


DENY = """
from jupyter_server.auth import Authorizer
class NoLogs(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return (action, resource) != ("read", "tfmagic")
c.ServerApp.authorizer_class = NoLogs
c.ServerApp.base_url = "/user/me/"
c.TFCluster.state_dir = {state!r}
"""


def test_the_servers_authorizer_address_and_settings_are_heeded(tmp_path, run):
    state = str(tmp_path / "elsewhere")
    server = JupyterServerAt("/user/me", tmp_path, DENY.format(state=state), TFMAGIC_STATE_DIR="")
    try:
        assert server.get("/tfmagic/runs").status == 403
        assert server.get(f"/tfmagic/runs/{run}/logs/worker-0").status == 403
        assert server.get("/metrics").status == 200
        assert f"tfmagic: metrics and logs of the clusters in {state}" in server.log.read_text()
    finally:
        server.close()


class JupyterServerAt(JupyterServer):
    """Start a server below a base address."""

    def __init__(self, base_url, *arguments, **keywords):
        self.base_url = base_url
        super().__init__(*arguments, **keywords)

    def open(self, path, token=TOKEN, **headers):
        return super().open(self.base_url + path, token, **headers)
