"""The text view of real log files: live, bounded, complete, with displays where they happened."""

import io
import json
import os
import re
import sys
from collections import deque
from types import SimpleNamespace

import pexpect
import pytest

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellRaised, CellRequested, CellReturned, Displayed, FeatureRecorded
from tfmagic.protocol.payload import PackedError
from tfmagic.runs.feature_records import append_feature_record
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.given_hints import Hint, append_hint
from tfmagic.runs.terminal.screen import plain_text, rows_of
from tfmagic.supervisor.state import CellState
from tfmagic.views import hints
from tfmagic.views.text import TextView

A, B = TaskId("worker", 0), TaskId("worker", 1)


class Screen:
    """A view over logs that the test writes."""

    has_begun = True

    def __init__(self, folder, show_rich=None, terminal=False, tasks=(A, B)):
        self.run, self.displays, self.shown, self.tasks = RunFolder(folder), deque(), [], tasks
        self.published = []

        def rich(data, metadata, transient, update):
            self.shown.append(data)
            self.published.append((transient, update))

        self.view = TextView(
            self.run,
            [(task, 0) for task in tasks],
            self.displays,
            self.shown.append,
            rich if show_rich else None,
            terminal,
            has_begun=lambda: self.has_begun,
            cell=1,
            hints=hints.CellHints(self.run, 1, lambda: True),
        )

    def hint(self, task):
        append_hint(self.run, 1, Hint("a-name", "Do it.", (task.name,)))

    def write(self, task, data):
        with self.run.log_path(task).open("ab") as file:
            file.write(data)

    def look(self):
        """Look twice: the first look finds the end of a log, and the second one shows the text."""
        self.view.update()
        self.view.update()

    @property
    def terminal(self):
        """Return what a terminal shows, with the blank last line."""
        return [plain_text(row) for row in rows_of("".join(self.shown).encode())]

    def display(self, task, text, data=None, **more):
        offset = self.run.log_path(task).stat().st_size
        content = {"data": {"text/plain": text, **(data or {})}, "metadata": {}, **more}
        self.displays.append(Displayed(task, 1, 1, offset, json.dumps(content).encode()))

    def finish(self):
        ends = {
            t: self.run.log_path(t).stat().st_size if self.run.log_path(t).exists() else 0 for t in self.tasks
        }
        outcomes = {t: CellReturned(t, 1, 1, 0.1, end) for t, end in ends.items()}
        self.view.finish(CellState(CellRequested(1, {}), 0.0, outcomes=outcomes))
        return "".join(s for s in self.shown if isinstance(s, str))


def test_a_display_that_comes_before_the_cell_is_seen_to_begin_is_shown(tmp_path):
    screen = Screen(tmp_path)
    screen.write(A, b"")
    screen.has_begun = False
    screen.display(A, "3")
    screen.look()
    screen.has_begun = True
    assert screen.finish() == "[worker-0]:    3\n"


def test_whole_lines_are_shown_while_the_cell_runs(tmp_path):
    screen = Screen(tmp_path)
    screen.write(A, b"one\nhalf")
    screen.view.update()  # finds the end of the log
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
    screen.display(A, "<Figure>", {"image/png": "abc"})
    screen.finish()
    assert screen.shown == [
        "[worker-0]:    before\n",
        "[worker-0]:    <Figure>\n",
        {"text/plain": "[worker-0]: <Figure>", "image/png": "abc"},
    ]


def test_a_picture_names_its_task_in_its_own_bundle_and_in_the_line_above_it(tmp_path):
    screen = Screen(tmp_path, show_rich=True)
    for task in (A, B):
        screen.write(task, b"")
        screen.display(task, "<Figure size 300x200>", {"image/png": "iVBO"})
    screen.look()
    pictures = [data["text/plain"] for data in screen.shown if isinstance(data, dict)]
    assert pictures == ["[worker-0]: <Figure size 300x200>", "[worker-1]: <Figure size 300x200>"]
    lines = [text for text in screen.shown if isinstance(text, str)]
    assert lines == ["[worker-0]:    <Figure size 300x200>\n", "[worker-1]:    <Figure size 300x200>\n"]
    screen.display(A, "a table", {"text/html": "<table>"})
    screen.look()
    assert screen.shown[-2:] == ["[worker-0]:\n", {"text/plain": "a table", "text/html": "<table>"}]


