"""Which folder each task gets, and which bases are refused."""

# ruff: noqa: F401, F811 - fixtures are imported by name
import copy
import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from log_folders import SPEC, WORKER_0, WORKER_1, _tensorflow, bucket, names, saves, server, store, variable

from tfmagic import logdir
from tfmagic.logdir import places
from tfmagic.logdir.errors import LogdirError
from tfmagic.protocol import task_context
from tfmagic.protocol.task_context import TaskContext, acting_as

pytestmark = pytest.mark.filterwarnings(
    "ignore:datetime.datetime.utcnow:DeprecationWarning",
    "ignore::ResourceWarning",  # aiobotocore's sockets, closed by the collector
)


def test_importing_it_loads_nothing_heavy():
    code = "import sys, tfmagic; tfmagic.logdir.checkpoints; print({'tensorflow', 'fsspec', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_outside_a_cluster_it_is_the_base_itself(tmp_path):
    with logdir.task_logdir(tmp_path / "new" / "run") as path:
        assert path == str(tmp_path / "new" / "run") and os.path.isdir(path)
    assert os.path.isdir(path)
    assert logdir.tensorboard_dir(tmp_path) == str(tmp_path)


def test_the_chief_gets_the_base_and_the_others_a_temporary_folder(tmp_path):
    with (
        logdir.task_logdir(tmp_path, task=WORKER_0) as kept,
        logdir.task_logdir(tmp_path, task=WORKER_1) as mine,
    ):
        assert kept == str(tmp_path) != mine
        assert mine == logdir.task_logdir(tmp_path, task=WORKER_1) and "workertemp_1" in mine
        assert os.path.isdir(mine)
    assert not os.path.exists(mine) and os.path.isdir(tmp_path)


@pytest.mark.parametrize(("type_", "is_base"), [("evaluator", True), ("ps", False)])
def test_the_evaluator_looks_at_the_base_and_a_ps_does_not(tmp_path, type_, is_base):
    with logdir.task_logdir(tmp_path, task=TaskContext(type_, 0, SPEC, False)) as path:
        assert (path == str(tmp_path)) is is_base


def test_each_task_has_a_tensorboard_folder(tmp_path):
    assert logdir.tensorboard_dir(tmp_path, task=WORKER_1) == str(tmp_path / "worker-1")


@pytest.mark.parametrize("make", [logdir.task_logdir, logdir.tensorboard_dir, saves])
@pytest.mark.parametrize("below", ["", "/deeper"])
def test_a_base_that_is_a_file_is_refused(tmp_path, make, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(logdir.LogdirError, match=r"file.* is a file"):
        make(f"{tmp_path}/file{below}")


@pytest.mark.parametrize("make", [logdir.task_logdir, logdir.tensorboard_dir, saves])
def test_a_base_that_cannot_be_written_is_refused_before_anything_starts(make):
    with pytest.raises(logdir.LogdirError, match=r"/sys/kernel/run cannot be written: .*Nothing was started"):
        make("/sys/kernel/run")


@pytest.mark.parametrize("bad", ["", b"bytes", 3, None])
def test_a_base_that_is_no_path_is_a_type_error(bad):
    with pytest.raises(TypeError):
        logdir.task_logdir(bad)


@pytest.mark.parametrize("kind", [logdir.LogdirError, logdir.CheckpointError, logdir.DriverError])
def test_the_errors_travel(kind):
    assert str(pickle.loads(pickle.dumps(kind("words")))) == "words"


@pytest.mark.parametrize("make", [logdir.task_logdir, logdir.tensorboard_dir])
def test_a_url_that_lost_a_slash_makes_no_folder(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LogdirError, match=r"give the URL as a str \(s3://bucket/run\)"):
        make(Path("s3://bucket/run"))
    with pytest.raises(LogdirError, match="without one of its slashes"):
        logdir.checkpoints(variable(), "s3:/bucket", task=WORKER_1)
    assert os.listdir(tmp_path) == []
    assert make("./s3:/bucket").startswith(str(tmp_path / "s3:"))


def test_a_file_url_is_a_local_folder_also_as_a_path(tmp_path):
    for base in (f"file://{tmp_path}/run", Path(f"file://{tmp_path}/run")):
        assert logdir.task_logdir(base) == logdir.tensorboard_dir(base) == str(tmp_path / "run")


def test_a_tilde_is_the_home_and_no_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert logdir.task_logdir("~/run") == str(tmp_path / "home" / "run")
    assert logdir.checkpoints(variable(), "~/run", task=WORKER_1).save() == 1
    assert os.listdir(tmp_path) == ["home"]


def test_a_log_folder_of_the_chief_is_uploaded_when_it_is_closed(bucket):
    with logdir.tensorboard_dir(f"{bucket}/tb", task=WORKER_1) as path:
        Path(path, "events").touch()
    assert names(f"{bucket}/tb/worker-1") == {"events"} and not os.path.exists(path)


@pytest.mark.parametrize("kind", ["s3", "gs", "local"])
def test_the_last_base_of_any_kind_is_the_one_that_tensorboard_shows(request, tmp_path, monkeypatch, kind):
    services = dataclasses.replace(task_context.services(), scratch=str(tmp_path / "worker-1-1.scratch"))
    monkeypatch.setattr(task_context, "services", lambda: services)
    url = {"s3": "", "gs": "gs://bucket/tb", "local": str(tmp_path / "tb")}[kind] or request.getfixturevalue(
        "bucket"
    )
    for base in (tmp_path / "first", url):
        logdir.tensorboard_dir(base, task=WORKER_1).close()
    assert (tmp_path / places.POINTER).read_text() == url


def test_a_path_travels_as_the_string_that_it_is(bucket):
    with (
        logdir.tensorboard_dir(f"{bucket}/tb", task=WORKER_1),
        acting_as(WORKER_1, lambda timeout: 0),
    ):
        for found in (logdir.tensorboard_dir(f"{bucket}/tb"), logdir.task_logdir("run")):
            copies = [pickle.loads(pickle.dumps(found)), copy.deepcopy(found)]
            assert copies == [found, found] and {type(one) for one in copies} == {str}
            found.close()
