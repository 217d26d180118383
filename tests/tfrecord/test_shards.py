"""Which files a pattern means, and which names shards can have."""

import pytest
from shards_on_disk import names_in, packed, whole_in, write_set

from tfmagic.tfrecord import ShardError, ShardWriteError, ShardWriter, iterate, merge, verify


def test_two_stars_are_folders_of_any_depth(tmp_path):
    for folder in ("", "2025", "2025/12"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "x.tfrecord").write_bytes(packed([folder.encode()]))
    assert sorted(iterate(tmp_path / "**" / "*.tfrecord")) == [b"", b"2025", b"2025/12"]


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


def test_one_file_by_two_names_is_one_file(tmp_path, monkeypatch):
    whole = whole_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert len(list(iterate([whole, whole.name, f"../{tmp_path.name}/{whole.name}"]))) == 1000


@pytest.mark.parametrize(
    ("other", "said"),
    [("a-00000-of-00003.tfrecord", "of different runs"), ("a-00007-of-00002.tfrecord", "cannot be")],
)
def test_files_whose_numbers_do_not_fit_together_are_no_set(tmp_path, other, said):
    write_set(tmp_path, 2)
    (tmp_path / other).write_bytes(packed([b"x"]))
    with pytest.raises(ShardError, match=said):
        merge(tmp_path / "a-*.tfrecord", tmp_path / "merged")
    assert said in str(verify(tmp_path / "a-*.tfrecord"))
