"""The place of a task among those that write and read data."""

import json

import numpy as np
import pytest

from tfmagic.protocol.task_context import TaskContext, acting_as
from tfmagic.tfrecord import ShardError, ShardWriter, split, verify


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


def test_outside_of_a_cluster_the_place_is_what_tf_config_says(tmp_path, monkeypatch):
    """Otherwise every task of a user's own job would silently read everything."""
    spec = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}

    def place(**config):
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        with ShardWriter(tmp_path / "a.tfrecord") as writer:
            writer.discard()
        return writer.index, writer.count

    assert place(cluster=spec, task={"type": "worker", "index": 1}) == (2, 3)
    assert place(cluster=spec, task={"type": "chief", "index": "0"}) == (0, 3)
    assert place() == place(cluster=spec) == (0, 1)
    with pytest.raises(ShardError, match="ps-0 takes no part"):
        place(cluster=spec, task={"type": "ps", "index": 0})
    for task in ({"type": "worker", "index": 2}, {"type": "worker"}, "worker"):
        with pytest.raises(ShardError, match="TF_CONFIG does not say which task this is"):
            place(cluster=spec, task=task)
