"""Damage in files is found, without TensorFlow."""

import gzip
import os
import random
import signal
import subprocess
import sys
import textwrap
import zlib

import psutil
import pytest
from conftest import program, wait_until
from shards_on_disk import RECORDS, cut, damaged, flipped, kinds, packed, place_of, whole_in, write_set

from tfmagic.tfrecord import Damage, ShardError, ShardsMissing, ShardWriter, iterate, merge, verify, verifying


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


def test_a_file_that_a_process_writes_is_being_written(tmp_path):
    path = damaged(tmp_path, cut(packed(RECORDS), 500, 5))
    code = "import sys; f = open(sys.argv[1], 'ab'); print(1, flush=True); sys.stdin.read()"
    with program(sys.executable, "-c", code, path, stdin=subprocess.PIPE) as process:
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


@pytest.mark.parametrize("pattern", ["*.tfrecord", ""])
def test_a_link_to_nowhere_is_no_file_less(tmp_path, pattern):
    whole_in(tmp_path)
    (tmp_path / "other.tfrecord").symlink_to(tmp_path / "not mounted" / "other.tfrecord")
    found = verify(tmp_path / pattern)
    assert [(d.kind, d.detail) for d in found.damages] == [("unreadable", "No such file or directory")]
    with pytest.raises(FileNotFoundError, match=r"other\.tfrecord"):
        list(iterate(tmp_path / pattern))


def test_a_pipe_and_a_missing_file_are_reported(tmp_path):
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


def test_records_lost_without_a_trace_are_found_by_the_manifest(tmp_path):
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


def test_large_files_are_cut_and_joined_by_several_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(verifying, "_SEGMENT", 10_000)
    inner = packed(RECORDS[:300])  # records that hold records: a cut falls into them
    records = [*RECORDS, inner, *RECORDS, inner]
    data = packed(records)
    for number in (20, 999, 1500):
        data = flipped(data, place_of(number, records) + 14)
    path = damaged(tmp_path, data + b"\0" * 50_000)
    alone = verify(path, workers=1)
    assert verify(path, workers=2).files == alone.files
    assert verify(path).files == alone.files
    monkeypatch.setattr(verifying, "_SEGMENT", 1 << 30)
    whole = verify(path, workers=1)
    assert whole.files == alone.files
    assert [d.record for d in whole.damages] == [20, 999, 1500, 2002] and whole.records == 1999


def test_a_hole_over_many_segments_is_searched_once(tmp_path, monkeypatch):
    """A power failure can leave such a file: the disk has its length, but not its data."""
    monkeypatch.setattr(verifying, "_SEGMENT", 1 << 20)
    whole = whole_in(tmp_path).read_bytes()
    data = whole + bytes(40 << 20) + whole
    path = damaged(tmp_path, data)
    read = []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: read.append(real(*args)) or read[-1])
    (report,) = verify(path, workers=1).files
    assert report.records == 2 * len(RECORDS)
    assert [(d.offset, d.end) for d in report.damages] == [(len(whole), len(data) - len(whole))]
    assert sum(read) < 5 * len(data)  # it was twenty times as much


def test_the_findings_read_well(tmp_path):
    whole = whole_in(tmp_path)
    path = damaged(tmp_path, flipped(packed(RECORDS), place_of(500) + 14))
    found = verify([whole, path])
    text = str(found)
    assert f"ok      {whole}: 1,000 records" in text
    assert f"data CRC at byte {place_of(500):,} (record 500)" in text and "2 files, 1 damaged" in text
    assert "<table>" in found._repr_html_() and "damaged.tfrecord" in found._repr_html_()


INTERRUPTED = """
    import sys, tfmagic.tfrecord
    print("ready", flush=True)
    try:
        tfmagic.tfrecord.verify(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_ends_verify_before_it_has_read_a_large_compressed_file(tmp_path):
    slow = tmp_path / "slow"  # zeros that take much longer to decompress than the test waits
    slow.write_bytes(gzip.compress(packed([bytes(1 << 20)] * 16)) * 4000)
    with program(sys.executable, "-c", textwrap.dedent(INTERRUPTED), slow) as process:
        assert process.stdout.readline() == "ready\n"
        found = psutil.Process(process.pid)
        wait_until(lambda: str(slow) in [file.path for file in found.open_files()])
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n" and process.wait(10) == 0


def test_some_shards_of_a_whole_set_can_be_verified_alone(tmp_path):
    write_set(tmp_path, 4)
    assert verify([tmp_path / f"a-0000{n}-of-00004.tfrecord" for n in (1, 2)]).ok
    with pytest.raises(ShardError, match="not among the files: .*a-00000-of-00004"):
        merge(tmp_path / "a-0000[12]-*", tmp_path / "merged")
