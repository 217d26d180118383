"""Files behind a URL, on a real server that speaks S3, on the loopback."""

# ruff: noqa: F401, F811 - fixtures are imported by name
import contextlib
import filecmp
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import wait_until
from log_folders import (
    WORKER_0,
    WORKER_1,
    _tensorflow,
    bucket,
    names,
    restored,
    save,
    server,
    store,
    variable,
)

from tfmagic import logdir
from tfmagic.logdir import mirrors, owners
from tfmagic.logdir.mirrors import Mirror, Remote
from tfmagic.protocol.task_context import TaskContext, acting_as

pytestmark = pytest.mark.filterwarnings(
    "ignore:datetime.datetime.utcnow:DeprecationWarning",
    "ignore::ResourceWarning",  # aiobotocore's sockets, closed by the collector
)


def test_files_that_could_not_be_uploaded_at_the_end_stay_for_another_try(bucket, monkeypatch):
    path = logdir.task_logdir(f"{bucket}/run")
    Path(path, "model").write_text("x")
    put = Remote.put

    def fail(self, local, name):
        raise logdir.LogdirError(f"{self.url} cannot be written: gone")

    monkeypatch.setattr(Remote, "put", fail)
    for _ in range(2):
        with pytest.raises(logdir.LogdirError, match=f"gone. All of it is still in {path}: close"):
            path.close()
        assert Path(path, "model").read_text() == "x"
    monkeypatch.setattr(Remote, "put", put)
    path.close()
    assert names(f"{bucket}/run") == {"model"} and not os.path.exists(path)


def test_of_two_runs_with_one_log_folder_the_one_that_began_first_uploads_no_more(bucket, monkeypatch):
    url = f"{bucket}/run"
    with acting_as(WORKER_0, lambda timeout: 0):
        first, again = logdir.task_logdir(url), logdir.task_logdir(url)  # a cell that was run twice
        saved = logdir.checkpoints(variable(), url)  # no rival either
        Path(first, "model").write_text("first")
        again.close()
        first.close()
        saved.save(1)
        saved.close()
        first = logdir.task_logdir(url)
        monkeypatch.setattr(owners, "_tokens", {})  # another process
        with logdir.task_logdir(url) as path:
            Path(path, "model").write_text("the second")
        Path(first).mkdir()  # of a process of its own it would still be there
        Path(first, "model").write_text("longer")
        monkeypatch.setattr(owners, "_tokens", {os.getpid(): "the first one's"})
        told = rf"has begun to write to {url} after this run, which uploads no more.* still in {first}"
        with pytest.raises(logdir.LogdirError, match=told):
            first.close()
    assert Remote(url).read("model") == b"the second"


def test_a_task_that_does_not_keep_writes_nothing_there(bucket):
    with acting_as(WORKER_1, lambda timeout: 0), logdir.task_logdir(f"{bucket}/run") as path:
        Path(path, "model").touch()
        kept = logdir.checkpoints(variable(), f"{bucket}/run")
        kept.save(1)
    assert names(f"{bucket}/run") == set()


def test_event_files_are_there_while_they_grow_and_whole_at_the_end(bucket, tmp_path):
    import tensorflow as tf

    mirror = Mirror(tmp_path, f"{bucket}/logs", every_s=0.05)
    with mirror, tf.summary.create_file_writer(str(tmp_path / "worker-0")).as_default() as writer:
        tf.summary.scalar("loss", 1.0, step=1)
        writer.flush()
        wait_until(lambda: names(f"{bucket}/logs/worker-0"))
        tf.summary.scalar("loss", 2.0, step=2)
    (name,) = names(f"{bucket}/logs/worker-0")
    assert Remote(f"{bucket}/logs/worker-0").read(name) == (tmp_path / "worker-0" / name).read_bytes()


def test_only_changed_files_are_uploaded_again(bucket, tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "ckpt-1_temp").mkdir()
    (tmp_path / "ckpt-1_temp" / "part-00000-of-00001.index").write_text("half")
    (tmp_path / "checkpoint").write_text("state")
    with logdir.mirror(tmp_path, bucket) as mirror:
        assert mirror.push() == ["a", "checkpoint"]
        assert mirror.push() == []
        (tmp_path / "a").write_text("12")
        assert mirror.push() == ["a"]


def test_a_file_that_is_deleted_before_its_turn_is_no_error(bucket, tmp_path, monkeypatch):
    """A CheckpointManager does so while the newer one is uploaded."""
    for name in "abc":
        (tmp_path / name).touch()
    put = Remote.put

    def put_slowly(self, local, name):
        put(self, local, name)
        (tmp_path / "b").unlink(missing_ok=True)

    monkeypatch.setattr(Remote, "put", put_slowly)
    with logdir.mirror(tmp_path, bucket) as mirror:
        assert mirror.push() == ["a", "c"] and mirror.push() == []
    assert names(bucket) == {"a", "c"}


