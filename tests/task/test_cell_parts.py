"""The parts of a task end in reverse, each of them, whatever the others raise."""

import pytest

from tfmagic.protocol.commands import RunCell
from tfmagic.task.cell_parts import Attempt, CellPart, CellParts


class Part(CellPart):
    def __init__(self, name, ended, error=None):
        self.name, self.ended, self.error = name, ended, error

    def end(self, cell, attempt):
        self.ended.append(self.name)
        if self.error is not None:
            raise self.error


def test_all_parts_end_in_reverse_and_the_first_failure_is_raised():
    ended = []
    failing = Part("b", ended, OSError("second")), Part("c", ended, ValueError("first"))
    parts = CellParts(Part("a", ended), *failing)
    with pytest.raises(ValueError, match="first"):
        parts.end(RunCell(1), Attempt())
    assert ended == ["c", "b", "a"]


def test_a_part_without_methods_has_nothing_to_do():
    class Idle(CellPart):
        pass

    Idle().begin(RunCell(1))
    parts = CellParts(Idle())
    parts.begin(RunCell(1))
    parts.end(RunCell(1), Attempt())


def test_a_part_that_fails_is_a_failure_of_its_cell_and_the_next_one_runs(tfcluster):
    """A lock of the tracker that raises is a part of tfmagic that fails at the beginning of a cell."""

    def spoil():
        from tfmagic.features.track.task import TRACKER as tracker  # noqa: N811

        class Broken:
            def __enter__(self):
                tracker._lock = real
                raise OSError("no space")

            def __exit__(self, *rest):
                return None

        real, tracker._lock = tracker._lock, Broken()

    with pytest.raises(Exception, match="could not be sent to the notebook"):
        tfcluster.run(spoil, on="worker-0")
    assert list(tfcluster.run(int, on="worker-0").values()) == [0]
