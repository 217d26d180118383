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


class Clock:
    now_s = 1.0

    def __call__(self) -> float:
        return self.now_s


def ends_at_once(turns: Turns, number: int) -> None:
    turns.bring(RunCell(number))
    assert turns.next_work() == RunCell(number)
    assert turns.next_work() is None


def test_the_alarm_stays_set_while_one_cell_follows_another():
    clock = Clock()
    turns = Turns(clock)
    for number in range(1, 4):
        ends_at_once(turns, number)
        assert has_alarm(turns) == (number > 1)
        clock.now_s += 0.001
    clock.now_s += 1
    turns.wait_for_alarm(lambda: 3)
    assert not turns.side_reads
    ends_at_once(turns, 4)
    assert not has_alarm(turns)


def test_the_alarm_of_an_earlier_cell_is_set_again_for_a_younger_one():
    clock = Clock()
    turns = Turns(clock)
    ends_at_once(turns, 1)
    ends_at_once(turns, 2)
    clock.now_s += 0.009
    turns.bring(RunCell(3))
    clock.now_s += 0.001
    turns.wait_for_alarm(lambda: 2)  # rings for cell 2
    assert not turns.side_reads
    assert has_alarm(turns)
    clock.now_s += 0.01
    turns.wait_for_alarm(lambda: 2)
    assert turns.side_reads


def test_a_cell_that_waits_for_an_answer_gets_the_side_thread_at_once():
    turns = Turns(Clock())
    ends_at_once(turns, 1)
    turns.bring(RunCell(2))
    turns.call_side_thread()
    turns.wait_for_alarm(lambda: 1)
    assert turns.side_reads
