"""tfmagic.tfrecord without TensorFlow: real files, real damage, real processes."""

import contextlib
import errno
import gzip
import json
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import zlib

import numpy as np
import psutil
import pytest
from conftest import wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

import tfmagic
from tfmagic import cli
from tfmagic.context import TaskContext, acting_as
from tfmagic.tfrecord import (
    Damage,
    ShardError,
    ShardExists,
    ShardsMissing,
    ShardWriteError,
    ShardWriter,
    checksums,
    examples,
    framing,
    iterate,
    merge,
    read_manifests,
    salvage,
    segments,
    split,
    verify,
    verifying,
)

RECORDS = [bytes([n % 256]) * (n % 90) for n in range(1000)]


def packed(records):
    return b"".join(map(framing.frame, records))


def place_of(number, records=RECORDS):
    return len(packed(records[:number]))


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def whole(tmp_path):
    path = tmp_path / "whole.tfrecord"
    path.write_bytes(packed(RECORDS))
    return path


def damaged(tmp_path, data):
    path = tmp_path / "damaged.tfrecord"
    path.write_bytes(data)
    return path


def kinds(found):
    return [damage.kind for damage in found.damages]


# ---- writing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gzip", "GZIP", ""])
def test_what_is_written_comes_back_in_order(tmp_path, compression):
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


def test_the_manifest_has_counts_bytes_and_checksums(tmp_path):
    from crc32c import crc32c

    with ShardWriter(tmp_path / "a.tfrecord", task=(1, 2), max_records=400) as writer:
        for record in RECORDS:
            writer.write(record)
    content = json.loads((tmp_path / "a-00001-of-00002.manifest.json").read_text())
    assert (content["version"], content["task"], content["tasks"]) == (1, 1, 2)
    assert [f["records"] for f in content["files"]] == [400, 400, 200]
    for entry in content["files"]:
        data = (tmp_path / entry["name"]).read_bytes()
        assert (entry["bytes"], entry["crc32c"]) == (len(data), f"{crc32c(data):08x}")
    (manifest,) = read_manifests(tmp_path / "a.tfrecord")
    assert manifest.records == 1000 and manifest == writer.manifest


def test_shards_that_a_task_rolls_are_named_when_their_number_is_known(tmp_path):
    with ShardWriter(tmp_path / "a-*.tfrecord", task=(1, 2), max_bytes=20_000) as writer:
        for record in RECORDS:
            writer.write(record)
    assert [p.name for p in writer.paths] == [
        f"a-00001-of-00002-{part:05}-of-00004.tfrecord" for part in range(4)
    ]
    assert all(path.stat().st_size <= 20_000 for path in writer.paths)
    assert list(iterate(tmp_path / "a-*.tfrecord")) == RECORDS


def test_a_lone_writer_numbers_what_it_rolls_as_shards(tmp_path):
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


def test_a_writer_that_nobody_closes_leaves_nothing(tmp_path):
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


