"""The rows that a terminal shows for some bytes: each rule, and properties that hold for any bytes."""

import io
import sys
import tracemalloc
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tqdm import tqdm

import tfmagic
from tfmagic.runs.terminal.lines import cut
from tfmagic.runs.terminal.screen import WINDOW_ROWS, Screen, ansi_text, has_controls, plain_text, rows_of

LIMIT = 200_000


def whole(data):
    """Return all rows of bytes that are fed in one piece."""
    screen = Screen()
    screen.feed(data)
    screen.finish()
    return screen.take()[1]


def texts(data):
    return [plain_text(row) for row in whole(data)]


def patched(pieces):
    """Return all rows, put together from what was taken after each piece."""
    screen, rows = Screen(), []
    for piece in pieces:
        screen.feed(piece)
        base, changed = screen.take()
        if changed:
            assert base <= len(rows)
            rows[base:] = changed
        else:
            assert base == len(rows) or not rows
    screen.finish()
    base, changed = screen.take()
    if changed:
        rows[base:] = changed
    return rows


# -- text --


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\n", ["a", ""]),
        ("a\u202eb\u2028c\u200b\ufeff\n".encode(), [r"a\u202eb\u2028c\u200b\ufeff", ""]),
        (
            "a\u034fb\U000e0041\U000e007f\u3164\uffa0\ufff9\n".encode(),
            [r"a\u034fb\U000e0041\U000e007f\u3164\uffa0\ufff9", ""],
        ),
        (
            "\u115fx\u17b4y\U0001d173ㅏﾠ각ក葛󠄀\n".encode(),
            [r"\u115fx\u17b4y\U0001d173" + "ㅏ" + r"\uffa0" + "각ក葛󠄀", ""],
        ),
        ("👨\u200d👩 “x”\n".encode(), ["👨\u200d👩 “x”", ""]),
        (  # the flag of Scotland
            "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f\n".encode(),
            ["\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", ""],
        ),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b", ""]),
        (b"abc\rx", ["xbc"]),
        (b"abc\r\r\nx", ["abc", "x"]),
        (b"12\b\b34", ["34"]),
        (b"\b\b\bx", ["x"]),
        (b"abc   \rx", ["xbc"]),  # blanks that a bar leaves behind are not kept,
        (b"abc   ", ["abc   "]),  # but those that were printed are
        (b"a\tb\tc", ["a       b       c"]),
        (b"12345678\tx", ["12345678        x"]),
        (b"abcdefghij\r\tX", ["abcdefghXj"]),
        ("世\tx".encode(), ["世      x"]),
        ("é\t\nab\tx".encode(), ["é", "ab      x"]),
        (b"a\xffb\xc3", ["a\ufffdb\ufffd"]),
        (b"\x00\x01\x0b\x0c\x1a\x7f", ["␀␁␋␌␚␡"]),
        (b"bell\x07!", ["bell!"]),
        ("a\x80\x9bb".encode(), ["a\ufffd\ufffdb"]),
    ],
)
def test_text_and_single_controls(data, rows):
    assert whole(data) == rows


def test_wide_characters_take_two_columns_and_marks_join_the_one_before():
    assert texts("世界\rab".encode()) == ["ab界"]
    assert texts("世界\ra".encode()) == ["a 界"]  # half of it was overwritten
    assert texts("世界\b\bx".encode()) == ["世x"]
    assert texts("世界\bx".encode()) == ["世 x"]
    assert texts("e\u0301a\b\bx".encode()) == ["xa"]
    assert texts("世\u0301a\rxy".encode()) == ["xya"]
    assert texts("\u0301a".encode()) == ["\u0301a"]


def test_marks_without_end_are_kept_and_bounded():
    marks = "a" + "\u0301" * 300
    assert texts(f"{marks}\n".encode())[0] == marks
    (row,) = whole(b"a\rb" + ("\u0301" * 2_000_000).encode())
    assert len(plain_text(row)) < 70 * LIMIT


# -- styles --