def test_tracked_values_are_lines_once_a_minute_and_at_the_end(tmp_path, monkeypatch):
    clock = 1000.0
    monkeypatch.setattr("tfmagic.views.text.time", SimpleNamespace(monotonic=lambda: clock))
    screen = Screen(tmp_path)
    append_feature_record(screen.run, FeatureRecorded(A, 1, 1, "track", b'{"loss":[[0,1],[1,0.5]]}'), 1 << 20)
    screen.look()
    assert screen.shown == []
    clock += 61
    screen.look()
    screen.look()
    assert screen.shown == ["loss: worker-0 0.5 (step 1)\n"]
    append_feature_record(screen.run, FeatureRecorded(B, 1, 1, "track", b'{"loss":[[11,0.08333]]}'), 1 << 20)
    end = "loss: worker-0 0.5 (step 1), worker-1 0.08333 (step 11)\n"
    assert screen.finish().endswith(end)
    again = Screen(tmp_path)
    assert again.finish() == end, "also of a cell that has printed nothing"


def test_a_hint_is_shown_once_below_the_output_of_a_short_cell(tmp_path):
    screen = Screen(tmp_path)
    screen.hint(A)
    screen.hint(B)
    screen.write(A, b"a\n")
    screen.look()
    screen.write(A, b"last\n")
    lines = screen.finish().splitlines()
    assert lines[:2] == ["[worker-0]:    a", "[worker-0]:    last"]
    assert len(lines) == 3 and lines[2].startswith("tfmagic: hint: Do it. (worker-0, worker-1; "), lines


def test_a_hint_is_also_shown_while_a_cell_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(hints, "_SOON_S", 0.0)
    screen = Screen(tmp_path)
    screen.hint(A)
    screen.look()
    screen.hint(B)
    screen.look()
    (line,) = "".join(screen.shown).splitlines()
    assert line.startswith("tfmagic: hint: Do it. (worker-0; "), "once"
    assert screen.finish().splitlines()[-1].startswith("tfmagic: hint: Do it. (worker-0, worker-1; ")


def test_after_a_failure_the_exception_has_the_hint(tmp_path):
    screen = Screen(tmp_path)
    screen.write(A, b"a\n")
    screen.hint(A)
    error = PackedError("ValueError", "bad", "", None, "")
    outcomes = {A: CellRaised(A, 1, 1, 0.1, 2, error)}
    screen.view.finish(CellState(CellRequested(1, {}), 0.0, outcomes=outcomes))
    assert "".join(screen.shown) == "[worker-0]:    a\n"


def test_a_hint_of_a_cell_without_output_is_shown(tmp_path):
    screen = Screen(tmp_path)
    screen.hint(A)
    assert "Do it." in screen.finish()


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


def test_displays_are_updated_in_place_where_the_front_end_can(tmp_path):
    screen = Screen(tmp_path, show_rich=True)
    screen.write(A, b"half")
    screen.write(B, b"")
    for task in (A, B):
        screen.display(task, "0", {"text/html": "0"}, transient={"display_id": "bar"})
    screen.look()
    screen.write(A, b" a line")
    for task in (A, B):
        screen.display(task, "1", {"text/html": "1"}, transient={"display_id": "bar"}, update=True)
    screen.display(B, "text", transient={"display_id": "other"})
    screen.look()
    names = [transient["display_id"] for transient, _ in screen.published]
    assert sorted(names[:2]) == sorted(names[2:4]) and len(set(names)) == 3
    assert [sum(task in name for name in set(names)) for task in ("worker-0", "worker-1")] == [1, 2]
    assert [update for _, update in screen.published] == [False, False, True, True, False]
    screen.write(A, b" more\n")
    text = [s if isinstance(s, str) else s["text/plain"] for s in screen.shown]
    assert text[text.index("[worker-0]:    half\n") + 1 :][:2] == ["[worker-0]:\n", "0"]
    assert text.count("[worker-0]:\n") == 1 and text.count("[worker-1]:\n") == 2  # none for an update
    assert screen.finish().endswith("[worker-0]:     a line more\n")


def test_displays_as_text_are_safe_and_clear_is_ignored(tmp_path):
    screen = Screen(tmp_path)
    screen.write(A, b"before\n")
    screen.display(A, "\x1b[31ma\x1b[0m\x1b[2J\nb\x00", transient={"display_id": "x"})
    screen.display(A, "c", transient={"display_id": "x"}, update=True)
    screen.display(A, "", clear=True)
    assert [line[15:] for line in screen.finish().splitlines()] == ["before", "a", "b␀", "c"]


def test_a_bar_is_one_line_when_its_line_ends(tmp_path):
    screen = Screen(tmp_path)
    for n in range(101):
        screen.write(A, f"\r\x1b[32m{n}%\x1b[0m".encode())
        screen.view.update()
    assert screen.shown == []
    screen.write(A, b"\nEpoch 2\n")
    assert screen.finish() == "[worker-0]:    100%\n[worker-0]:    Epoch 2\n"