@pytest.fixture
def program():
    """Start a Python program with a pipe to it; ended with the test."""
    started = []

    def start(code, *words):
        command = [sys.executable, "-c", textwrap.dedent(code), *map(str, words)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_killed_writer_leaves_nothing_that_is_read_and_the_next_one_cleans_up(tmp_path, program):
    process = program(WRITE_FOR_EVER, tmp_path / "a.tfrecord")
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


def test_two_writers_of_one_name_are_told(tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord", task=(0, 2)) as first:
        with pytest.raises(ShardExists, match="lose records silently"):
            ShardWriter(tmp_path / "a.tfrecord", task=(0, 2))
        with ShardWriter(tmp_path / "a.tfrecord", task=(1, 2)) as second:
            second.write(b"2")
        first.write(b"1")
    assert list(iterate(tmp_path / "a.tfrecord")) == [b"1", b"2"]


def test_a_fork_of_the_writers_process_takes_nothing_away(tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(b"x")
        if (pid := os.fork()) == 0:
            writer.__del__()
            os._exit(0)
        os.waitpid(pid, 0)
    assert list(iterate(writer.paths)) == [b"x"]


def write_set(folder, count, record=b"old", **more):
    for index in range(count):
        with ShardWriter(folder / "a.tfrecord", task=(index, count), **more) as writer:
            writer.write(record)


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


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    writer = ShardWriter(tmp_path / "a.tfrecord")
    writer.write(b"x")
    (tmp_path / "a-00000-of-00001.tfrecord").write_bytes(b"foreign")
    with pytest.raises(ShardExists, match="a-00000-of-00001.tfrecord"):
        writer.close()
    assert names_in(tmp_path) == ["a-00000-of-00001.tfrecord"]
    assert (tmp_path / "a-00000-of-00001.tfrecord").read_bytes() == b"foreign"


@pytest.mark.parametrize(
    "pattern, said",
    [
        ("gs://bucket/a.tfrecord", "remote"),
        ("nowhere/a.tfrecord", "no folder .*nowhere"),
        ("a.tfrecord/", "name of the shards is missing"),
        (".a.tfrecord", "hidden"),
        ("a-00001-of-00002.tfrecord", "without number"),
        ("[ab]*.tfrecord", "without number"),
        ("", "no path"),
    ],
)
def test_names_that_cannot_be(tmp_path, monkeypatch, pattern, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ShardError, ShardWriteError), match=said):
        ShardWriter(pattern)
    assert names_in(tmp_path) == []


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


def test_a_merge_knows_the_same_compressions(tmp_path, whole):
    with pytest.raises(ShardError, match="compression is None or 'gzip', not 'zip'"):
        merge(whole, tmp_path / "new", compression="zip")
    assert names_in(tmp_path) == [whole.name]
    merge(whole, tmp_path / "new", compression="GZIP")
    assert (tmp_path / "new").read_bytes()[:2] == b"\x1f\x8b" and verify(tmp_path / "new").ok


def test_numbers_of_numpy_are_numbers(tmp_path):
    one, two = np.arange(1, 3)
    with ShardWriter(tmp_path / "a.tfrecord", task=(one, two), max_records=one, max_bytes=two) as writer:
        for record in (b"a", b"b"):
            writer.write(record)
    assert len(writer.paths) == 2 and writer.paths[0].name.startswith("a-00001-of-00002-00000-of-00002")
    assert verify(writer.paths, workers=one).records == 2
    assert len(split(writer.paths, tmp_path / "b.tfrecord", count=two)) == 2


def as_task(kind, index, spec):
    return acting_as(TaskContext(kind, index, spec, False), lambda timeout: 0)


def test_the_place_of_a_task_is_that_among_chief_and_workers(tmp_path):
    spec = {"ps": ["a:1"], "worker": ["a:2", "a:3"], "chief": ["a:4"]}
    for kind, index, place in [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)]:
        with as_task(kind, index, spec), ShardWriter(tmp_path / "a.tfrecord") as writer:
            assert (writer.index, writer.count) == (place, 3)
    with as_task("ps", 0, spec), pytest.raises(ShardError, match=r"ps-0 takes no part.*task=\(index"):
        ShardWriter(tmp_path / "b.tfrecord")


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
    from tfmagic import cli
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
def test_whatever_does_not_fit_leaves_nothing_and_what_was_read_is_unharmed(tmp_path, whole, limit, words):
    before = whole.read_bytes()
    places = {"SRC": str(whole), "new": str(tmp_path / "new")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), str(limit), *(places.get(w, w) for w in words)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "larger than a file" in done.stderr) == (1 if words[0] == "write" else 2, True)
    assert names_in(tmp_path) == [whole.name] and whole.read_bytes() == before


def test_no_space_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    writer = ShardWriter(tmp_path / "a.tfrecord")
    real = os.write

    def full(fd, data):
        if fd == writer._file.pending.fd:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    writer.write(b"x")
    with pytest.raises(ShardWriteError, match="disk is full") as caught:
        writer.close()
    assert caught.value.errno == errno.ENOSPC and names_in(tmp_path) == []


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


def test_a_folder_that_is_not_ours_is_told():
    with pytest.raises(ShardWriteError, match="choose another") as caught:
        ShardWriter("/sys/a.tfrecord")  # where root may write no file either
    assert caught.value.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


def test_sets_that_differ_by_their_suffix_have_manifests_of_their_own(tmp_path):
    for suffix, count in ((".tfrecord", 1), (".tfrecord.gz", 2), (".records", 3)):
        with ShardWriter(tmp_path / f"a{suffix}") as writer:
            for _ in range(count):
                writer.write(b"x")
    assert len(names_in(tmp_path)) == 6
    for suffix, count in ((".tfrecord", 1), (".tfrecord.gz", 2), (".records", 3)):
        (manifest,) = read_manifests(tmp_path / f"a{suffix}")
        assert manifest.records == count and verify(tmp_path / f"a{suffix}").ok


def test_one_file_by_two_names_is_one_file(tmp_path, monkeypatch, whole):
    monkeypatch.chdir(tmp_path)
    assert len(list(iterate([whole, whole.name, f"../{tmp_path.name}/{whole.name}"]))) == 1000


