"""The turns of a task's two threads: the side thread sleeps while no cell runs."""

import re
from pathlib import Path

from tfmagic.protocol.commands import RunCell
from tfmagic.task.channel_reader import ChannelReader


def has_alarm(reader: ChannelReader) -> bool:
    """Check whether the timer that wakes the side thread is set."""
    timer = Path(f"/proc/self/fdinfo/{reader._alarm.fd}").read_text()
    return re.search(r"^it_value: \(0, 0\)$", timer, re.MULTILINE) is None


def test_the_alarm_is_set_for_a_cell_and_not_after_it():
    reader = ChannelReader()
    cell = RunCell(1)
    reader.deliver(cell)
    assert reader.next_work() is cell
    assert has_alarm(reader)
    assert reader.next_work() is None
    assert not has_alarm(reader)


class Clock:
    now_s = 1.0

    def __call__(self) -> float:
        return self.now_s


def ends_at_once(reader: ChannelReader, number: int) -> None:
    reader.deliver(RunCell(number))
    assert reader.next_work() == RunCell(number)
    assert reader.next_work() is None


def test_the_alarm_stays_set_while_one_cell_follows_another():
    clock = Clock()
    reader = ChannelReader(clock)
    for number in range(1, 4):
        ends_at_once(reader, number)
        assert has_alarm(reader) == (number > 1)
        clock.now_s += 0.001
    clock.now_s += 1
    reader.wait_for_alarm(lambda: 3)
    assert not reader.side_reads
    ends_at_once(reader, 4)
    assert not has_alarm(reader)


def test_the_alarm_of_an_earlier_cell_is_set_again_for_a_younger_one():
    clock = Clock()
    reader = ChannelReader(clock)
    ends_at_once(reader, 1)
    ends_at_once(reader, 2)
    clock.now_s += 0.009
    reader.deliver(RunCell(3))
    clock.now_s += 0.001
    reader.wait_for_alarm(lambda: 2)  # rings for cell 2
    assert not reader.side_reads
    assert has_alarm(reader)
    clock.now_s += 0.01
    reader.wait_for_alarm(lambda: 2)
    assert reader.side_reads


def test_a_cell_that_waits_for_an_answer_gets_the_side_thread_at_once():
    reader = ChannelReader(Clock())
    ends_at_once(reader, 1)
    reader.deliver(RunCell(2))
    reader.call_side_thread()
    reader.wait_for_alarm(lambda: 1)
    assert reader.side_reads