# -- on a terminal --


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_bars_are_live_at_the_bottom_and_nothing_stays_twice(tmp_path, narrow):
    screen = Screen(tmp_path, terminal=True)
    screen.write(A, b"one\n\r10%")
    screen.write(B, b"\r5%")
    screen.look()
    assert screen.terminal == ["[worker-0]:    one", "[worker-0]:    10%", "[worker-1]:    5%"]
    writes = len(screen.shown)
    screen.look()
    assert len(screen.shown) == writes  # nothing is new
    screen.write(A, b"\r20%")
    screen.write(B, b"\r100%\ntwo\n")
    screen.look()
    assert screen.terminal[1:] == ["[worker-1]:    100%", "[worker-1]:    two", "[worker-0]:    20%"]
    screen.write(A, b"\r100%\n")
    screen.finish()
    assert screen.terminal == [
        "[worker-0]:    one",
        "[worker-1]:    100%",
        "[worker-1]:    two",
        "[worker-0]:    100%",
    ]


def test_live_lines_are_cut_to_the_window_and_at_most_eight(tmp_path, narrow):
    tasks = tuple(TaskId("worker", n) for n in range(12))
    screen = Screen(tmp_path, terminal=True, tasks=tasks)
    for task in tasks:
        screen.write(task, ("\r" + "世" * 100).encode())
    screen.look()
    assert screen.terminal == [f"[worker-{n}]:    {'世' * 12}" for n in range(8)]
    screen.finish()
    assert len(screen.terminal) == 12 and all(line.endswith("世" * 100) for line in screen.terminal)


def test_live_lines_that_a_narrower_window_wraps_are_erased(tmp_path, narrow, monkeypatch):
    screen = Screen(tmp_path, terminal=True)
    screen.write(A, b"\r" + b"x" * 20)
    screen.look()
    monkeypatch.setenv("COLUMNS", "20")
    screen.write(A, b"!")
    screen.look()
    assert "\x1b[2A" in screen.shown[-1]  # 35 columns are two lines now


def test_colours_on_a_terminal(tmp_path, narrow):
    screen = Screen(tmp_path, terminal=True)
    noise = "I0000 00:00:1795263132.426098   21339 port.cc:153] oneDNN custom operations are on. You may see"
    screen.write(A, f"\x1b[1;31mred\x1b[0m\x1b[2J plain\n{noise}\n".encode())
    screen.write(B, b"b\n")
    text = screen.finish()
    red, dimmed, other = text.splitlines()
    head = re.match(r"\x1b\[\d+m\[worker-0\]:\x1b\[0m    ", red)[0]
    assert red == f"{head}\x1b[1;31mred\x1b[0m plain"
    assert dimmed == f"{head}\x1b[2m{noise}\x1b[0m"
    assert other.split("[worker")[0] != red.split("[worker")[0]


def test_no_colours_where_they_are_switched_off(tmp_path, narrow, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(tmp_path, terminal=True)
    screen.write(A, b"\x1b[31mred\x1b[0m\n")
    assert screen.finish() == "[worker-0]:    red\n"


def test_a_flood_on_a_terminal_is_complete_and_shows_no_torn_line(tmp_path, narrow):
    screen = Screen(tmp_path, terminal=True)
    screen.write(A, (b"y" * 69 + b"\n") * 100_000)
    screen.look()
    assert 0 < sum(map(len, screen.shown)) < 1 << 19
    assert screen.finish().count("\n") == 100_000


LIVE = """
import collections, pathlib, sys
from tfmagic.runs.folder import RunFolder
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.views.text import TextView
folder, task = pathlib.Path(sys.argv[1]), TaskId("worker", 0)
view = TextView(RunFolder(folder), [(task, 0)], collections.deque(), terminal=sys.stdout.isatty())
log = RunFolder(folder).log_path(task).open("ab", buffering=0)
for n in range(3):
    log.write(b"\\r%d of 3 " % n + b"=" * 99)
    view.update(), view.update()
    input()
    log.write(b"\\r\\x1b[Kline %d\\n" % n)
    view.update(), view.update(), view.update()
log.write(b"\\rend\\n")
view.finish(None)
"""


def test_the_live_line_on_a_real_terminal(tmp_path):
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    seen = io.StringIO()
    with pexpect.spawn(
        sys.executable,
        ["-c", LIVE, str(tmp_path)],
        env=environ,
        encoding="utf-8",
        timeout=30,
        dimensions=(10, 50),
        echo=False,
    ) as child:
        child.logfile_read = seen
        for n in range(3):
            child.expect(re.escape(f"{n} of 3 ="))
            child.sendline("")
        child.expect(pexpect.EOF)
    data = seen.getvalue()
    assert f"0 of 3 {'=' * 27}\r\n" in data and "=" * 28 not in data  # 15 + 7 + 27 of 50 columns
    rows = [plain_text(row) for row in rows_of(data.encode())]
    assert rows == [f"[worker-0]:    {text}" for text in ("line 0", "line 1", "line 2", "end")]