def test_every_error_can_be_pickled():
    made = ShardWriteError(errno.ENOSPC, "full", "/a")
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), again.errno, again.filename) == (ShardWriteError, errno.ENOSPC, "/a")
    for kind in (ShardError, ShardExists, ShardsMissing):
        assert str(pickle.loads(pickle.dumps(kind("why")))) == "why"
        assert issubclass(kind, tfmagic.TfmagicError)
    assert issubclass(ShardsMissing, FileNotFoundError) and issubclass(ShardExists, FileExistsError)


# ---- verifying ----------------------------------------------------------------------------------


def flipped(data, place):
    changed = bytearray(data)
    changed[place] ^= 0x10
    return bytes(changed)


@pytest.mark.parametrize(
    "part, kind", [(3, "length CRC"), (9, "length CRC"), (15, "data CRC"), (-1, "data CRC")]
)
def test_a_flipped_bit_is_found_where_it_is(tmp_path, part, kind):
    start, end = place_of(500), place_of(501)
    path = damaged(tmp_path, flipped(packed(RECORDS), (start if part >= 0 else end) + part))
    found = verify(path)
    assert found.damages == (Damage(str(path), start, end, 500, kind),)
    assert (found.ok, found.records) == (False, 999)
    with pytest.raises(ShardError, match=f"damaged at byte {start:,}"):
        list(iterate(path))


def cut(data, number, behind):
    return data[: place_of(number) + behind]


@pytest.mark.parametrize("behind", [1, 11, 12, 30])
def test_a_copy_that_was_cut_short_is_truncated_also_within_a_header(tmp_path, behind):
    path = damaged(tmp_path, cut(packed(RECORDS), 500, behind))
    os.utime(path, (0, 0))
    found = verify(path)
    start = place_of(500)
    assert found.damages == (Damage(str(path), start, start + behind, 500, "truncated"),)


def test_a_copy_that_was_cut_a_moment_ago_may_still_grow(tmp_path):
    path = damaged(tmp_path, cut(packed(RECORDS), 500, 5))
    assert "perhaps a process elsewhere" in verify(path).damages[0].detail


def test_a_file_that_a_process_writes_is_being_written(tmp_path, program):
    path = damaged(tmp_path, cut(packed(RECORDS), 500, 5))
    process = program("import sys; f = open(sys.argv[1], 'ab'); print(1, flush=True); sys.stdin.read()", path)
    process.stdout.readline()
    (damage,) = verify(path).damages
    assert damage.kind == "being written" and f"by pid {process.pid}" in damage.detail
    with path.open("ab"):
        (damage,) = verify(path).damages
    assert "two writers" in damage.detail
    process.kill()
    process.wait()
    assert kinds(verify(path)) == ["truncated"]


def test_damage_in_several_places_is_found_in_all_of_them(tmp_path):
    data = packed(RECORDS)
    for number in (10, 400, 401, 700):
        data = flipped(data, place_of(number) + (14 if number != 700 else 2))
    data = data[: place_of(990) + 3]
    found = verify(damaged(tmp_path, data))
    assert [(d.record, d.kind) for d in found.damages] == [
        (10, "data CRC"),
        (400, "data CRC"),
        (401, "data CRC"),
        (700, "length CRC"),
        (989, "truncated"),
    ]
    assert found.records == 986


def test_foreign_and_empty_files_are_named(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "b").write_bytes(b"hello, this is a text and no records\n" * 50)
    (tmp_path / "c").write_bytes(random.Random(1).randbytes(300_000))
    (tmp_path / "d").write_bytes(bytes(100_000))
    (tmp_path / "e").write_bytes(b"PK")
    found = verify([tmp_path / name for name in "abcde"])
    assert kinds(found) == ["empty", *3 * ["not a TFRecord file"], "truncated"]
    assert b"hello" in eval(found.damages[1].detail.partition("with ")[2])