def test_only_files_under_way_are_left_out():
    """Files that are not uploaded at the end are lost with the local folder."""
    kept = {
        "low_temperature/model",
        "my_templates/a",
        "z.zarr/.zarray",
        ".env",
        "x_temp/y",
        "a.tempstate.txt",
    }
    not_yet = {"x_temp/part-00000-of-00001.index", "a/ckpt-1.index.tempstate123", ".train.writing"}
    with logdir.task_logdir("memory://names") as path:
        for name in kept | not_yet:
            Path(path, name).parent.mkdir(exist_ok=True)
            Path(path, name).touch()
    found = Remote("memory://names")._fs.find("/names")
    assert {name.removeprefix("/names/") for name in found} == kept


def test_credentials_and_address_can_be_given_as_storage_options(server, bucket, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    options = {"key": "a", "secret": "b", "endpoint_url": server}
    kept = logdir.checkpoints(variable(), f"{bucket}/run", storage_options=options)
    assert kept.save() == 1 and kept.steps == [1]


def test_a_missing_bucket_is_an_error_before_training(bucket):
    with pytest.raises(
        logdir.LogdirError, match=r"s3://no-such-bucket/run cannot be written: .*Make the bucket first"
    ):
        logdir.checkpoints(variable(), "s3://no-such-bucket/run")


def test_missing_credentials_are_named(bucket, monkeypatch, tmp_path):
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(mirrors, "_OPTIONS", {"s3": {"skip_instance_cache": True}})
    with pytest.raises(logdir.LogdirError, match="credentials"):
        logdir.task_logdir(f"{bucket}/run")


def test_an_address_without_a_server_is_an_error(bucket, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(logdir.LogdirError, match=r"Is its server up.*AWS_ENDPOINT_URL"):
        logdir.task_logdir(f"{bucket}/run", storage_options={"endpoint_url": f"http://127.0.0.1:{port}"})


def test_a_server_that_never_answers_is_given_up(bucket, monkeypatch):
    monkeypatch.setattr(mirrors, "TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        options["config_kwargs"] = {"read_timeout": 1, "retries": {"max_attempts": 0}}
        with pytest.raises(logdir.LogdirError, match=r"no answer within|Is its server up"):
            logdir.task_logdir(f"{bucket}/run", storage_options=options)
    for thread in [t for t in threading.enumerate() if t.name == "tfmagic-bounded"]:
        thread.join(20)


class SlowLine:
    """Forwards connections to a server, so many bytes a second in all; none after `falls_silent_at` bytes."""

    def __init__(self, address, rate, falls_silent_at=1 << 40):
        host, _, port = address.removeprefix("http://").partition(":")
        self.target, self.rate, self.left = (host, int(port)), rate, falls_silent_at
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.over, self.turn, self.sockets, self.threads = threading.Event(), threading.Lock(), [], []

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        self.over.set()
        for end in (self.listener, *self.sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self.threads:
            thread.join(20)

    def _start(self, function, *words):
        self.threads.append(threading.Thread(target=function, args=words))
        self.threads[-1].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
                self.sockets += [near, far]
                self._start(self._pass_on, near, far)
                self._start(self._pass_on, far, near)

    def _pass_on(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self.turn:
                    self.over.wait(len(data) / self.rate)
                    self.left -= len(data)
                if self.left < 0:
                    self.over.wait()
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_a_large_file_takes_as_long_as_it_needs_both_ways(server, bucket, monkeypatch, tmp_path):
    monkeypatch.setattr(mirrors, "TIMEOUT_S", 3.0)  # a piece needs 0.6 s, each way 4 s
    monkeypatch.setattr(mirrors, "_SLOWEST", 1 << 40)
    monkeypatch.setattr(mirrors, "_PIECE_BYTES", 5 << 20)
    (tmp_path / "large").write_bytes(os.urandom(32 << 20))
    with SlowLine(server, 8 << 20) as line:
        options = {"endpoint_url": line.url, "max_concurrency": 1, "default_block_size": 5 << 20}
        remote = Remote(f"{bucket}/run", options)
        remote.put(str(tmp_path / "large"), "large")
        remote.get("large", str(tmp_path / "again"))
    assert filecmp.cmp(tmp_path / "large", tmp_path / "again", shallow=False)


def test_a_piece_that_no_driver_reports_gets_time_by_its_size(server, bucket, monkeypatch, tmp_path):
    (tmp_path / "one-piece").write_bytes(os.urandom(4 << 20))
    with SlowLine(server, 4 << 20) as line, monkeypatch.context() as patched:
        patched.setattr(mirrors, "TIMEOUT_S", 0.5)
        patched.setattr(mirrors, "_SLOWEST", 1 << 20)
        Remote(f"{bucket}/run", {"endpoint_url": line.url}).put(str(tmp_path / "one-piece"), "one-piece")
    assert Remote(f"{bucket}/run").names()["one-piece"] == 4 << 20


def test_a_transfer_of_which_nothing_moves_any_more_is_given_up(server, bucket, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(os.urandom(1 << 18))
    with SlowLine(server, 1 << 30, falls_silent_at=1 << 17) as line, monkeypatch.context() as patched:
        patched.setattr(mirrors, "TIMEOUT_S", 1.0)
        remote = Remote(f"{bucket}/run", {"endpoint_url": line.url})
        with pytest.raises(logdir.LogdirError, match=r"cannot be written: no answer within 2 s"):
            remote.put(str(tmp_path / "file"), "file")
    assert "file" not in Remote(f"{bucket}/run").names()
    for thread in [t for t in threading.enumerate() if t.name == "tfmagic-bounded"]:
        thread.join(20)


@pytest.mark.parametrize(
    ("hidden", "url", "line"),
    [
        ("fsspec", "s3://bucket/run", r'pip install "tfmagic\[remote\]"'),
        ("s3fs", "s3://bucket/run", "pip install s3fs"),
        ("pyarrow", "hdfs://host:1/run", "pip install pyarrow"),
    ],
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(hidden, url, line):
    code = (
        "import sys; sys.modules[sys.argv[1]] = None\n"
        "from tfmagic import logdir\n"
        "try: logdir.task_logdir(sys.argv[2])\n"
        "except logdir.DriverError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, hidden, url], capture_output=True, text=True, check=True
    )
    assert re.match(f"{url}.*{line}", done.stdout), done


def test_an_unknown_kind_of_url_is_refused():
    with pytest.raises(logdir.LogdirError, match="no kind of folder nope://"):
        logdir.task_logdir("nope://host/run")


def test_memory_is_for_one_process_alone():
    save("memory://run", 1)
    assert restored("memory://run") == (1, 1.0)
    task = TaskContext("worker", 0, {"worker": ["a:1", "b:2"]}, True)
    with (
        acting_as(task, lambda timeout: 0),
        pytest.raises(logdir.LogdirError, match="2 tasks of this cluster"),
    ):
        logdir.checkpoints(variable(), "memory://run")


def test_where_half_an_upload_can_be_seen_it_has_another_name_until_it_is_complete(tmp_path, monkeypatch):
    (tmp_path / "model").write_bytes(b"x" * 1000)
    remote = Remote(f"local://{tmp_path}/there")
    seen, move = [], remote._fs.mv
    monkeypatch.setattr(remote._fs, "mv", lambda *names: (seen.append(remote.names()), move(*names)))
    remote.put(str(tmp_path / "model"), "model")
    assert seen == [{"model.uploading": 1000}] and remote.names() == {"model": 1000}


def test_an_upload_that_fails_between_is_named_and_tried_again(bucket, tmp_path, monkeypatch, capfd):
    put, tries = Remote.put, []

    def fail_once(self, local, name):
        tries.append(name)
        if len(tries) == 1:
            raise logdir.LogdirError(f"{self.url} cannot be written: gone")
        put(self, local, name)

    monkeypatch.setattr(Remote, "put", fail_once)
    (tmp_path / "a").write_text("1")
    with logdir.mirror(tmp_path, bucket, every_s=0.05):
        wait_until(lambda: len(tries) == 2)
    assert f"tfmagic: {bucket} cannot be written: gone" in capfd.readouterr().err
    assert names(bucket) == {"a"}


@pytest.mark.parametrize("stream", ["full", "closed", "without a reader"])
def test_a_failed_upload_is_tried_again_where_nobody_reads_of_it(bucket, tmp_path, monkeypatch, stream):
    put, tries = Remote.put, []

    def fail_once(self, local, name):
        tries.append(name)
        if len(tries) == 1:
            raise logdir.LogdirError("gone")
        put(self, local, name)

    monkeypatch.setattr(Remote, "put", fail_once)
    (tmp_path / "a").write_text("1")
    place = "/dev/full" if stream == "full" else os.devnull
    with contextlib.suppress(OSError), open(place, "w", buffering=1) as taken:  # its close can fail, too
        if stream == "closed":
            taken.close()
        elif stream == "without a reader":
            reader, writer = os.pipe()
            os.dup2(writer, taken.fileno())
            os.close(reader)
            os.close(writer)
        monkeypatch.setattr(sys, "stderr", taken)
        with logdir.mirror(tmp_path, bucket, every_s=0.05):
            wait_until(lambda: len(tries) == 2)
    assert len(tries) == 2 and names(bucket) == {"a"}
