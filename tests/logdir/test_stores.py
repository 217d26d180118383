"""The files of checkpoints, in a local folder and on a real server that speaks S3."""

# ruff: noqa: F401, F811 - fixtures are imported by name
import os
import threading
from pathlib import Path

import pytest
from log_folders import _tensorflow, bucket, cut, names, restored, save, server, store, variable

from tfmagic import logdir
from tfmagic.logdir.mirrors import Remote
from tfmagic.logdir.stores import checkpoint_files, missing_files
from tfmagic.system import time_limits

pytestmark = pytest.mark.filterwarnings(
    "ignore:datetime.datetime.utcnow:DeprecationWarning",
    "ignore::ResourceWarning",  # aiobotocore's sockets, closed by the collector
)


def test_names_of_files_show_what_is_missing():
    files = checkpoint_files(
        ["ckpt-1.index", "ckpt-1.data-00001-of-00002", "ckpt-2.data-00000-of-00001", "other"]
    )
    assert {step: bool(missing_files(names)) for step, names in files.items()} == {1: True, 2: True}
    assert missing_files(["ckpt-3.index"]) and not missing_files(
        ["ckpt-3.data-00000-of-00001", "ckpt-3.index"]
    )


def test_tensorflow_alone_has_no_such_file_system(bucket):
    import tensorflow as tf

    with pytest.raises(tf.errors.UnimplementedError, match="File system scheme 's3' not implemented"):
        tf.train.Checkpoint(v=variable()).write(f"{bucket}/run/ckpt-1")


def test_checkpoints_are_kept_there_and_the_oldest_go(bucket):
    save(f"{bucket}/run", 1, 2, 3, max_to_keep=2)
    assert names(f"{bucket}/run") == {"checkpoint"} | {
        f"ckpt-{n}.{suffix}" for n in (2, 3) for suffix in ("index", "data-00000-of-00001")
    }
    assert restored(f"{bucket}/run") == (3, 3.0)


def test_a_remote_checkpoint_that_is_incomplete_is_skipped(bucket, capfd):
    save(f"{bucket}/run", 1, 2, 3)
    remote = Remote(f"{bucket}/run")
    remote.remove("ckpt-3.data-00000-of-00001")
    remote.write("ckpt-2.data-00000-of-00001", b"short")
    assert restored(f"{bucket}/run") == (1, 1.0)
    told = capfd.readouterr().err
    assert "checkpoint 3 in" in told and "checkpoint 2 in" in told


def test_the_index_is_uploaded_after_the_data_and_the_state_last(bucket, monkeypatch):
    order = []
    put = Remote.put
    monkeypatch.setattr(Remote, "put", lambda self, local, name: (order.append(name), put(self, local, name)))
    save(f"{bucket}/run", 1)
    assert order == ["ckpt-1.data-00000-of-00001", "ckpt-1.index", "checkpoint"]


def test_a_save_that_cannot_be_uploaded_leaves_the_one_before(bucket, monkeypatch):
    save(f"{bucket}/run", 1)
    put = Remote.put

    def fail(self, local, name):
        if name.endswith(".index"):
            raise logdir.LogdirError(f"{self.url} cannot be written: gone")
        put(self, local, name)

    monkeypatch.setattr(Remote, "put", fail)
    with pytest.raises(
        logdir.LogdirError, match=r"checkpoint 2 could not be written.*gone.*still that of step 1"
    ):
        save(f"{bucket}/run", 2)
    monkeypatch.setattr(Remote, "put", put)
    assert restored(f"{bucket}/run") == (1, 1.0)
    assert not [name for name in names(f"{bucket}/run") if "ckpt-2" in name]


def test_a_server_that_falls_silent_within_a_save_is_waited_for_once(bucket, monkeypatch):
    """A clean-up would wait as long again, for each file."""
    with logdir.checkpoints(variable(), f"{bucket}/run") as kept:
        kept.save(1)
        silent = threading.Event()
        asked, put, bounded = [], Remote.put, time_limits.call

        def answer(call, seconds):
            if silent.is_set():
                asked.append(call)
                raise TimeoutError
            return bounded(call, seconds)

        monkeypatch.setattr(time_limits, "call", answer)
        monkeypatch.setattr(Remote, "put", lambda self, local, name: (put(self, local, name), silent.set()))
        told = (
            r"checkpoint 2 could not be written to s3://.*no answer within 60 s.*server up.*is passed over; "
        )
        with pytest.raises(logdir.LogdirError, match=told + "the newest is still that of step 1"):
            kept.save(2)
        assert len(asked) == 1
        silent.clear()
        monkeypatch.setattr(Remote, "put", put)
        assert restored(f"{bucket}/run")[0] == 1
        assert kept.save() == 2 and kept.steps == [1, 2]
    assert restored(f"{bucket}/run")[0] == 2


def test_of_two_runs_the_one_that_began_first_gets_an_error(bucket):
    url = f"{bucket}/run"
    first, second = (logdir.checkpoints(variable(float(n)), url) for n in (1, 2))
    first.save()
    second.save()  # as a run that starts again after a kill
    with pytest.raises(
        logdir.LogdirError, match=rf"\(pid {os.getpid()} on .*\) has begun to write to {url} after this run"
    ):
        first.save()
    first.close()
    assert second.save() == 2
    second.close()
    assert restored(url) == (2, 2.0)
    assert first.save(4) == 4
    first.close()


def test_a_checkpoint_that_was_saved_again_meanwhile_is_fetched_again(bucket):
    save(f"{bucket}/run", 1)
    v = variable()
    reader = logdir.checkpoints(v, f"{bucket}/run")
    assert (reader.restore(), float(v[0])) == (1, 1.0)
    with logdir.checkpoints(variable(7.0), f"{bucket}/run") as other:
        other.save(1)
    Path(f"{reader._store.folder}/ckpt-1.data-00000-of-00001").write_bytes(
        b"\0" * 4000
    )  # another process' copy
    assert (reader.restore(), float(v[0])) == (1, 7.0)


def test_a_damaged_local_copy_is_fetched_again(bucket):
    save(f"{bucket}/run", 1)
    kept = logdir.checkpoints(variable(), f"{bucket}/run")
    cut(Path(f"{kept.latest}.data-00000-of-00001"))
    assert kept.restore() == 1
