"""Prefixed lines and rows from the bytes of a log."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.log_reader import LogReader, RowStream, prefix, read_output, read_rows, tail_lines
from tfmagic.runs.terminal.screen import plain_text, rows_of

TASK = TaskId("worker", 0)


def reader_of(tmp_path, data):
    path = tmp_path / "worker-0.log"
    path.write_bytes(data)
    return path, LogReader(path, TASK)


def read_all(reader, step=1 << 16):
    text = ""
    while reader.log.behind_bytes:
        text += reader.read_lines(step)
    text += reader.take_partial()
    reader.log.close()
    return text


def test_the_prefix_is_padded_to_14_columns_and_a_space():
    assert prefix("worker-0") == "[worker-0]:    "
    assert prefix("evaluator-0") == "[evaluator-0]: "
    assert len(prefix("ps-0")) == 15


def test_lines_are_prefixed(tmp_path):
    _, reader = reader_of(tmp_path, b"a\n\nb\n")
    assert read_all(reader) == "[worker-0]:    a\n[worker-0]:    \n[worker-0]:    b\n"


def test_a_line_is_held_back_until_it_is_whole(tmp_path):
    path, reader = reader_of(tmp_path, b"one\ntw")
    assert reader.read_lines(1000) == "[worker-0]:    one\n"
    assert reader.read_lines(1000) == ""
    with path.open("ab") as file:
        file.write(b"o\n")
    assert reader.read_lines(1000) == "[worker-0]:    two\n"
    reader.log.close()


def test_a_last_line_without_an_end_is_shown_at_the_end(tmp_path):
    _, reader = reader_of(tmp_path, b"no newline")
    assert read_all(reader) == "[worker-0]:    no newline\n"


def test_reading_stops_at_an_offset(tmp_path):
    _, reader = reader_of(tmp_path, b"one\ntwo\n")
    assert reader.read_lines(1000, end=4) == "[worker-0]:    one\n"
    assert reader.read_lines(1000, end=4) == ""
    reader.log.close()


def test_a_character_split_between_reads_is_not_torn(tmp_path):
    _, reader = reader_of(tmp_path, "größe\n".encode() * 50)
    assert read_all(reader, step=3) == "[worker-0]:    größe\n" * 50


@pytest.mark.parametrize("step", [1, 2, 7, 1 << 16])
def test_a_line_cannot_look_like_another_one(tmp_path, step):
    """Characters that turn the order of others, that are not seen, or that end a line elsewhere."""
    text = "loss 0.1 \u202e9.0 \u2066x\u2028[worker-1]:    b\u200b\nnext\n"
    _, reader = reader_of(tmp_path, text.encode())
    shown = r"[worker-0]:    loss 0.1 \u202e9.0 \u2066x\u2028[worker-1]:    b\u200b"
    assert read_all(reader, step=step) == f"{shown}\n[worker-0]:    next\n"


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path):
    _, reader = reader_of(tmp_path, b"\xff\xfe\x00x\n")
    assert read_all(reader) == "[worker-0]:    ��␀x\n"


@pytest.mark.parametrize("step", [1, 7, 1 << 16])
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ("".join(f"\r{n}%" for n in range(101)) + "\n", ["100%"]),
        ("12\b\b34\n", ["34"]),
        ("abc\rx\n", ["xbc"]),
        ("\x1b[1mabc\x1b[0m\rx\nplain\n", ["xbc", "plain"]),
        ("\x1b]0;title\x07a\x00b\x1b[2J\x1b[5;5Hc\r\n", ["a␀bc"]),
        ("a\tb\n\x1b[31mred\n", ["a       b", "red"]),
        ("one\n\x1b[32m\ntwo\n", ["one", "", "two"]),
    ],
)
def test_bars_and_colours_and_controls(tmp_path, data, lines, step):
    path, reader = reader_of(tmp_path, data.encode())
    assert read_all(reader, step) == "".join(f"[worker-0]:    {line}\n" for line in lines)
    assert tail_lines(path, 100) == lines
    assert [plain_text(row) for row in read_rows(path)] == lines


def test_colours_are_kept_in_rows_only(tmp_path):
    path, reader = reader_of(tmp_path, b"\x1b[31mred\x1b[0m\nrest")
    assert reader.read_rows(1000) == [[("f1", "red")]]
    assert reader.live_row == "rest"
    assert reader.take_partial_rows() == ["rest"] and reader.live_row == ""
    assert reader.take_partial_rows() == []
    reader.log.close()
    assert read_output(path, 0, 1000) == "\x1b[31mred\x1b[0m\nrest"


def bars(count):
    """Return the output of two tqdm bars, one below the other."""
    for n in range(count + 1):
        yield f"\router {n}"
        for inner in range(4):
            yield from ("\n", f"\rinner {inner}", "\x1b[A")
    yield from ("\n", "\r       \r", "\x1b[A", f"\router {count}", "\n", "done\n")


@pytest.mark.parametrize("step", [64, 77, 100, 1000])
def test_bars_below_each_other_are_one_line_each(tmp_path, step):
    data = "".join(["before\n", *bars(30)]).encode()  # a step is far shorter than what is read at a look
    _, reader = reader_of(tmp_path, data)
    assert read_all(reader, step).replace("[worker-0]:    ", "") == "before\nouter 30\ndone\n"


def test_a_finished_bar_is_shown_at_the_next_look(tmp_path):
    path, reader = reader_of(tmp_path, b"\r50%\r100%\n")
    assert reader.read_lines(1000) == ""  # the cursor can be on its way to a bar below it
    assert reader.read_lines(1000) == "[worker-0]:    100%\n"
    with path.open("ab") as file:
        file.write(b"Epoch 2\n\r50%")
    assert reader.read_lines(1000) == "[worker-0]:    Epoch 2\n"
    assert reader.take_partial() == "[worker-0]:    50%\n"
    reader.log.close()


def test_a_line_that_the_cursor_comes_back_to_is_shown_again_if_it_has_changed():
    stream = RowStream()
    assert stream.feed(b"a\nb\nc\n") == ["a", "b", "c"]
    assert stream.feed(b"\x1b[2Ax") == [] and stream.live == "x"
    assert stream.feed(b"\n\n") == []
    assert stream.feed(b"d\ne") + stream.feed(b"") == ["x", "d"]
    assert stream.live == "e" and stream.finish() == ["e"]


def test_a_long_line_is_cut_however_it_is_read(tmp_path):
    data = b"short\n" + b"x" * 3_000_000 + b"\nafter\n"
    path, reader = reader_of(tmp_path, data)
    lines = read_all(reader, 1 << 16).splitlines()
    assert [len(line) for line in lines] == [20, 15 + 200_000 + len(" … (+2800000 characters)"), 20]
    _, reader = reader_of(tmp_path, b"x" * 200_000 + b"\n" + "é".encode() * 100_001 + b"\n")
    assert read_all(reader) == "".join(f"[worker-0]:    {c}\n" for c in ("x" * 200_000, "é" * 100_001))


@pytest.mark.parametrize("step", [1000, 1 << 16, 1 << 20])
def test_a_long_line_is_whole_up_to_a_chosen_limit(tmp_path, step):
    lines = ("short", "x" * 700_000, "é" * 350_000, "after", "y" * 900_000, "end")
    path = tmp_path / "own.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    reader = LogReader(path, TASK, whole_bytes=700_000)
    found = read_all(reader, step).splitlines()
    assert found[:4] == [f"[worker-0]:    {line}" for line in lines[:4]]
    assert found[4].endswith(" … (+700000 characters)") and found[5:] == ["[worker-0]:    end"]


def test_tail_and_missing_files(tmp_path):
    path, reader = reader_of(tmp_path, b"1\n2\n3\n")
    reader.log.close()
    assert tail_lines(path, 2) == ["2", "3"]
    assert tail_lines(path, 0) == [] and tail_lines(path, 9) == ["1", "2", "3"]
    assert list(read_rows(tmp_path / "none.log")) == []
    assert tail_lines(tmp_path / "none.log", 2) == []
    assert LogReader(tmp_path / "none.log", TASK).read_lines(10) == ""


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp"]))),
    st.integers(1, 50),
)
def test_no_line_is_lost_whatever_the_pieces(tmp_path_factory, lines, step):
    data = "".join(line + "\n" for line in lines).encode()
    _, reader = reader_of(tmp_path_factory.mktemp("log"), data)
    assert read_all(reader, step) == "".join(prefix(TASK) + line + "\n" for line in lines)


ANY = st.lists(
    st.one_of(
        st.binary(max_size=9),
        st.sampled_from(
            [b"line\n", b"\n", b"\r", b"\x1b[31m", b"\x1b]", b"\x07", b"\x1b[m", b"\xc2", b"\x85"]
        ),
    )
).map(b"".join)


@settings(deadline=None)
@given(ANY, st.integers(1, 50))
def test_any_bytes_are_safe_lines(tmp_path_factory, data, step):
    _, reader = reader_of(tmp_path_factory.mktemp("log"), data)
    text = read_all(reader, step)
    assert not [c for c in text if c != "\n" and unicodedata.category(c) == "Cc"]
    assert all(line.startswith(prefix(TASK)) for line in text.split("\n")[:-1])


@settings(deadline=None)
@given(ANY.filter(lambda data: not any(b"\x1b[" + bytes([c]) in data for c in b"ABEF")), st.integers(1, 50))
def test_rows_come_once_and_in_order_whatever_the_pieces(data, step):
    stream, rows = RowStream(), []
    for start in range(0, len(data), step):
        rows += stream.feed(data[start : start + step])
    rows += stream.finish()
    expected = rows_of(data)
    while expected and not expected[-1] and rows != expected:
        expected.pop()
    assert rows == expected
