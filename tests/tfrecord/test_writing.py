"""Shards are written to real files by real processes, without TensorFlow."""

import contextlib
import errno
import functools
import gzip
import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap

import pytest
from conftest import program
from shards_on_disk import RECORDS, names_in, packed, whole_in, write_set

import tfmagic
from tfmagic.tfrecord import (
    ShardError,
    ShardExists,
    ShardsMissing,
    ShardWriteError,
    ShardWriter,
    iterate,
    merge,
    verify,
)


@pytest.mark.parametrize("compression", [None, "gzip", "GZIP", ""])
def test_written_records_are_read_in_order(tmp_path, compression):
    with ShardWriter(tmp_path / "train.tfrecord", task=(3, 8), compression=compression) as writer:
        for record in RECORDS:
            writer.write(record)
        assert writer.records == 1000
        assert names_in(tmp_path) == [".train-00003-of-00008.tfrecord.writing"]
    assert names_in(tmp_path) == ["train-00003-of-00008.manifest.json", "train-00003-of-00008.tfrecord"]
    (path,) = writer.paths
    data = path.read_bytes()
    assert (gzip.decompress(data) if compression else data) == packed(RECORDS)
    assert list(iterate(path)) == RECORDS
    assert verify(path).ok


def test_shards_that_a_task_rolls_are_named_when_their_number_is_known(tmp_path):
    with ShardWriter(tmp_path / "a-*.tfrecord", task=(1, 2), max_bytes=20_000) as writer:
        for record in RECORDS:
            writer.write(record)
    assert [p.name for p in writer.paths] == [
        f"a-00001-of-00002-{part:05}-of-00004.tfrecord" for part in range(4)
    ]
    assert all(path.stat().st_size <= 20_000 for path in writer.paths)
    assert list(iterate(tmp_path / "a-*.tfrecord")) == RECORDS


