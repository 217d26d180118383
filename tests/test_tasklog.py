"""Bytes of a log in, prefixed lines out."""

from hypothesis import given
from hypothesis import strategies as st

from tfmagic.spec import TaskId
from tfmagic.tasklog import LogReader, prefix, settle_line, tail_lines

TASK = TaskId("worker", 0)


def reader_of(tmp_path, data):
    path = tmp_path / "worker-0.log"
    path.write_bytes(data)
    return path, LogReader(path, TASK)


def read_all(reader, step=1 << 16):
    text = ""
    while reader.behind_bytes:
        text += reader.read_lines(step)
    text += reader.take_partial()
    reader.close()
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
    reader.close()


def test_a_last_line_without_an_end_is_shown_at_the_end(tmp_path):
    _, reader = reader_of(tmp_path, b"no newline")
    assert read_all(reader) == "[worker-0]:    no newline\n"


def test_reading_stops_at_an_offset(tmp_path):
    _, reader = reader_of(tmp_path, b"one\ntwo\n")
    assert reader.read_lines(1000, end=4) == "[worker-0]:    one\n"
    assert reader.read_lines(1000, end=4) == ""
    reader.close()


def test_a_character_split_between_reads_is_not_torn(tmp_path):
    _, reader = reader_of(tmp_path, "größe\n".encode() * 50)
    assert read_all(reader, step=3) == "[worker-0]:    größe\n" * 50


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path):
    _, reader = reader_of(tmp_path, b"\xff\xfe\x00x\n")
    assert read_all(reader) == "[worker-0]:    ��\x00x\n"


def test_a_progress_bar_ends_as_one_line():
    bar = "".join(f"\r{n}%" for n in range(101))
    assert settle_line(bar) == "100%"
    assert settle_line("12\b\b34") == "34"
    assert settle_line("abc\rx") == "xbc"
    assert settle_line("\x1b[1mabc\x1b[0m\rx") == "\x1b[0mxbc"


def test_tail_and_missing_files(tmp_path):
    path, reader = reader_of(tmp_path, b"1\n2\n3\n")
    reader.close()
    assert tail_lines(path, 2) == ["2", "3"]
    assert tail_lines(tmp_path / "none.log", 2) == []
    assert LogReader(tmp_path / "none.log", TASK).read_lines(10) == ""


@given(
    st.lists(st.text(st.characters(blacklist_characters="\n\r\b", blacklist_categories=["Cs"]))),
    st.integers(1, 50),
)
def test_no_line_is_lost_whatever_the_pieces(tmp_path_factory, lines, step):
    data = "".join(line + "\n" for line in lines).encode()
    _, reader = reader_of(tmp_path_factory.mktemp("log"), data)
    assert read_all(reader, step) == "".join(prefix(TASK) + line + "\n" for line in lines)