def test_what_is_no_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found = verify(tmp_path / "pipe")
    assert kinds(found) == ["unreadable"] and "no ordinary file" in found.damages[0].detail
    with pytest.raises(ShardsMissing, match="nothing matches"):
        verify(tmp_path / "nope")


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_compressed_files_are_verified_and_their_damage_is_named(tmp_path, pack):
    rng = random.Random(1)
    records = [rng.randbytes(100) for _ in range(5000)]
    data = pack(packed(records))
    assert verify(damaged(tmp_path, data)).records == 5000
    (damage,) = verify(damaged(tmp_path, data[: len(data) // 2])).damages
    assert damage.kind == "compressed stream" and "cut short" in damage.detail
    assert 2000 < damage.record < 3000
    broken = verify(damaged(tmp_path, flipped(data, len(data) // 2)))
    assert "compressed stream" in kinds(broken) and broken.damages[-1].path.endswith("damaged.tfrecord")
    inner = flipped(packed(records), place_of(70, records) + 20)
    assert kinds(verify(damaged(tmp_path, pack(inner)))) == ["data CRC"]


def test_several_gzip_members_are_one_stream(tmp_path):
    data = gzip.compress(packed(RECORDS[:10])) + gzip.compress(packed(RECORDS[10:]))
    path = damaged(tmp_path, data)
    assert verify(path).ok and list(iterate(path)) == RECORDS


def test_what_is_lost_without_a_trace_is_seen_by_the_manifest(tmp_path):
    write_set(tmp_path, 3)
    with ShardWriter(tmp_path / "b.tfrecord") as writer:
        for record in RECORDS:
            writer.write(record)
    (path,) = writer.paths
    os.truncate(path, place_of(400))
    found = verify(tmp_path / "b-*")
    assert kinds(found) == ["count"] and "1,000 records were written, 400" in found.damages[0].detail
    (tmp_path / "a-00001-of-00003.tfrecord").unlink()
    (damage,) = verify(tmp_path / "a.tfrecord").damages
    assert damage.kind == "missing" and damage.path.endswith("a-00001-of-00003.tfrecord")
    path.write_bytes(packed(RECORDS[::-1]))
    assert kinds(verify(path)) == ["checksum"]


def test_a_writer_of_nothing_writes_a_file_that_is_whole(tmp_path):
    for compression in (None, "gzip"):
        with ShardWriter(tmp_path / f"{compression}.tfrecord", compression=compression) as writer:
            pass
        assert verify(writer.paths).ok and list(iterate(writer.paths)) == []


def test_large_files_are_cut_and_joined_by_several_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(verifying, "_SEGMENT", 10_000)
    inner = packed(RECORDS[:300])  # records that hold records: a cut falls into them
    records = [*RECORDS, inner, *RECORDS, inner]
    data = packed(records)
    for number in (20, 999, 1500):
        data = flipped(data, place_of(number, records) + 14)
    path = damaged(tmp_path, data + b"\0" * 50_000)
    alone = verify(path, workers=1)
    assert verify(path, workers=2).files == alone.files
    assert verify(path).files == alone.files  # in threads
    monkeypatch.setattr(verifying, "_SEGMENT", 1 << 30)
    whole = verify(path, workers=1)
    assert whole.files == alone.files
    assert [d.record for d in whole.damages] == [20, 999, 1500, 2002] and whole.records == 1999


def test_verifying_in_processes_does_not_run_the_users_main_again(tmp_path):
    (tmp_path / "numpy.py").write_text("raise SystemExit('a module of the folder was imported')")
    for name in "abc":
        (tmp_path / f"{name}.tfrecord").write_bytes(packed(RECORDS))
    script = tmp_path / "script.py"
    script.write_text(
        "print('main runs')\nimport sys; sys.path.pop(0)\nfrom tfmagic.tfrecord import verify\n"
        "found = verify('*.tfrecord', workers=3)\nprint(found.ok, found.records)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "main runs\nTrue 3000\n" and done.stderr == ""


def test_a_process_that_dies_meanwhile_is_told(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).write_bytes(packed(RECORDS))
    started, look_at = [], segments.look_at

    def start(_start=segments._start):
        started.append(_start())
        return started[-1]

    def look_at_late(segment):
        wait_until(lambda: started[0].poll() is not None)
        return look_at(segment)

    dying = "import os, sys; input(); print('ready', flush=True); input(); os._exit(7)"
    monkeypatch.setattr(segments, "_SERVE", dying)
    monkeypatch.setattr(segments, "_start", start)
    monkeypatch.setattr(segments, "look_at", look_at_late)
    with pytest.raises(tfmagic.TfmagicError, match="exit code 7.*workers=1"):
        verify([tmp_path / "a", tmp_path / "b"], workers=2)


def test_the_findings_read_well(tmp_path, whole):
    path = damaged(tmp_path, flipped(packed(RECORDS), place_of(500) + 14))
    found = verify([whole, path])
    text = str(found)
    assert f"ok      {whole}: 1,000 records" in text
    assert f"data CRC at byte {place_of(500):,} (record 500)" in text and "2 files, 1 damaged" in text
    assert "<table>" in found._repr_html_() and "damaged.tfrecord" in found._repr_html_()


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.one_of(st.just(40), st.integers(0, 3000)), min_size=300, max_size=700),
    seed=st.integers(0, 1 << 30),
)
def test_the_checksum_of_a_stretch_follows_from_those_of_its_records(lengths, seed):
    import numpy as np
    from crc32c import crc32c

    rng = random.Random(seed)
    records = [rng.randbytes(n) for n in lengths]
    window = rng.randbytes(seed % 50) + packed(records)
    borders = np.cumsum([seed % 50, *(len(r) + framing.FRAME for r in records)])
    places, after = borders[:-1], int(borders[-1])
    assert checksums.count_lengths(window, places, after) == len(records)
    stretch = np.frombuffer(window, np.uint8)[places[0] :]
    assert checksums._expected(stretch, places - places[0], len(stretch)) == crc32c(stretch)
    bad = sorted(rng.sample(range(len(records)), 3))
    for number in bad:
        at = int(borders[number + 1]) - 1 - rng.randrange(lengths[number] + 4)
        window = flipped(window, at)
    assert checksums.find_damaged(window, places, after) == bad


def helpers():
    """Those of verify: a launcher that other tests share is a child of this process as well."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # one that has just ended
            found += [child] if "tfmagic.tfrecord.segments" in " ".join(child.cmdline()) else []
    return found


def test_a_process_that_is_killed_while_it_verifies_is_named_and_nothing_hangs(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(packed(RECORDS))
    slow = tmp_path / "b"  # zeros that take much longer to unpack than the test lasts
    slow.write_bytes(gzip.compress(packed([bytes(1 << 20)] * 16)) * 2000)
    killed = []

    def look_at(segment):
        """Ours: when the other process has the slow file open, kill it."""
        assert segment.path == str(tmp_path / "a")
        (other,) = helpers()
        wait_until(lambda: str(slow) in [file.path for file in other.open_files()])
        other.send_signal(signal.SIGKILL)
        killed.append(other.pid)
        return real(segment)

    real = segments.look_at
    monkeypatch.setattr(segments, "look_at", look_at)
    with pytest.raises(tfmagic.TfmagicError, match=r"which verified .*/b, was killed \(SIGKILL\)") as caught:
        verify([tmp_path / "a", slow], workers=2)
    assert f"process {killed[0]}," in str(caught.value) and helpers() == []


def test_a_process_that_dies_before_it_has_begun_is_told_too(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).write_bytes(packed(RECORDS))
    taken = threading.Event()
    real = segments._Asker._take

    def take(asker):
        asker.process.kill()
        asker.process.wait()  # so that not even the question can be written
        number = real(asker)
        taken.set()
        return number

    def look_at(segment):
        assert taken.wait(20)
        return look(segment)

    look = segments.look_at
    monkeypatch.setattr(segments._Asker, "_take", take)
    monkeypatch.setattr(segments, "look_at", look_at)
    with pytest.raises(tfmagic.TfmagicError, match=r"which verified .*/b, was killed"):
        verify([tmp_path / "a", tmp_path / "b"], workers=2)


def test_an_answer_of_megabytes_comes_through_the_pipe(tmp_path, monkeypatch):
    record = framing.frame(b"x" * 4)
    (tmp_path / "a").write_bytes(record)
    (tmp_path / "b").write_bytes((flipped(record, 13) + record) * 20_000)
    expected = verify([tmp_path / "a", tmp_path / "b"], workers=1)
    answered = threading.Event()

    def look_there(*words):
        try:
            return there(*words)
        finally:
            answered.set()

    def look_at(segment):
        assert segment.path == str(tmp_path / "a") and answered.wait(30)
        return here(segment)

    there, here = segments._look_there, segments.look_at
    monkeypatch.setattr(segments, "_look_there", look_there)
    monkeypatch.setattr(segments, "look_at", look_at)
    found = verify([tmp_path / "a", tmp_path / "b"], workers=2)
    assert found.files == expected.files and len(found.damages) == 20_000


def test_a_process_that_starts_late_takes_nothing_of_another_call(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(packed(RECORDS))
    parts = [segments.Segment(str(tmp_path / name), "") for name in "ab"]
    with segments.Lookers(2) as lookers:  # which is still starting
        lookers.look(parts)
        for _ in range(2000):
            assert len(lookers.look(parts[:1])) == 1
            if not lookers.threads[0].is_alive():
                break


def test_it_is_said_on_which_process_verify_waits(tmp_path, monkeypatch, caplog):
    (tmp_path / "a").write_bytes(packed(RECORDS))
    (tmp_path / "b").write_bytes(gzip.compress(packed([bytes(1 << 20)] * 16)) * 2000)

    def look_at(segment):
        (other,) = helpers()
        wait_until(lambda: str(tmp_path / "b") in [file.path for file in other.open_files()])
        other.suspend()
        stopper.start()
        return real(segment)

    def end():
        wait_until(lambda: "still waits" in caplog.text)
        helpers()[0].kill()

    real, stopper = segments.look_at, threading.Thread(target=end)
    monkeypatch.setattr(segments, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(segments, "look_at", look_at)
    with pytest.raises(tfmagic.TfmagicError, match="was killed"):
        verify([tmp_path / "a", tmp_path / "b"], workers=2)
    stopper.join()
    assert f"which looks at {tmp_path / 'b'}" in caplog.text


def test_some_shards_of_a_whole_set_can_be_verified_alone(tmp_path):
    write_set(tmp_path, 4)
    assert verify([tmp_path / f"a-0000{n}-of-00004.tfrecord" for n in (1, 2)]).ok
    with pytest.raises(ShardError, match="not among the files: .*a-00000-of-00004"):
        merge(tmp_path / "a-0000[12]-*", tmp_path / "merged")


def test_a_shard_of_a_lone_writer_is_held_against_the_manifest_by_itself(tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord", max_records=2) as writer:
        for record in RECORDS[:6]:
            writer.write(record)
    os.truncate(writer.paths[2], place_of(5) - place_of(4))  # at a record's edge
    assert kinds(verify(writer.paths[2])) == ["count"] and verify(writer.paths[1]).ok


# ---- salvaging ----------------------------------------------------------------------------------


def test_everything_behind_damage_is_saved(tmp_path):
    data = flipped(flipped(packed(RECORDS), place_of(100) + 2), place_of(500) + 14)
    src = damaged(tmp_path, data[:-3])
    before = src.read_bytes()
    report = salvage(src, tmp_path / "saved")
    expected = [r for n, r in enumerate(RECORDS) if n not in (100, 500, 999)]
    assert list(iterate(tmp_path / "saved")) == expected
    assert (report.records, report.ok, src.read_bytes() == before) == (997, False, True)
    assert [(d.offset, d.end, d.kind) for d in report.lost] == [
        (place_of(100), place_of(101), "length CRC"),
        (place_of(500), place_of(501), "data CRC"),
        (place_of(999), len(data) - 3, "truncated"),
    ]
    assert report.lost_bytes + report.bytes == len(data) - 3
    assert "997 records" in str(report)


def test_bytes_that_are_missing_cost_only_the_records_that_they_hit(tmp_path):
    data = packed(RECORDS)
    gap = data[: place_of(100) + 20] + data[place_of(102) + 5 :]
    salvage(damaged(tmp_path, gap), tmp_path / "saved")
    assert list(iterate(tmp_path / "saved")) == RECORDS[:100] + RECORDS[103:]
    long = [b"a" * 50, b"b" * 100_000, *RECORDS]
    whole = packed(long)
    gap = whole[: 66 + 12 + 5000] + whole[66 + 100_016 :]  # the length of the second covers all that follows
    report = salvage(damaged(tmp_path, gap), tmp_path / "saved", overwrite=True)
    assert list(iterate(tmp_path / "saved")) == [long[0], *RECORDS]
    assert report.lost_bytes == 12 + 5000


def test_a_hole_of_zeros_is_passed_at_the_speed_of_memory(tmp_path):
    src = tmp_path / "hole"
    with src.open("wb") as file:
        file.write(packed(RECORDS[:500]))
        file.seek(200 << 20, os.SEEK_CUR)
        file.write(packed(RECORDS[500:]))
    report = salvage(src, tmp_path / "saved")
    assert list(iterate(tmp_path / "saved")) == RECORDS
    assert report.lost_bytes == 200 << 20


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_is_broken_every_untouched_record_is_saved_and_none_invented(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("s")
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    records = [rng.randbytes(rng.randrange(200)) for _ in range(60)]
    raw = bytearray(packed(records))
    touched = set()
    for _ in range(data.draw(st.integers(1, 4))):
        at, size = rng.randrange(len(raw)), rng.randrange(1, 300)
        raw[at : at + size] = rng.randbytes(len(raw[at : at + size]))
        borders = [(place_of(n, records), place_of(n + 1, records)) for n in range(60)]
        touched |= {n for n, (a, b) in enumerate(borders) if a < at + size and at < b}
    (folder / "a").write_bytes(raw)
    untouched = [r for n, r in enumerate(records) if n not in touched]
    if not untouched:
        return
    salvage(folder / "a", folder / "b")
    saved = list(iterate(folder / "b"))
    assert [r for r in saved if r in records] == saved
    assert [r for r in untouched if r in saved] == untouched


def test_of_a_broken_gzip_stream_everything_before_is_saved(tmp_path):
    rng = random.Random(2)
    records = [rng.randbytes(500).hex().encode() for _ in range(1000)]
    data = gzip.compress(packed(records))
    middle = len(data) // 2
    src = damaged(tmp_path, data[:middle] + rng.randbytes(1000) + data[middle + 1000 :])
    report = salvage(src, tmp_path / "saved")
    saved = list(iterate(tmp_path / "saved"))
    assert saved == records[: len(saved)] and 450 < len(saved) < 510
    assert report.lost[-1].kind == "compressed stream"
    assert (tmp_path / "saved").read_bytes()[:2] == b"\x1f\x8b"


def test_salvage_refuses_what_would_harm(tmp_path, whole):
    (tmp_path / "link").symlink_to(whole)
    for dst in (whole, tmp_path / "link", tmp_path / "x" / ".." / whole.name):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(ShardError, match="one file"):
            salvage(whole, dst, overwrite=True)
    (tmp_path / "there").write_bytes(b"mine")
    with pytest.raises(ShardExists, match="overwrite=True"):
        salvage(whole, tmp_path / "there")
    src = damaged(tmp_path, b"no records at all, but a text of some length")
    with pytest.raises(ShardError, match="no record of .*damaged.tfrecord.*Nothing was written"):
        salvage(src, tmp_path / "new")
    assert (tmp_path / "there").read_bytes() == b"mine" and not (tmp_path / "new").exists()
    with pytest.raises(ShardsMissing, match="no file"):
        salvage(tmp_path / "nope", tmp_path / "new")


# ---- merging and splitting ----------------------------------------------------------------------


def test_split_and_merge_keep_the_order(tmp_path, whole):
    assert [p.name for p in split(whole, tmp_path / "s.tfrecord", count=3)] == [
        f"s-0000{n}-of-00003.tfrecord" for n in range(3)
    ]
    assert [file.records for file in verify(tmp_path / "s-*").files] == [333, 333, 334]
    assert len(split(whole, tmp_path / "r.tfrecord", records=400, compression="gzip")) == 3
    for name in ("s", "r"):
        assert merge(tmp_path / f"{name}-*", tmp_path / f"{name}-merged") == 1000
        assert (tmp_path / f"{name}-merged").read_bytes() == whole.read_bytes()


def test_nothing_is_left_of_a_merge_or_split_of_damaged_files(tmp_path, whole):
    bad = damaged(tmp_path, flipped(packed(RECORDS), place_of(500) + 14))
    before = names_in(tmp_path)
    with pytest.raises(ShardError, match=f"damaged.tfrecord is damaged at byte {place_of(500):,}"):
        merge([whole, bad], tmp_path / "merged")
    with pytest.raises(ShardError, match="damaged at byte"):
        split(bad, tmp_path / "s.tfrecord", records=100)
    with pytest.raises(ShardError, match="which cannot be 2000 shards"):
        split(whole, tmp_path / "s.tfrecord", count=2000)
    with pytest.raises(ShardError, match="one of the files"):
        merge(whole, whole, overwrite=True)
    assert names_in(tmp_path) == before


def test_records_of_all_sizes_are_iterated(tmp_path):
    rng = random.Random(3)
    records = [rng.randbytes(n) for n in (0, 1, 3 << 20, 5, 1 << 20, 0, 70_000)]
    path = damaged(tmp_path, packed(records))
    assert list(iterate(path)) == records and verify(path).ok
    path.write_bytes(packed(records)[:-1])
    with pytest.raises(ShardError, match="damaged at byte"):
        list(iterate(path))


# ---- examples -----------------------------------------------------------------------------------


def varint(number):
    number &= (1 << 64) - 1
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(name, kind, content):
    return field(1, field(1, name) + field(2, field(kind, content)))


def test_examples_are_read_without_tensorflow():
    features = (
        feature(b"text", 1, field(1, b"a") + field(1, b"\xff"))
        + feature(b"x", 2, field(1, struct.pack("<2f", 1.5, -2)))
        + feature(b"n", 3, field(1, varint(7) + varint(-1)))
        + feature(b"old", 3, b"\x08" + varint(5) + b"\x08" + varint(6))
        + feature(b"none", 2, b"")
    )
    assert examples.parse_example(field(1, features)) == {
        "text": [b"a", b"\xff"],
        "x": [1.5, -2.0],
        "n": [7, -1],
        "old": [5, 6],
        "none": [],
    }


@pytest.mark.parametrize("data", [b"hello world", b"\xff" * 20, b"\x0a\x05ab", field(2, b"x")])
def test_what_is_no_example_is_told(data):
    with pytest.raises(ValueError):
        examples.parse_example(data)


# ---- the command line ---------------------------------------------------------------------------


def command(*words):
    return cli.main(["tfrecord", *map(str, words)])


def test_the_command_line_verifies_and_salvages(tmp_path, whole, capsys):
    bad = damaged(tmp_path, flipped(packed(RECORDS), place_of(500) + 14))
    assert command("verify", whole) == 0 and "all whole" in capsys.readouterr().out
    assert command("verify", "--json", whole, bad) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["ok"] is False
    (damage,) = [d for file in content["files"] for d in file["damages"]]
    assert (damage["path"], damage["offset"], damage["record"]) == (str(bad), place_of(500), 500)
    assert command("salvage", bad, tmp_path / "saved") == 1
    assert command("verify", tmp_path / "saved") == 0
    assert command("salvage", whole, tmp_path / "saved") == 2
    assert "overwrite=True" in capsys.readouterr().err
    assert command("verify", tmp_path / "nope-*") == 2
    with pytest.raises(SystemExit) as ended:
        command("nope")
    assert ended.value.code == 2


def test_the_exit_code_tells_damage_from_what_cannot_be_done(tmp_path, whole, capsys):
    bad = damaged(tmp_path, flipped(packed(RECORDS), place_of(500) + 14))
    (tmp_path / "text").write_text("no records at all, but a text of some length")
    for code, words in [
        (1, ("cat", bad)),
        (1, ("merge", bad, tmp_path / "new")),
        (1, ("split", "--shards", "2", bad, tmp_path / "new")),
        (1, ("salvage", tmp_path / "text", tmp_path / "new")),
        (2, ("split", "--shards", "2000", whole, tmp_path / "new")),
        (2, ("salvage", whole, whole)),
        (2, ("merge", whole, tmp_path / "no" / "new")),
        (2, ("verify", "gs://bucket/a.tfrecord")),
        (2, ("salvage", tmp_path, tmp_path / "new")),
    ]:
        assert command(*words) == code, words
        assert capsys.readouterr().err.startswith(f"python -m tfmagic tfrecord {words[0]}: ")
    assert names_in(tmp_path) == ["damaged.tfrecord", "text", "whole.tfrecord"]


def test_the_command_line_prints_splits_and_merges(tmp_path, capsys):
    features = feature(b"text", 1, field(1, b"a") + field(1, b"\xff")) + feature(b"n", 3, field(1, varint(7)))
    path = damaged(tmp_path, packed([field(1, features), b"plain text", b"\0\1"]))
    assert command("cat", "--json", "--head", "1", path) == 0
    assert json.loads(capsys.readouterr().out) == {"text": ["a", "hex:ff"], "n": [7]}
    assert command("cat", path) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["plain text", r"b'\x00\x01'"]
    assert command("cat", "--hex", path) == 0 and capsys.readouterr().out.endswith("\n0001\n")
    assert command("split", "--shards", "3", path, tmp_path / "s.tfrecord") == 0
    assert command("merge", tmp_path / "s-*", tmp_path / "merged") == 0
    assert (tmp_path / "merged").read_bytes() == path.read_bytes()


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path):
    path = damaged(tmp_path, packed([b"x" * 100] * 20_000))
    line = f"{sys.executable} -m tfmagic tfrecord cat {path} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("x" * 100 + "\n", "") and done.returncode == 141


def test_usage_names_the_action(capsys):
    with pytest.raises(SystemExit):
        command("verify")
    assert capsys.readouterr().err.startswith("usage: python -m tfmagic tfrecord verify [-h]")


def test_the_command_line_loads_no_tensorflow(whole):
    code = (
        "import sys; from tfmagic.cli import main; code = main(['tfrecord', 'verify', sys.argv[1]]);"
        "print(code, {'tensorflow', 'IPython'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, whole], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 set()"
    code = "import sys, tfmagic.tfrecord; print({'tensorflow', 'numpy', 'h5py', 'crc32c'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
