"""The turns of a task's two threads: the side thread sleeps while no cell runs."""

import re
from pathlib import Path

from tfmagic.protocol.commands import RunCell
from tfmagic.task.channel_reader import Turns


def has_alarm(turns: Turns) -> bool:
    """Check whether the timer that wakes the side thread is set."""
    timer = Path(f"/proc/self/fdinfo/{turns._alarm.fd}").read_text()
    return re.search(r"^it_value: \(0, 0\)$", timer, re.MULTILINE) is None


def test_the_alarm_is_set_for_a_cell_and_not_after_it():
    turns = Turns()
    cell = RunCell(1)
    turns.bring(cell)
    assert turns.next_work() is cell
    assert has_alarm(turns)
    assert turns.next_work() is None
    assert not has_alarm(turns)
