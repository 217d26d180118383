"""Files are salvaged, merged, split and iterated over, without TensorFlow."""

import gzip
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards_on_disk import RECORDS, damaged, flipped, names_in, packed, place_of, whole_in

from tfmagic.tfrecord import (
    ShardDamaged,
    ShardError,
    ShardExists,
    ShardsMissing,
    framing,
    iterate,
    merge,
    salvage,
    split,
    verify,
)


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


def test_a_length_that_cannot_be_takes_no_memory_in_a_compressed_file_either(tmp_path):
    good = packed(RECORDS[:3])
    large = framing.frame(bytes(20 << 20))  # larger than the first window
    path = damaged(tmp_path, gzip.compress(good + large + framing.header(1 << 39) + bytes(100) + good))
    (found,) = verify(path).damages
    assert (found.kind, found.record, found.offset) == ("truncated", 4, len(good + large))
    assert salvage(path, tmp_path / "saved.tfrecord").records == 7
    records = iterate(path)
    assert len([next(records) for _ in range(4)]) == 4
    with pytest.raises(ShardDamaged, match=f"at byte {len(good + large):,} "):
        next(records)


def test_salvage_refuses_what_would_harm(tmp_path):
    whole = whole_in(tmp_path)
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


def test_split_and_merge_keep_the_order(tmp_path):
    whole = whole_in(tmp_path)
    assert [p.name for p in split(whole, tmp_path / "s.tfrecord", count=3)] == [
        f"s-0000{n}-of-00003.tfrecord" for n in range(3)
    ]
    assert [file.records for file in verify(tmp_path / "s-*").files] == [333, 333, 334]
    assert len(split(whole, tmp_path / "r.tfrecord", records=400, compression="gzip")) == 3
    for name in ("s", "r"):
        assert merge(tmp_path / f"{name}-*", tmp_path / f"{name}-merged") == 1000
        assert (tmp_path / f"{name}-merged").read_bytes() == whole.read_bytes()


def test_nothing_is_left_of_a_merge_or_split_of_damaged_files(tmp_path):
    whole = whole_in(tmp_path)
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


def test_a_merge_knows_the_same_compressions(tmp_path):
    whole = whole_in(tmp_path)
    with pytest.raises(ShardError, match="compression is None or 'gzip', not 'zip'"):
        merge(whole, tmp_path / "new", compression="zip")
    assert names_in(tmp_path) == [whole.name]
    merge(whole, tmp_path / "new", compression="GZIP")
    assert (tmp_path / "new").read_bytes()[:2] == b"\x1f\x8b" and verify(tmp_path / "new").ok


def test_records_that_the_length_of_a_damaged_one_covers_are_saved(tmp_path):
    long = [b"a" * 50, b"b" * 1000, *RECORDS]
    whole = packed(long)
    gap = (
        whole[: 66 + 12 + 100] + whole[66 + 1016 :]
    )  # the second lacks its end, and reaches into those behind it
    path = damaged(tmp_path, gap)
    (damage,) = verify(path).damages
    assert (damage.kind, damage.detail) == ("data CRC", "bytes are missing in it")
    assert (damage.offset, damage.end) == (66, 66 + 112)
    salvage(path, tmp_path / "saved")
    assert list(iterate(tmp_path / "saved")) == [long[0], *RECORDS]
