"""What a task has written stands in its manifest, with the run that wrote it."""

import json
import os
from pathlib import Path

import pytest
from shards_on_disk import RECORDS, kinds, names_in, place_of, write_set

import tfmagic
from tfmagic.tfrecord import ShardError, ShardWriter, read_manifests, verify


def test_a_shard_of_a_lone_writer_is_held_against_the_manifest_by_itself(tmp_path):
    with ShardWriter(tmp_path / "a.tfrecord", max_records=2) as writer:
        for record in RECORDS[:6]:
            writer.write(record)
    os.truncate(writer.paths[2], place_of(5) - place_of(4))  # at a record's edge
    assert kinds(verify(writer.paths[2])) == ["count"] and verify(writer.paths[1]).ok


def test_shards_whose_writers_were_given_two_runs_are_distinguished(tmp_path):
    base = tmp_path / "a.tfrecord"
    for index in range(3):
        with ShardWriter(base, task=(index, 3), run="monday", max_records=1) as writer:
            writer.write(b"1")
            writer.write(b"2")
    assert verify(base).ok
    for index in (0, 2):
        with ShardWriter(base, task=(index, 3), run="tuesday", max_records=1, overwrite=True) as writer:
            writer.write(b"1")
            writer.write(b"2")
    found = verify(base)
    assert kinds(found) == ["former run"] * 2
    assert [Path(damage.path).name for damage in found.damages] == [
        f"a-00001-of-00003-0000{part}-of-00002.tfrecord" for part in range(2)
    ]
    assert "is of a later run" in str(found) and "overwrite=True" in str(found)
    assert verify(tmp_path / "a-00001-of-00003-00000-of-00002.tfrecord").ok, "by itself it is whole"
    with pytest.raises(ShardError, match="run is a str"):
        ShardWriter(tmp_path / "b.tfrecord", run=7)


def test_manifests_without_a_run_fit_any(tmp_path):
    base = tmp_path / "a.tfrecord"
    for index in range(2):
        with ShardWriter(base, task=(index, 2), run="monday" if index else "") as writer:
            writer.write(b"1")
    assert verify(base).ok
    for path in tmp_path.glob("*.manifest.json"):  # as former versions have written them
        content = json.loads(path.read_text())
        del content["run"]
        path.write_text(json.dumps(content))
    assert verify(base).ok and [m.run for m in tfmagic.tfrecord.read_manifests(base)] == ["", ""]


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


def test_sets_that_differ_by_their_suffix_have_manifests_of_their_own(tmp_path):
    for suffix, count in ((".tfrecord", 1), (".tfrecord.gz", 2), (".records", 3)):
        with ShardWriter(tmp_path / f"a{suffix}") as writer:
            for _ in range(count):
                writer.write(b"x")
    assert len(names_in(tmp_path)) == 6
    for suffix, count in ((".tfrecord", 1), (".tfrecord.gz", 2), (".records", 3)):
        (manifest,) = read_manifests(tmp_path / f"a{suffix}")
        assert manifest.records == count and verify(tmp_path / f"a{suffix}").ok


@pytest.mark.parametrize(
    ("content", "said"), [("{}", "KeyError"), ("[]", "TypeError"), ('{"version": 2}', "this tfmagic knows 1")]
)
def test_a_file_that_is_no_manifest_is_named_and_the_records_are_verified(tmp_path, content, said):
    write_set(tmp_path, 2)
    (tmp_path / "a-00001-of-00002.manifest.json").write_text(content)
    with pytest.raises(ShardError, match=f"a-00001-of-00002.manifest.json is no manifest.*{said}"):
        read_manifests(tmp_path / "a.tfrecord")
    found = verify(tmp_path / "a.tfrecord")
    assert found.records == 2 and "is no manifest" in found.damages[0].detail
