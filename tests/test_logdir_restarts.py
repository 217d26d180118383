"""What a restart takes from a log folder, and what it leaves in nobody's way."""

from test_logdir import _tensorflow, cut, restored, saves, variable  # noqa: F401 - a fixture


def test_training_begins_anew_where_nothing_is_whole(tmp_path):
    with saves(tmp_path) as kept:
        kept.save(3)
    cut(tmp_path / "ckpt-3.data-00000-of-00001")
    with saves(tmp_path, variable(7.0)) as kept:
        assert kept.restore_or_initialize() is None
        assert kept.save(1) == 1 and kept.steps == [1]
    assert restored(tmp_path) == (1, 7.0)