@pytest.mark.parametrize(
    ("codes", "style"),
    [
        ("1", "b"),
        ("1;2;3;4;9;7", "b d i u s r"),
        ("31;1", "b f1"),
        ("97;100", "f15 g8"),
        ("38;5;9;48;5;0", "f9 g0"),
        ("38;5;196", "f#ff0000"),
        ("38;5;16", "f#000000"),
        ("38;5;232;48;5;255", "f#080808 g#eeeeee"),
        ("48;2;1;2;255", "g#0102ff"),
        ("38:2::1:2:3", "f#010203"),
        ("38:2:1:2:3", "f#010203"),
        ("38:5:200;1", "b f#ff00d7"),
        ("4:3", "u"),
        ("4;4:0", ""),
        ("58;5;3;1", "b"),
        ("58;2;1;2;3;1", "b"),
        ("1;22;3;23;4;24;9;29;7;27;31;39;41;49", ""),
        ("1;31;0", ""),
        ("1;;3", "i"),
        ("38;5", ""),
        ("38", ""),
        ("38;5;256", ""),
        ("38;2;1;2;999;1", "b"),
        ("5;8;53;107", "g15"),
        (";".join(["1"] * 100), "b"),
    ],
)
def test_styles(codes, style):
    (row,) = whole(f"\x1b[{codes}mx".encode())
    assert row == ([(style, "x")] if style else "x")


def test_a_style_goes_on_until_it_ends_also_over_rows():
    assert whole(b"a\x1b[31mb\nc\n\nd\x1b[me") == [
        [("", "a"), ("f1", "b")],
        [("f1", "c")],
        "",
        [("f1", "d"), ("", "e")],
    ]
    assert whole(b"\x1b[32mabc\rx\x1b[0my") == [[("f2", "x"), ("", "y"), ("f2", "c")]]


def test_blanks_that_show_are_kept():
    assert whole(b"abc\r\x1b[41m   ") == [[("g1", "   ")]]
    assert whole(b"abc\r\x1b[31m   ") == [""]


def test_a_row_becomes_codes_again():
    data = b"a\x1b[1;4;38;5;9;48;2;1;2;3mb\x1b[0m\x1b[95mc\x1b[0md"
    (row,) = whole(data)
    assert ansi_text(row) == "a\x1b[1;4;91;48;2;1;2;3mb\x1b[0m\x1b[95mc\x1b[0md"
    assert whole(ansi_text(row).encode()) == [row]
    assert ansi_text("plain") == "plain"


# -- the cursor --


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        ("abc\r\x1b[K", [""]),
        ("abc\b\x1b[K", ["ab"]),
        ("abc\b\b\x1b[1K", ["  c"]),
        ("abc\x1b[2K", [""]),
        ("abc\x1b[2Kd", ["   d"]),
        ("世界\r\x1b[C\x1b[K", [""]),
        ("a\nb\nc\x1b[2A\x1b[J", ["a"]),
        ("a\nb\nc\x1b[2A\r\x1b[0Jx", ["x"]),
        ("a\nb\x1b[2J\x1b[1J\x1b[3J", ["a", "b"]),
        ("a\nb\x1b[Ac", ["ac", "b"]),
        ("a\nb\x1b[9Ac", ["ac", "b"]),
        ("ab\ncd\x1b[Fx", ["xb", "cd"]),
        ("ab\ncd\x1b[F\x1b[Ex", ["ab", "xd"]),
        ("ab\ncd\x1b[A\x1b[Bx", ["ab", "cdx"]),
        ("ab\x1b[5Bx", ["abx"]),  # there is no row below
        ("ab\x1b[3Cx", ["ab   x"]),
        ("abcd\x1b[2Dx", ["abxd"]),
        ("abcd\x1b[9Dx", ["xbcd"]),
        ("abcd\x1b[2Gx\x1b[Gy", ["yxcd"]),
        ("ab\x1b[0Cx", ["ab x"]),
        ("ab\x1b[99999999999999999999C", ["ab"]),
    ],
)
def test_the_cursor_moves_and_erases(data, rows):
    assert texts(data.encode()) == rows


