"""A task's part of a cell as items: the page that applies the patches of a feed shows the log."""

import json
import struct
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Displayed
from tfmagic.runs.terminal.screen import plain_text
from tfmagic.views.log_items import DisplayItem, GapItem, Pace, RowItem, TaskFeed, read_items

TASK = TaskId("worker", 0)


class Follower:
    """A log that the test writes, the feed that follows it, and the page that applies its patches."""

    def __init__(self, folder, **how):
        self.path = folder / "worker-0.log"
        self.path.touch()
        self.feed = TaskFeed(self.path, 0, **how)
        self.displays = deque()
        self.page = {}

    def write(self, data):
        with self.path.open("ab") as file:
            file.write(data)

    def write_error(self, data, before=0):
        """Write as the task's error stream does, whose spans stand in a file of their own."""
        start = self.path.stat().st_size
        self.write(data)
        with self.path.with_suffix(".stderr").open("ab") as file:
            file.write(struct.pack("<QQ", start, start + len(data)))

    def display(self, text, **content):
        bundle = {"data": {"text/plain": text}, "metadata": {}, **content}
        offset = self.path.stat().st_size
        self.displays.append(Displayed(TASK, 1, 1, offset, json.dumps(bundle).encode()))

    def look(self, until=None):
        patch = self.feed.pull(self.displays, until)
        if patch is None:
            return
        self.page = {n: item for n, item in self.page.items() if n < patch.base}
        self.page.update(enumerate(patch.items, patch.base))
        self.page.update(patch.replaced)

    def finish(self):
        self.look(self.path.stat().st_size)
        self.feed.close()
        return self.shown()

    def shown(self):
        return [_word(self.page[n]) for n in sorted(self.page)]


def _word(item):
    match item:
        case RowItem(row, noise):
            return f"noise: {plain_text(row)}" if noise else plain_text(row)
        case GapItem():
            return "gap"
        case DisplayItem(data):
            return f"<{data['text/plain']}>"
    return item.text


def test_lines_become_rows_and_unfinished_ones_are_sent_again(tmp_path):
    follower = Follower(tmp_path)
    follower.write(b"one\nhal")
    follower.look()
    follower.look()
    assert follower.shown() == ["one", "hal"]
    follower.write(b"f\n")
    assert follower.finish() == ["one", "half"]


def test_a_progress_bar_stays_one_row(tmp_path):
    follower = Follower(tmp_path)
    for n in range(5):
        follower.write(f"\r{n}%".encode())
        follower.look()
    follower.write(b"\ndone\n")
    assert follower.finish() == ["4%", "done"]


def test_a_display_stands_between_the_lines_before_and_after_it(tmp_path):
    follower = Follower(tmp_path)
    follower.write(b"before\n")
    follower.display("figure")
    follower.write(b"after\n")
    assert follower.finish() == ["before", "<figure>", "after"]


def test_a_display_that_is_known_a_moment_late_stands_in_its_place(tmp_path):
    follower = Follower(tmp_path)
    follower.write(b"before\n")
    late = follower.path.stat().st_size
    follower.write(b"after\n")
    follower.look()
    bundle = json.dumps({"data": {"text/plain": "late"}, "metadata": {}}).encode()
    follower.displays.append(Displayed(TASK, 1, 1, late, bundle))
    follower.look()
    assert follower.finish() == ["before", "<late>", "after"]


def test_a_display_in_mid_line_ends_the_line(tmp_path):
    follower = Follower(tmp_path)
    follower.write(b"half")
    follower.display("figure")
    follower.write(b" done\n")
    assert follower.finish() == ["half", "<figure>", " done"]


def test_an_update_changes_the_display_where_it_is(tmp_path):
    follower = Follower(tmp_path)
    follower.display("one", transient={"display_id": "a"})
    follower.write(b"line\n")
    follower.look()
    follower.look()
    follower.display("two", transient={"display_id": "a"}, update=True)
    assert follower.finish() == ["<two>", "line"]


def test_an_update_of_something_never_shown_is_nothing(tmp_path):
    follower = Follower(tmp_path)
    follower.display("two", transient={"display_id": "a"}, update=True)
    follower.write(b"line\n")
    assert "line" in follower.finish()


def test_clear_output_empties_the_log_at_once_or_when_something_follows(tmp_path):
    follower = Follower(tmp_path)
    follower.write(b"old\n")
    follower.display("", clear=True, data={})
    follower.write(b"new\n")
    follower.look()
    follower.look()
    assert follower.shown() == ["new"]
    follower.display("", clear=True, wait=True, data={})
    follower.look()
    assert follower.shown() == ["new"]
    follower.write(b"newest\n")
    assert follower.finish() == ["newest"]


def test_an_update_of_a_display_that_became_too_old_changes_nothing(tmp_path):
    follower = Follower(tmp_path)
    for n in range(3):
        follower.display("x" * (4 << 20), transient={"display_id": f"a{n}"})
        follower.look()
        follower.look()
    follower.display("new", transient={"display_id": "a0"}, update=True)
    assert "new" not in "".join(follower.finish())


def test_rows_that_vanish_are_removed_from_the_page(tmp_path):
    follower = Follower(tmp_path)
    follower.write(b"one\ntwo\nthree")
    follower.look()
    follower.look()
    follower.write(b"\x1b[2A\r\x1b[J")
    assert follower.finish() in ([], [""])


