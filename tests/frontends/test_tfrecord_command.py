"""The command ``tfmagic tfrecord``: what it prints, writes and returns."""

import json
import os
import subprocess
import sys

import pytest
from shards_on_disk import (
    RECORDS,
    damaged,
    feature,
    field,
    flipped,
    names_in,
    packed,
    place_of,
    varint,
    whole_in,
)

from tfmagic.frontends import cli


def command(*words):
    return cli.main(["tfrecord", *map(str, words)])


def test_the_command_line_verifies_and_salvages(tmp_path, capsys):
    whole = whole_in(tmp_path)
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


def test_the_exit_code_of_damage_differs_from_that_of_an_impossible_command(tmp_path, capsys):
    whole = whole_in(tmp_path)
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


def test_the_command_line_loads_no_tensorflow(tmp_path):
    whole = whole_in(tmp_path)
    code = (
        "import sys; from tfmagic.frontends.cli import main; code = main(['tfrecord', 'verify', sys.argv[1]]);"
        "print(code, {'tensorflow', 'IPython'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, whole], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 set()"
    code = "import sys, tfmagic.tfrecord; print({'tensorflow', 'numpy', 'h5py', 'crc32c'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_without_crc32c_the_error_says_what_to_install(tmp_path):
    whole, missing = whole_in(tmp_path), tmp_path / "missing"
    missing.mkdir()
    (missing / "crc32c.py").write_text("raise ImportError(\"No module named 'crc32c'\")")
    environ = {**os.environ, "PYTHONPATH": str(missing)}
    words = [sys.executable, "-m", "tfmagic", "tfrecord", "verify", whole]
    done = subprocess.run(words, capture_output=True, text=True, env=environ)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert """No module named 'crc32c'):  pip install "tfmagic[tfrecord]\"""" in done.stderr