def test_the_cursor_stays_in_the_window():
    lines = [f"row {n}" for n in range(100)]
    rows = texts(("\n".join(lines) + "\x1b[99A\r>").encode())
    changed = [n for n in range(100) if rows[n] != lines[n]]
    assert changed == [100 - WINDOW_ROWS] and rows[changed[0]] == ">ow 50"


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b]0;title\x07",
        "\x1b]0;title\x1b\\",
        "\x1bPq#0~~\x1b\\",
        "\x1b_apc\x1b\\",
        "\x1b^pm\x1b\\",
        "\x1bXsos\x1b\\",
        "\x1b[?25l",
        "\x1b[>4;2m",
        "\x1b[2 q",
        "\x1b[5;5H",
        "\x1b[2J",
        "\x1b[6n",
        "\x1b(B",
        "\x1b#8",
        "\x1b7\x1b8",
        "\x1bc",
        "\x1bM",
        "\x1b=",
    ],
)
def test_other_sequences_are_dropped(sequence):
    data = f"a{sequence}b".encode()
    assert whole(data) == ["ab"]
    assert patched([bytes([c]) for c in data]) == ["ab"]


def test_the_text_of_a_hyperlink_stays():
    assert whole(b"see \x1b]8;;https://a.b/c\x1b\\here\x1b]8;;\x1b\\.") == ["see here."]


def test_a_string_without_an_end_swallows_no_more_than_4096_bytes():
    assert texts(b"\x1b]" + b"x" * 5000 + b"\nafter") == ["x" * (5000 - 4096), "after"]
    assert texts(b"\x1b]" + "é".encode() * 2048 + b"after") == ["after"]
    assert texts(b"\x1b]x" + "é".encode() * 2048 + b"after") == ["éafter"]
    assert texts(b"\x1b]" + b"x" * 4096 + b"\x07after") == ["after"]
    assert texts(b"\x1b]oops\nlast words") == ["oops", "last words"]


def test_what_is_no_sequence_is_shown():
    assert texts(b"\x1b[3\nx") == ["␛[3", "x"]
    assert texts(b"\x1b\x1b[1mx") == ["␛x"]
    assert texts(b"\x1b[" + b"1" * 300 + b"mx") == ["␛[" + "1" * 300 + "mx"]
    assert texts(b"a\x1b[3") == ["a"]  # incomplete at the end


# -- long rows --