def test_a_lone_writer_numbers_its_shards_as_those_of_tasks(tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord", max_records=300) as writer:
        for record in RECORDS:
            writer.write(record)
    assert [p.name for p in writer.paths] == [f"a-{part:05}-of-00004.tfrecord" for part in range(4)]
    assert verify(tmp_path / "a.tfrecord").ok and list(iterate(tmp_path / "a.tfrecord")) == RECORDS


def test_a_record_larger_than_a_shard_has_a_shard_of_its_own(tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord", max_bytes=10) as writer:
        for record in (b"x" * 50, b"y" * 50):
            writer.write(record)
    assert len(writer.paths) == 2 and verify(writer.paths).ok


def test_thousands_of_shards_do_not_need_as_many_open_files(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with ShardWriter(tmp_path / "a.tfrecord", max_records=1) as writer:
        for record in RECORDS[:200]:
            writer.write(record)
        assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert len(writer.paths) == 200 and list(iterate(tmp_path / "a.tfrecord")) == RECORDS[:200]


def test_a_failure_inside_with_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), ShardWriter(tmp_path / "a.tfrecord", max_records=2) as writer:
        for _ in range(7):
            writer.write(b"x")
        raise RuntimeError
    assert names_in(tmp_path) == []
    with pytest.raises(ShardError, match="discarded"):
        writer.write(b"x")


def test_a_writer_that_is_not_closed_leaves_nothing(tmp_path):
    writer = ShardWriter(tmp_path / "a.tfrecord")
    writer.write(b"x")
    del writer
    assert names_in(tmp_path) == []


class Message:
    def SerializeToString(self):
        return b"serialized"


def test_messages_and_all_kinds_of_bytes_are_records(tmp_path):
    given = [b"a", bytearray(b"b"), memoryview(b"c"), Message(), b""]
    with ShardWriter(tmp_path / "a.tfrecord") as writer:
        for record in given:
            writer.write(record)
    assert list(iterate(writer.paths)) == [b"a", b"b", b"c", b"serialized", b""]


@pytest.mark.parametrize(
    "record, said",
    [("text", "encode"), ({"x": 1}, "tf.train.Example"), (None, "NoneType"), (3, "int"), (Message, "type")],
)
def test_other_things_are_no_records(tmp_path, record, said):
    with ShardWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(b"kept")
        with pytest.raises(TypeError, match=said):
            writer.write(record)
    assert list(iterate(writer.paths)) == [b"kept"]


WRITE_FOR_EVER = """
    import sys
    from tfmagic.tfrecord import ShardWriter
    writer = ShardWriter(sys.argv[1], max_records=20_000, overwrite=True)
    for n in range(50_000):
        writer.write(b"x" * 100)
    print("wrote", flush=True)
    sys.stdin.read()
"""


def test_a_killed_writer_leaves_nothing_that_is_read_and_the_next_one_cleans_up(tmp_path):
    code, path = textwrap.dedent(WRITE_FOR_EVER), tmp_path / "a.tfrecord"
    with program(sys.executable, "-c", code, path, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "wrote\n"
        with pytest.raises(ShardExists, match="another writer at this moment"):
            ShardWriter(tmp_path / "a.tfrecord", overwrite=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = names_in(tmp_path)
        assert len(left) == 3 and all(name.startswith(".a-00000-of-00001") for name in left)
        with pytest.raises(ShardsMissing, match="left by a killed writer"):
            verify(tmp_path / "a-*")
        with ShardWriter(tmp_path / "a.tfrecord") as writer:
            writer.write(b"new")
        assert names_in(tmp_path) == ["a-00000-of-00001.manifest.json", "a-00000-of-00001.tfrecord"]
        assert list(iterate(writer.paths)) == [b"new"]


def test_a_second_writer_of_one_name_is_an_error(tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord", task=(0, 2)) as first:
        with pytest.raises(ShardExists, match="lose records silently"):
            ShardWriter(tmp_path / "a.tfrecord", task=(0, 2))
        with ShardWriter(tmp_path / "a.tfrecord", task=(1, 2)) as second:
            second.write(b"2")
        first.write(b"1")
    assert list(iterate(tmp_path / "a.tfrecord")) == [b"1", b"2"]


@pytest.mark.parametrize("end", [ShardWriter.close, ShardWriter.discard])
def test_a_writer_that_has_ended_begins_no_other_shard(tmp_path, end):
    writer = ShardWriter(tmp_path / "a.tfrecord")
    end(writer)
    before = names_in(tmp_path)
    with pytest.raises(ShardError, match="is closed|is discarded"):
        writer.next_shard()
    assert names_in(tmp_path) == before


def test_a_fork_of_the_writers_process_takes_nothing_away(tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(b"x")
        if (pid := os.fork()) == 0:
            writer.__exit__(SystemExit, SystemExit(0), None)
            writer.close()
            writer.__del__()
            os._exit(0)
        os.waitpid(pid, 0)
    assert list(iterate(writer.paths)) == [b"x"]


def test_a_fork_of_the_writers_process_cannot_write(tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(b"x")
        if (pid := os.fork()) == 0:
            code = 1
            try:
                writer.write(b"lost: nobody would close it here")
            except ShardError as error:
                code = 0 if "is a fork of it" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
    assert list(iterate(writer.paths)) == [b"x"]


def test_shards_of_a_former_run_do_not_mix_with_new_ones(tmp_path):
    write_set(tmp_path, 4)
    before = names_in(tmp_path)
    for task in [(0, 8), (2, 4), (0, 1)]:
        with pytest.raises(ShardExists, match="a-0000._of_00004|a-0000.-of-00004"):
            ShardWriter(tmp_path / "a.tfrecord", task=task)
    assert names_in(tmp_path) == before
    write_set(tmp_path, 2, b"new", overwrite=True)
    assert list(iterate(tmp_path / "a.tfrecord")) == [b"new", b"new"]
    assert len(names_in(tmp_path)) == 4


def test_overwriting_leaves_the_old_ones_until_the_new_ones_are_whole(tmp_path):
    write_set(tmp_path, 1)
    with pytest.raises(RuntimeError), ShardWriter(tmp_path / "a.tfrecord", overwrite=True) as writer:
        writer.write(b"new")
        raise RuntimeError
    assert list(iterate(tmp_path / "a.tfrecord")) == [b"old"] and verify(tmp_path / "a.tfrecord").ok


def records_in(folder):
    """The set as a reader sees it, and the proof that it is whole."""
    assert verify(folder / "a.tfrecord").ok and len(names_in(folder)) == 4
    return list(iterate(folder / "a.tfrecord"))


def three_shards(folder, record):
    with ShardWriter(folder / "a.tfrecord", max_records=1, overwrite=True) as writer:
        for _ in range(3):
            writer.write(record)


RENAMING = ["rename", "replace", "link", "unlink"]


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("what", ["an interrupt", "an error"])
def test_overwriting_that_is_cut_short_leaves_all_old_shards_or_all_new_ones(
    tmp_path, monkeypatch, what, number
):
    three_shards(tmp_path, b"old")
    calls = itertools.count(1)

    def struck(real, *words, **options):
        if what == "an error" and next(calls) == number:
            raise OSError(errno.EIO, "Input/output error")
        real(*words, **options)
        if what == "an interrupt" and next(calls) == number:
            signal.raise_signal(signal.SIGINT)

    writer = ShardWriter(tmp_path / "a.tfrecord", max_records=1, overwrite=True)
    for _ in range(3):
        writer.write(b"new")
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt, ShardWriteError, OSError):
        for name in RENAMING:
            patch.setattr(os, name, functools.partial(struck, getattr(os, name)))
        writer.close()
    expected = b"new" if writer.manifest is not None else b"old"
    assert records_in(tmp_path) == [expected] * 3
    if what == "an interrupt":
        assert expected == b"new", "it had begun"
    three_shards(tmp_path, b"newer")
    assert records_in(tmp_path) == [b"newer"] * 3


def _records_or_refusal(read, *words):
    try:
        return {*read(*words)}
    except ShardError:
        return {"refused"}


def _merged(source, target):
    merge(source, target)
    return list(iterate(target))


def test_a_kill_while_shards_are_replaced_leaves_no_mix_that_is_read(tmp_path):
    """A child is killed before its first renaming, then before its second ..., until it comes to its end."""
    seen = set()
    for step in itertools.count(1):
        (folder := tmp_path / str(step)).mkdir()
        path = folder / "a.tfrecord"
        three_shards(folder, b"old")
        if not (child := os.fork()):
            calls = itertools.count(1)

            def killed(real, *words, calls=calls, step=step, **options):
                if next(calls) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*words, **options)

            for name in RENAMING:
                setattr(os, name, functools.partial(killed, getattr(os, name)))
            three_shards(folder, b"new")
            os._exit(0)
        is_over = os.waitpid(child, 0)[1] == 0
        found = _records_or_refusal(iterate, path)
        assert len(found) == 1 and found == _records_or_refusal(_merged, path, tmp_path / f"{step}.tfrecord")
        seen |= found
        three_shards(folder, b"newer")
        assert records_in(folder) == [b"newer"] * 3
        if is_over:
            assert found == {b"new"} and seen == {b"old", "refused", b"new"}
            return


def test_shards_are_on_the_disk_before_they_replace_others(tmp_path, synced):
    three_shards(tmp_path, b"old")
    assert synced == []
    three_shards(tmp_path, b"new")
    assert {os.stat(tmp_path / name).st_ino for name in names_in(tmp_path)} < {*synced}
    synced.clear()
    merge(tmp_path / "a.tfrecord", tmp_path / "a-00000-of-00003.tfrecord.all")
    assert synced == []
    merge(tmp_path / "a.tfrecord", tmp_path / "a-00000-of-00003.tfrecord.all", overwrite=True)
    assert synced == [os.stat(tmp_path / "a-00000-of-00003.tfrecord.all").st_ino]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    writer = ShardWriter(tmp_path / "a.tfrecord")
    writer.write(b"x")
    (tmp_path / "a-00000-of-00001.tfrecord").write_bytes(b"foreign")
    with pytest.raises(ShardExists, match="a-00000-of-00001.tfrecord"):
        writer.close()
    assert names_in(tmp_path) == ["a-00000-of-00001.tfrecord"]
    assert (tmp_path / "a-00000-of-00001.tfrecord").read_bytes() == b"foreign"


@pytest.mark.parametrize(
    "arguments",
    [
        {"task": (2, 2)},
        {"task": (0, 0)},
        {"task": 1},
        {"task": (True, 2)},
        {"compression": "zip"},
        {"max_records": 0},
        {"max_bytes": 1.5},
    ],
)
def test_arguments_that_make_no_sense(tmp_path, arguments):
    with pytest.raises(ShardError):
        ShardWriter(tmp_path / "a.tfrecord", **arguments)
    assert names_in(tmp_path) == []


def test_a_full_disk_leaves_nothing(tmp_path):
    code = """
        import resource, signal, sys
        from tfmagic.tfrecord import ShardWriter, ShardWriteError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        writer = ShardWriter(sys.argv[1])
        try:
            for n in range(100_000):
                writer.write(b"x" * 100)
        except ShardWriteError as error:
            print(error.errno, error.filename, "larger than" in str(error))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "a.tfrecord")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{errno.EFBIG} {tmp_path / 'a-00000-of-00001.tfrecord'} True\n"
    assert names_in(tmp_path) == []


FULL = """
    import resource, signal, sys
    from tfmagic.frontends import cli
    from tfmagic.tfrecord import ShardWriter, ShardWriteError
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
    if sys.argv[2] != "write":
        sys.exit(cli.main(["tfrecord", *sys.argv[2:]]))
    with ShardWriter(sys.argv[3], max_records=1) as writer:
        for _ in range(3):
            writer.write(b"x")
"""


@pytest.mark.parametrize(
    "limit, words",
    [
        (20_000, ["salvage", "SRC", "new"]),
        (20_000, ["merge", "SRC", "new"]),
        (20_000, ["split", "--shards", "2", "SRC", "new"]),
        (100, ["write", "new"]),  # the shards are smaller, their manifest is not
    ],
)
def test_a_file_that_does_not_fit_leaves_nothing_and_its_source_is_unharmed(tmp_path, limit, words):
    whole = whole_in(tmp_path)
    before = whole.read_bytes()
    places = {"SRC": str(whole), "new": str(tmp_path / "new")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), str(limit), *(places.get(w, w) for w in words)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "larger than a file" in done.stderr) == (1 if words[0] == "write" else 2, True)
    assert names_in(tmp_path) == [whole.name] and whole.read_bytes() == before


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    writer = ShardWriter(tmp_path / "a.tfrecord")
    real = os.write

    def full(fd, data):
        if fd == writer._file.fd:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    writer.write(b"x")
    with pytest.raises(ShardWriteError, match="disk is full") as caught:
        writer.close()
    assert caught.value.errno == errno.ENOSPC and names_in(tmp_path) == []


def test_no_space_for_the_manifest_leaves_the_former_run_as_it_was(tmp_path, monkeypatch):
    write_set(tmp_path, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    writer = ShardWriter(tmp_path / "a.tfrecord", overwrite=True)
    writer.write(b"new")
    real = os.write

    def full(fd, data):
        if bytes(data).startswith(b"{"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ShardWriteError, match="disk is full"):
        writer.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert writer.manifest is None


def test_a_failure_that_is_passed_over_does_not_look_like_success(tmp_path, monkeypatch):
    real = os.write

    def interrupted(fd, data):
        real(fd, data[:10])
        raise KeyboardInterrupt

    writer = ShardWriter(tmp_path / "a.tfrecord")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "write", interrupted)
        writer.write(bytes(1 << 20))
    with pytest.raises(ShardError, match="is failed"):
        writer.write(b"x")
    with pytest.raises(ShardError, match="nothing of .*a-00000-of-00001.tfrecord was written"):
        writer.close()
    assert names_in(tmp_path) == []
    with ShardWriter(tmp_path / "a.tfrecord") as writer:
        writer.discard()  # on purpose
    assert names_in(tmp_path) == []


def test_a_folder_that_is_not_writable_is_an_error():
    with pytest.raises(ShardWriteError, match="choose another") as caught:
        ShardWriter("/sys/a.tfrecord")  # where root may write no file either
    assert caught.value.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


def test_a_set_whose_suffix_begins_alike_is_left_alone_while_it_is_written(tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord.gz", compression="gzip") as packed_one:
        packed_one.write(b"1")
        packed_one.next_shard()
        packed_one.write(b"2")
        with ShardWriter(tmp_path / "a.tfrecord") as plain:
            plain.write(b"3")
    assert list(iterate(packed_one.paths)) == [b"1", b"2"] and list(iterate(plain.paths)) == [b"3"]


def test_every_error_can_be_pickled():
    made = ShardWriteError(errno.ENOSPC, "full", "/a")
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), again.errno, again.filename) == (ShardWriteError, errno.ENOSPC, "/a")
    for kind in (ShardError, ShardExists, ShardsMissing):
        assert str(pickle.loads(pickle.dumps(kind("why")))) == "why"
        assert issubclass(kind, tfmagic.TfmagicError)
    assert issubclass(ShardsMissing, FileNotFoundError) and issubclass(ShardExists, FileExistsError)
