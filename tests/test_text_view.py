"""The text view over real log files: live, bounded, complete, displays where they happened."""

import json
from collections import deque

from tfmagic.events import CellRequested, CellReturned, Displayed
from tfmagic.runs import Run
from tfmagic.spec import TaskId
from tfmagic.states import CellState
from tfmagic.views.text import TextView

A, B = TaskId("worker", 0), TaskId("worker", 1)


class Screen:
    """A view over logs that the test writes."""

    def __init__(self, folder, show_rich=None):
        self.run, self.displays, self.shown = Run(folder), deque(), []
        rich = None if show_rich is None else lambda data, metadata: self.shown.append(data)
        self.view = TextView(self.run, [(A, 0), (B, 0)], self.displays, self.shown.append, rich)

    def write(self, task, data):
        with self.run.log_path(task).open("ab") as file:
            file.write(data)

    def display(self, task, text, **data):
        offset = self.run.log_path(task).stat().st_size
        content = {"data": {"text/plain": text, **data}, "metadata": {}}
        self.displays.append(Displayed(task, 1, 1, offset, json.dumps(content).encode()))

    def finish(self):
        ends = {
            t: self.run.log_path(t).stat().st_size if self.run.log_path(t).exists() else 0 for t in (A, B)
        }
        outcomes = {t: CellReturned(t, 1, 1, 0.1, end) for t, end in ends.items()}
        self.view.finish(CellState(CellRequested(1, {}), 0.0, outcomes=outcomes))
        return "".join(s for s in self.shown if isinstance(s, str))


def test_whole_lines_are_shown_while_the_cell_runs(tmp_path):
    screen = Screen(tmp_path)
    screen.write(A, b"one\nhalf")
    screen.view.update()  # sees that it is there
    screen.view.update()
    assert screen.shown == ["[worker-0]:    one\n"]
    screen.write(A, b" done\n")
    screen.write(B, b"other\n")
    assert screen.finish().splitlines() == [
        "[worker-0]:    one",
        "[worker-0]:    half done",
        "[worker-1]:    other",
    ]


def test_a_display_stands_between_the_lines_before_and_after_it(tmp_path):
    screen = Screen(tmp_path)
    screen.write(A, b"before\n")
    screen.display(A, "shown\ntwice")
    screen.write(A, b"after\n")
    assert [line[15:] for line in screen.finish().splitlines()] == ["before", "shown", "twice", "after"]


def test_a_display_that_is_known_a_moment_late_stands_in_its_place_nevertheless(tmp_path):
    screen = Screen(tmp_path)
    screen.write(A, b"before\n")
    offset = screen.run.log_path(A).stat().st_size
    screen.write(A, b"after\n")
    screen.view.update()
    content = {"data": {"text/plain": "shown"}, "metadata": {}}
    screen.displays.append(Displayed(A, 1, 1, offset, json.dumps(content).encode()))
    for _ in range(3):
        screen.view.update()
    assert [line[15:] for line in "".join(screen.shown).splitlines()] == ["before", "shown", "after"]


def test_rich_data_is_published_where_the_front_end_can(tmp_path):
    screen = Screen(tmp_path, show_rich=True)
    screen.write(A, b"before\n")
    screen.display(A, "<Figure>", **{"image/png": "abc"})
    screen.finish()
    assert screen.shown == [
        "[worker-0]:    before\n",
        "[worker-0]:\n",
        {"text/plain": "<Figure>", "image/png": "abc"},
    ]


def test_one_look_at_a_flood_is_bounded_and_the_end_is_complete(tmp_path):
    screen = Screen(tmp_path)
    lines = 200_000
    screen.write(A, b"x" * 69 + b"\n")
    screen.write(A, (b"y" * 69 + b"\n") * (lines - 1))
    screen.view.update()
    screen.view.update()
    assert 0 < sum(map(len, screen.shown)) < 1 << 19
    assert screen.finish().count("\n") == lines


def test_a_cell_without_output_reads_nothing(tmp_path):
    screen = Screen(tmp_path)
    assert screen.finish() == ""