def test_a_long_row_is_cut_and_counted():
    (row,) = whole(b"x" * LIMIT)
    assert row == "x" * LIMIT
    (row,) = whole(b"x" * (LIMIT + 5))
    assert row == [("", "x" * LIMIT), ("d", " … (+5 characters)")]
    (row, after) = whole("世".encode() * (LIMIT // 2 + 2000) + b"\nok")
    assert row == [("", "世" * (LIMIT // 2)), ("d", " … (+2000 characters)")] and after == "ok"
    (row,) = whole(b"x" * (LIMIT + 5) + b"\rabc\x1b[K")
    assert row == "abc"
    (row,) = whole(b"x" * (LIMIT + 5) + b"\b\b\x1b[K")
    assert row == [("", "x" * LIMIT), ("d", " … (+3 characters)")]


@pytest.mark.parametrize(
    "head", ["\x1b[31m", *(pytest.param(head, marks=pytest.mark.soak) for head in ("", "\r", "世"))]
)
def test_a_line_of_50_megabytes_costs_none(head):
    screen = Screen()
    piece = "x" * (1 << 18) if head != "世" else "世" * (1 << 17)
    screen.feed(head.encode())
    tracemalloc.start()
    for _ in range(200):
        screen.feed(piece.encode())
        screen.take()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    screen.feed(b"!")
    row = plain_text(screen.take()[1][-1])
    kept = row.partition(" …")[0]
    hidden = len(piece) * 200 + 1 + (head == "世") - len(kept)
    assert row == f"{kept} … (+{hidden} characters)"


# -- taking --


def test_what_is_taken_replaces_what_was_taken_from_there_on():
    screen = Screen()
    assert screen.take() == (1, []) and screen.ends_clean
    screen.feed(b"a\nb")
    assert screen.take() == (0, ["a", "b"]) and not screen.ends_clean
    assert screen.take() == (2, [])
    screen.feed(b"c\n")
    assert screen.take() == (1, ["bc", ""]) and screen.ends_clean
    screen.feed(b"d")
    assert screen.take() == (2, ["d"])
    screen.feed(b"\x1b[A!")
    assert screen.take() == (1, ["b!", "d"])
    screen.feed(b"\x1b[J")
    assert screen.take() == (1, ["b!"])


def test_a_cleared_bar_leaves_a_clean_end():
    screen = Screen()
    screen.feed(b"\r50%\r   \r")
    assert screen.take() == (0, [""]) and screen.ends_clean
    screen.feed(b"x\x1b[A")
    assert not screen.ends_clean


def test_rows_that_were_taken_are_forgotten():
    screen = Screen()
    screen.feed(b"x" * 69 + b"\n")
    tracemalloc.start()
    for _ in range(200):
        screen.feed((b"y" * 69 + b"\n") * 1000)
        base, rows = screen.take()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert base + len(rows) == 200_002 and peak < 2 << 20


def test_rows_that_were_not_taken_are_kept():
    screen = Screen()
    for n in range(1000):
        screen.feed(f"{n}\r{n}\n".encode())
    assert screen.take() == (0, [*map(str, range(1000)), ""])


def test_all_rows_of_a_text():
    assert rows_of(b"") == [] and rows_of(b"\n") == [""] and rows_of(b"a\nb\n") == ["a", "b"]


def test_rows_that_the_cursor_goes_up_in_are_not_settled():
    screen = Screen()
    screen.feed(b"a\nb\nc")
    assert screen.settled == 2
    screen.feed(b"\x1b[A")
    assert screen.settled == 1
    screen.feed(b"\n")  # at the bottom of what it goes up in
    assert screen.settled == 1
    screen.feed(b"\n")
    assert screen.settled == 3


def test_a_row_is_cut_to_columns():
    assert cut("abc", 3) == ("abc", 3)
    assert cut("abcd", 3) == ([("", "abc")], 3)
    assert cut([("b", "世"), ("", "界x")], 3) == ([("b", "世"), ("", "")], 2)
    assert cut("e\u0301x", 1) == ([("", "e\u0301")], 1)


def test_controls_are_found():
    assert not has_controls("plain – ünï\n世\u00a0\n".encode() * 100)
    assert all(has_controls(b"a" * 99 + bytes([c])) for c in (*range(10), *range(11, 32), 127))
    assert has_controls("\x85".encode())


# -- real bars --


class Pipe(io.StringIO):
    """A stream for tqdm that keeps each write as a piece."""

    def __init__(self):
        super().__init__()
        self.pieces = []

    def write(self, text):
        self.pieces.append(text.encode())
        return len(text)


def nested_bars(leave):
    out = Pipe()
    options = {"file": out, "mininterval": 0, "ncols": 60, "ascii": False}
    for _ in tqdm(range(3), position=0, desc="outer", **options):
        for _ in tqdm(range(20), position=1, desc="inner", leave=leave, **options):
            pass
    out.write("done\n")
    return out.pieces


def test_nested_bars_of_tqdm_stay_in_place():
    pieces = nested_bars(leave=False)
    rows = [plain_text(row) for row in patched(pieces)]
    assert rows[0].startswith("outer: 100%|") and "| 3/3 [" in rows[0]
    assert rows[1:] == ["done", ""]
    assert patched(pieces) == whole(b"".join(pieces))


def test_two_bars_of_tqdm_side_by_side():
    out = Pipe()
    first = tqdm(total=50, file=out, desc="first", mininterval=0, ncols=60, ascii=False, position=0)
    second = tqdm(total=50, file=out, desc="second", mininterval=0, ncols=60, ascii=False, position=1)
    for _ in range(50):
        first.update()
        second.update()
    rows = [plain_text(row) for row in patched(out.pieces)]
    assert len(rows) == 2 and rows[0].startswith("first: 100%|█") and rows[1].startswith("second: 100%|█")
    assert all("50/50 [" in row for row in rows)
    second.close()
    first.close()
    rows = [plain_text(row) for row in patched(out.pieces)]
    # the one that is closed first is drawn again on top, and the other below it: tqdm's own order
    assert [row.partition(":")[0] for row in rows] == ["second", "first", ""]


def test_the_progress_bar_of_keras():
    def draw():

        import keras

        sys.stdout.isatty = lambda: True
        bar = keras.utils.Progbar(30, interval=0)
        for n in range(1, 31):
            bar.update(n, [("loss", 1 / n)], finalize=n == 30)
        print("after")

    with tfmagic.Cluster(workers=1) as cluster:
        cluster.run(draw, view="quiet")
        data = cluster.run_folder.log_path(cluster.tasks[0]).read_bytes()
    data = data[data.index(b"\x1b[") :]  # behind the lines that TensorFlow writes at its start
    assert data.count(b"\r") > 20
    bar, after, rest = whole(data)
    assert (after, rest) == ("after", "")
    assert plain_text(bar).startswith("30/30 ━━━━━━━━━━━━━━━━━━━━ ") and "loss: 0." in plain_text(bar)
    assert ("f2", "━" * 20) in bar and bar[0] == ("b", "30/30")
    assert patched([bytes([c]) for c in data]) == whole(data)


def test_a_bar_of_many_updates_is_one_row():
    data = "".join(f"\r{n / 1000:5.1f}%|{'█' * (n // 5000):20}| {n}/100000" for n in range(100_001))
    assert texts(data.encode()) == [f"100.0%|{'█' * 20}| 100000/100000"]


# -- any bytes --

PIECES = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=12).map(lambda s: s.encode("utf-8", "replace")),
    st.sampled_from(
        [
            b"\n",
            b"\r",
            b"\r\n",
            b"\b",
            b"\t",
            b"\x1b",
            b"\x1b[",
            b"\x1b]",
            b"\x07",
            b"\x1b\\",
            b"\x1bP",
            b"\x1b[A",
            b"\x1b[2A",
            b"\x1b[B",
            b"\x1b[K",
            b"\x1b[1K",
            b"\x1b[J",
            b"\x1b[31m",
            b"\x1b[0m",
            b"\x1b[3C",
            b"\x1b[4G",
            b"\x1b[2D",
            b"\x1b[F",
            b"\x1b[1;4m",
            b"\x1b[E",
            b"\n" * 60,
            "世界".encode(),
            "e\u0301".encode(),
            "\u0301".encode(),
            b"abc  ",
            b"0123456789",
            b"\xc2\x85",
            "世".encode() * 4990,
            b"x" * 9990,
            b"y" * 4090,
            b"\t" * 1249,
            b"\xe4\xb8",
            b"\xf0\x9f",
        ]
    ),
)
STREAMS = st.lists(PIECES, max_size=30).map(b"".join)


@st.composite
def streams_in_pieces(draw):
    data = draw(STREAMS)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=20)))
    return data, [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@settings(max_examples=150, deadline=None)
@given(streams_in_pieces())
def test_pieces_make_no_difference(stream):
    data, pieces = stream
    screen = Screen()
    for piece in pieces:
        screen.feed(piece)
    screen.finish()
    assert screen.take()[1] == whole(data)


@settings(max_examples=150, deadline=None)
@given(streams_in_pieces())
def test_taking_at_any_time_makes_no_difference(stream):
    data, pieces = stream
    assert patched(pieces) == whole(data)


@settings(max_examples=150, deadline=None)
@given(STREAMS)
def test_no_control_is_left(data):
    for row in whole(data):
        assert not [c for c in plain_text(row) if unicodedata.category(c) == "Cc"]
        assert isinstance(row, str) or (row and all(text for _, text in row))
        assert isinstance(row, str) or len(row) > 1 or row[0][0]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp"]))), st.integers(1, 9))
def test_text_without_controls_comes_back_as_it_is(lines, step):
    text = "\n".join(lines)
    data = text.encode()
    assert "\n".join(texts(data)) == text
    pieces = [data[n : n + step] for n in range(0, len(data), step)]
    assert "\n".join(map(plain_text, patched(pieces))) == text
