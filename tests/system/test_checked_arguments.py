"""An argument of another kind is named, wherever a helper of tfmagic takes one."""

import numpy as np
import pytest

from tfmagic import hdf5, logdir, tfrecord
from tfmagic.errors import ClusterSpecError
from tfmagic.protocol.cluster_spec import ClusterShape
from tfmagic.system import arguments

WRONG = [None, 5, 1.5, [5], object(), np.zeros(2)]
PATHS = [
    ("paths", lambda path: list(tfrecord.iterate(path))),
    ("paths", lambda path: tfrecord.merge(path, "x")),
    ("src", lambda path: tfrecord.split(path, "x", count=2)),
    ("paths", tfrecord.verify),
    ("pattern", tfrecord.read_shards),
    ("pattern", tfrecord.read_manifests),
]
ONE_PATH = [
    ("src", lambda path: tfrecord.salvage(path, "x")),
    ("dst", lambda path: tfrecord.merge(__file__, path)),
    ("path_pattern", tfrecord.ShardWriter),
    ("base", hdf5.consolidate),
    ("base", hdf5.find_parts),
    ("base", hdf5.recover),
    ("base", hdf5.TaskFile),
    ("path", hdf5.missing_parts),
    ("path", hdf5.SharedWriter),
    ("base", logdir.task_logdir),
    ("base", logdir.tensorboard_dir),
    ("local", lambda path: logdir.mirror(path, "memory://x")),
    ("url", lambda path: logdir.mirror("x", path)),
]


@pytest.mark.parametrize(("name", "helper"), [*PATHS, *ONE_PATH])
@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
def test_what_is_no_path_is_named_with_its_argument(name, helper, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=rf"^{name}(\[0\])? is a .*(path|URL).*, not "):
        helper(value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [None, "yes", 2, np.zeros(2), [True]], ids=str)
def test_what_is_no_flag_is_named(value, tmp_path):
    for helper in (
        lambda: tfrecord.ShardWriter(tmp_path / "x", overwrite=value),
        lambda: tfrecord.merge(__file__, tmp_path / "x", overwrite=value),
    ):
        with pytest.raises(TypeError, match="overwrite is True or False, not "):
            helper()
    with pytest.raises(ClusterSpecError, match="at most one chief; pass chief=True or False, not "):
        ClusterShape(1, chief=value)
    assert [arguments.as_flag("x", flag) for flag in (True, 0, np.True_)] == [True, False, True]


def test_other_arguments_of_helpers_are_named(tmp_path):
    for helper in (logdir.task_logdir, logdir.tensorboard_dir):
        with pytest.raises(
            TypeError, match=r"task is what tfmagic.current_task\(\) returns, .*not 'worker-0' \(str\)"
        ):
            helper(tmp_path, task="worker-0")
    with pytest.raises(ValueError, match="how is 'virtual' or 'copy'"):
        hdf5.consolidate(tmp_path / "x.h5", how=np.zeros(2))