def test_the_cursor_does_not_reach_over_a_gap_or_a_display(tmp_path):
    follower = Follower(tmp_path, pace=Pace(look_bytes=1000, flood_bytes=500, flood_rows=3))
    follower.write(b"before\n")
    follower.display("figure")
    follower.look()
    follower.look()
    follower.write(b"x\n" * 5000)
    follower.look()
    follower.look()
    follower.write(b"\x1b[40Aup\n")
    shown = follower.finish()
    assert shown[:2] == ["before", "<figure>"] and "gap" in shown


def test_what_the_error_stream_wrote_is_marked_also_in_mid_line_and_behind_a_flood(tmp_path):
    follower = Follower(tmp_path, pace=Pace(look_bytes=1000, flood_bytes=500, flood_rows=9))
    follower.write_error(b"of an earlier cell\n")
    follower.feed.close()
    follower.feed = TaskFeed(follower.path, follower.path.stat().st_size, pace=Pace(1000, 500, 9))
    follower.write(b"out ")
    follower.write_error(b"err \x1b[31mred\x1b[0m")
    follower.write(b" out\n")
    follower.look()
    follower.look()
    assert _rows(follower) == [[("", "out "), ("e", "err "), ("e f1", "red"), ("", " out")]]
    follower.write(b"flood\n" * 500)
    follower.write_error(b"last\n")
    follower.write(b"of stdout\n")
    follower.finish()
    assert _rows(follower)[-2:] == [[("e", "last")], "of stdout"]


def _rows(follower):
    return [follower.page[n].row for n in sorted(follower.page) if isinstance(follower.page[n], RowItem)]


def test_values_are_no_items(tmp_path):
    follower = Follower(tmp_path)
    follower.display("42", value=True)
    assert follower.finish() == []
    assert follower.feed.values == [({"text/plain": "42"}, {})]


def test_of_a_flood_the_end_is_shown_and_the_gap_is_counted(tmp_path):
    follower = Follower(tmp_path, pace=Pace(look_bytes=1000, flood_bytes=500, flood_rows=3))
    follower.write(b"first\n")
    follower.look()
    follower.look()
    lines = b"".join(b"%05d\n" % n for n in range(1000))
    follower.write(lines)
    shown = follower.finish()
    assert shown[0] == "first" and shown[-3:] == ["00997", "00998", "00999"]
    gaps = [item.size_bytes for item in follower.page.values() if isinstance(item, GapItem)]
    assert sum(gaps) == len(lines) - 3 * 6


def test_a_display_in_a_flood_is_not_lost(tmp_path):
    follower = Follower(tmp_path, pace=Pace(look_bytes=1000, flood_bytes=500, flood_rows=3))
    follower.write(b"x\n" * 5000)
    follower.display("figure")
    follower.write(b"y\n" * 5000)
    assert follower.finish().count("<figure>") == 1


def test_what_is_kept_is_bounded_and_numbers_go_on(tmp_path):
    follower = Follower(tmp_path, row_limit=10)
    for n in range(100):
        follower.write(b"%d\n" % n)
        follower.look()
    assert follower.finish()[-1] == "99"
    kept = follower.feed.snapshot()
    assert len(kept.items) == 10 and kept.base == 90


WARNS = "W0000 00:00:1795980980.997221    6472 dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be optimized"


def test_noise_behind_a_bar_is_left_out_of_its_line(tmp_path):
    follower = Follower(tmp_path)
    bar = "\r\033[1m8/8\033[0m \033[32m━━━━\033[0m loss: 0.2706"
    follower.write(f"{bar}{WARNS}\n{bar}\nquoted: {WARNS}\n{WARNS}\n".encode())
    first = f"8/8 ━━━━ loss: 0.2706 … (TensorFlow's log: +{len(WARNS)} characters)"
    last = ["8/8 ━━━━ loss: 0.2706", f"quoted: {WARNS}", f"noise: {WARNS}"]
    assert follower.finish() == [first, *last]


def test_noise_is_marked_and_is_not_the_last_line(tmp_path):
    follower = Follower(tmp_path)
    follower.write(b"mine\nI0000 00:00:1795263132.426098   21339 port.cc:153] oneDNN\n")
    assert follower.finish()[1].startswith("noise: I0000")
    assert follower.feed.last_row == "mine"


def test_of_a_long_log_that_is_over_the_beginning_and_the_end_are_read(tmp_path):
    path = tmp_path / "worker-0.log"
    path.write_bytes(b"".join(b"%069d\n" % n for n in range(100_000)))
    items, _ = read_items(path, 0, path.stat().st_size, deque(), counts_lines=True)
    rows = [plain_text(i.row) for i in items if isinstance(i, RowItem)]
    assert (rows[0], rows[-1]) == (f"{0:069d}", f"{99_999:069d}")
    (gap,) = [i for i in items if isinstance(i, GapItem)]
    assert gap.size_bytes + 70 * len(rows) == path.stat().st_size
    assert gap.lines + len(rows) == 100_000


def test_a_very_long_line_is_cut_for_the_page(tmp_path):
    follower = Follower(tmp_path)
    follower.write(b"x" * 50_000 + b"\nnext\n")
    assert follower.finish() == ["x" * 10_000 + " … (+40000 characters)", "next"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=30), st.just(None)), max_size=12))
def test_looks_at_any_moment_show_the_same_as_one_at_the_end(tmp_path_factory, pieces):
    often, once = (Follower(tmp_path_factory.mktemp("log")) for _ in range(2))
    for piece in pieces:
        for follower in (often, once):
            if piece is None:
                follower.display("figure")
            else:
                follower.write(piece)
        often.look()
    assert often.finish() == once.finish()
