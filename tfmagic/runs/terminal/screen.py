r"""Turns a task's bytes into the rows that a terminal would show.

    bytes ─ decode ─→ text ─┬─ no control in it: split at line ends ──────→ plain rows
                            └─ runs, controls, escape sequences ─→ cells ─→ rows of (style, text)

Views and log readers feed a `Screen` and take its rows. Only the last rows can still change: the cursor moves
among them, so that nested progress bars stay in place. The rows that it came back to are cells (`Line`), all
others are text: so a flood is quick and a progress bar of a hundred thousand updates is cheap. A row holds no
control character, and shows characters that are invisible or turn the order of others as escapes: a line must
not look like another one.
"""

import codecs
import re

from tfmagic.runs.terminal.lines import LIMIT_COLUMNS, Line, joined
from tfmagic.runs.terminal.styles import Row, ansi_text, plain_text, restyle, with_error

__all__ = ["WINDOW_ROWS", "Row", "Screen", "ansi_text", "has_controls", "plain_text", "rows_of"]

WINDOW_ROWS = 50  # the cursor goes no further up
_STRING_BYTES = 4096  # a longer string sequence (OSC, DCS, ...) is treated as text
_PIECE_BYTES = 1 << 16  # decoded at a time
_END = -1  # the cursor's column: after the last character of the row

_CONTROL_BYTES = [bytes([c]) for c in (*range(0x20), 0x7F) if c != 0x0A]
_C1 = re.compile("[\x80-\x9f]")
_TEXT = re.compile("[^\x00-\x08\x0b-\x1f\x7f-\x9f]+")  # with line ends and tabs
_SHOWN = re.compile("[\x00-\x06\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]+")
_HIDDEN = re.compile(  # not the joiners of emoji and of Indian and Persian words, U+200C and U+200D
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a]|"
    "(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0000-\U000e007f]+"  # after a black flag they name a country
)
_FIRST = (0xAD, 0x34F, 0x61C, 0x115F, 0x17B4, 0x180E, 0x200B, 0x2060, 0x3164, 0xFEFF, 0xFFA0, 0xFFF9)
_LEADS = (*(chr(one).encode()[:2] for one in _FIRST), b"\xf0\x9d\x85", b"\xf3\xa0")  # their first bytes
_BACK = re.compile("\b+")
_PICTURES = {c: 0x2400 + c for c in range(0x20)} | {0x7F: "␡"} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
_SGR = re.compile(r"\x1b\[([0-9;:]{0,256})m")
_ESCAPE = re.compile(
    r"\x1b(?:\[(?P<params>[0-?]{0,256})(?P<middle>[ -/]{0,8})(?P<final>[@-~])"
    r"|(?P<string>[]P_^X])"
    r"|[ -/]{1,8}[0-~]|[0-OQ-WYZ\\`-~])"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]{0,256}[ -/]{0,8}|[ -/]{0,8})\Z")
_STRING_END = re.compile("[\x07\x1b]")  # the backslash of the other end, ESC \, has no meaning by itself


def has_controls(data: bytes) -> bool:
    """Check whether bytes hold more than text and line ends, or text that is not seen."""
    # 32 searches for one byte are ten times as fast as one regular expression
    for control in _CONTROL_BYTES:
        if control in data:
            return True
    if data.isascii():
        return False
    if b"\xc2" in data and _C1.search(data.decode("utf-8", "replace")) is not None:
        return True
    return (
        any(lead in data for lead in _LEADS) and _HIDDEN.search(data.decode("utf-8", "replace")) is not None
    )


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("ascii", "backslashreplace").decode()


def rows_of(data: bytes) -> list[Row]:
    """Return all rows of a complete text."""
    screen = Screen()
    screen.feed(data)
    screen.finish()
    rows = screen.take()[1]
    if rows and screen.ends_clean:
        rows.pop()
    return rows


class Screen:
    """See the module. Characters and escape sequences can be split between two calls of `feed`."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""  # the beginning of an escape sequence
        self._string: str | None = None  # the text of a string sequence so far
        self._rows: list[Row | Line] = [""]
        self._first = 0  # the number of the first row that is kept
        self._frozen = 0  # rows below that number do not change any more
        self._row, self._column, self._style = 0, _END, ""
        self._held: tuple[int, int] | None = None  # the rows among which the cursor goes up and down
        self._dirty, self._changed = 0, False
        self._was_empty, self._was_clean = True, True

    # -- interface --

    def feed(self, data: bytes) -> None:
        """Write bytes to the screen."""
        if data and self._was_empty:
            self._was_empty = False
            self._mark(0)  # from the first byte on there is a first row, also if it stays empty
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            text = self._decoder.decode(piece)
            if not text.isascii():
                text = _HIDDEN.sub(_escaped, text)
            # a C1 control may begin in the piece before
            if self._pending or self._string is not None or has_controls(piece) or _C1.match(text):
                self._interpret(text)
            else:
                self._write(text)

    def feed_of(self, is_error: bool, data: bytes) -> None:
        """Write bytes of the error stream, or of another one."""
        self._style = with_error(self._style, is_error)
        self.feed(data)

    def finish(self) -> None:
        """End the stream: an incomplete sequence is shown as far as it is text."""
        self._interpret(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        swallowed, self._string, self._pending = self._string, None, ""
        if swallowed:
            self._interpret(swallowed)

    def take(self) -> tuple[int, list[Row]]:
        """Return (base, rows): these replace all rows from number `base` on that were taken before.

        The last one can be unfinished. (n, []) if nothing changed.
        """
        clean, end = self.ends_clean, self._end
        if clean != self._was_clean:
            self._mark(end - 1)
            self._was_clean = clean
        if not self._changed:
            return end, []
        base = self._dirty
        window = max(base, self._frozen) - self._first  # no cells further up
        rows: list[Row] = self._rows[base - self._first : window]  # type: ignore[assignment]
        rows += [row.row() if isinstance(row, Line) else row for row in self._rows[window:]]
        # an empty last row is given again: the caller can have left it out
        self._dirty, self._changed = end - 1 if clean else end, False
        del self._rows[: self._frozen - self._first]
        self._first = self._frozen
        return base, rows

    @property
    def ends_clean(self) -> bool:
        """Whether the cursor is at the beginning of an empty last row."""
        last = self._rows[-1]
        if self._row != self._end - 1 or self._column > 0:
            return False
        return not (last.row() if isinstance(last, Line) else last)

    @property
    def idle(self) -> bool:
        """Whether later output depends on no earlier state except the rows above."""
        undecoded = self._decoder.getstate()[0]
        begun = undecoded or self._pending or self._string is not None or self._style
        return not begun and self.ends_clean

    @property
    def settled(self) -> int:
        """The number of rows that will probably not change any more, for a reader that gives each row once.

        The rows among which the cursor goes up and down are not settled until it leaves them at the bottom.
        """
        return min(self._row, self._held[0]) if self._held else self._row

    def is_drawn(self, number: int) -> bool:
        """Check whether the cursor came back to a row of the window, as progress bars do."""
        return number >= self._frozen and isinstance(self._rows[number - self._first], Line)

    # -- text --

    @property
    def _end(self) -> int:
        return self._first + len(self._rows)

    def _mark(self, row: int) -> None:
        self._changed = True
        if row < self._dirty:
            self._dirty = row

    def _write(self, text: str) -> None:
        """Write text with line ends and no other control."""
        head, newline, rest = text.partition("\n")
        if head:
            self._put(head)
        while newline:
            if self._row == self._first + len(self._rows) - 1:
                self._extend(rest)
                return
            self._row, self._column = self._row + 1, 0
            head, newline, rest = rest.partition("\n")
            if head:
                self._put(head)

    def _extend(self, text: str) -> None:
        """Append a row for each line of `text`."""
        self._mark(self._first + len(self._rows))
        if "\n" in text:
            lines = text.split("\n")
            longest = LIMIT_COLUMNS if text.isascii() else LIMIT_COLUMNS // 2
            if max(map(len, lines)) > longest:
                for line in lines:
                    self._extend(line)
                return
            style = self._style
            self._rows += [[(style, line)] if line else "" for line in lines] if style else lines
        else:
            self._rows.append("")
        self._row, self._column = self._first + len(self._rows) - 1, _END
        if self._held and self._row > self._held[1]:
            self._held = None
        self._freeze()
        if text and "\n" not in text:
            self._put(text)

    def _freeze(self) -> None:
        """Turn rows that have left the window into text."""
        rows, first = self._rows, self._first
        frozen = first + len(rows) - WINDOW_ROWS
        if frozen > self._frozen:
            for place in range(self._frozen - first, frozen - first):
                row = rows[place]
                if isinstance(row, Line):
                    rows[place] = row.row()
            self._frozen = frozen

    def _put(self, text: str) -> None:
        """Write text without any control at the cursor."""
        self._mark(self._row)
        place = self._row - self._first
        row = self._rows[place]
        if self._column == _END and not isinstance(row, Line):
            longer = joined(row, self._style, text)
            if longer is not None:
                self._rows[place] = longer
                return
        self._column = self._line().write(self._column, text, self._style)

    def _line(self) -> Line:
        """Return the cursor's row as cells, and make its column a number."""
        place = self._row - self._first
        row = self._rows[place]
        if not isinstance(row, Line):
            row = self._rows[place] = Line.of(row)
        if self._column == _END:
            self._column = len(row.chars)
        return row

    def _locate(self) -> None:
        """Make the cursor's column a number."""
        if self._column == _END:
            row = self._rows[self._row - self._first]
            if isinstance(row, str) and row.isascii():
                self._column = len(row)
            else:
                self._line()

    def _write_tabs(self, text: str) -> None:
        """Write text with tabs and line ends."""
        row = self._rows[self._row - self._first]
        if self._column == _END and isinstance(row, str) and not self._style and text.isascii():
            widened = (row + text).expandtabs()
            if row.isascii() and max(map(len, widened.split("\n"))) <= LIMIT_COLUMNS:
                self._write(widened[len(row) :])
                return
        for part in re.split("(\t|\n)", text):
            if part == "\t":
                self._tab()
            elif part:
                self._write(part)

    def _tab(self) -> None:
        row = self._rows[self._row - self._first]
        if self._column == _END and isinstance(row, str) and row.isascii() and not self._style:
            self._put(" " * (8 - len(row) % 8))  # as `expandtabs` does
        else:
            self._locate()
            self._go_to(self._column // 8 * 8 + 8)

    # -- controls --

    def _interpret(self, text: str) -> None:
        """Write text with controls and escape sequences."""
        if self._pending:
            text, self._pending = self._pending + text, ""
        if "\x1b" not in text and self._string is None:
            text = text.replace("\r\n", "\n")
        position, size = 0, len(text)
        while position < size:
            if self._string is not None:
                position = self._swallow(text, position)
            elif match := _TEXT.match(text, position):
                found, position = match[0], match.end()
                if "\t" in found:
                    self._write_tabs(found)
                else:
                    self._write(found)
            elif match := _SGR.match(text, position):
                self._style, position = restyle(self._style, match[1]), match.end()
            else:
                position = self._control(text, position)

    def _control(self, text: str, position: int) -> int:
        """Carry out the control at `position`; return where the text goes on."""
        char = text[position]
        if char == "\r":
            self._column = 0
        elif char == "\x1b":
            return self._escape(text, position)
        elif match := _BACK.match(text, position):
            self._locate()
            self._column = max(self._column - len(match[0]), 0)
            return match.end()
        elif match := _SHOWN.match(text, position):
            self._put(match[0].translate(_PICTURES))
            return match.end()
        return position + 1

    def _escape(self, text: str, position: int) -> int:
        match = _ESCAPE.match(text, position)
        if match is None:
            if _UNFINISHED.match(text, position):
                self._pending = text[position:]
                return len(text)
            self._put("␛")
            return position + 1
        if match["string"]:
            self._string = ""
        elif match["final"] and not match["middle"]:
            self._sequence(match["params"], match["final"])
        return match.end()

    def _swallow(self, text: str, position: int) -> int:
        """Skip a string sequence, up to its end or its limit; return where the text goes on."""
        assert self._string is not None
        room = _STRING_BYTES - len(self._string.encode())
        piece = text[position : position + room + 1]
        match = _STRING_END.search(piece)
        if match:
            piece = piece[: match.start()]
        fits = piece.encode()[:room].decode("utf-8", "ignore")
        position += len(fits)
        if match is None and len(fits) == len(piece):
            self._string += fits
            return position
        self._string = None
        return position + (text[position] == "\x07")

    def _sequence(self, params: str, final: str) -> None:
        """Carry out a control sequence (CSI) that moves the cursor or erases; ignore others."""
        number = params.partition(";")[0]
        if final not in "ABCDEFGJK" or number.strip("0123456789"):
            return
        count = min(int(number or "0"), LIMIT_COLUMNS)
        if final in "JK":
            self._erase(final, count)
            return
        self._locate()
        count = max(count, 1)
        match final:
            case "A" | "F":
                self._climb(-count)
            case "B" | "E":
                self._climb(count)
            case "C":
                self._go_to(self._column + count)
            case "D":
                self._column = max(self._column - count, 0)
            case "G":
                self._column = count - 1
        if final in "EF":
            self._column = 0

    def _climb(self, count: int) -> None:
        """Move the cursor up or down among the existing rows."""
        row = min(max(self._row + count, self._frozen), self._end - 1)
        if row < self._row:
            self._held = (min(row, self._held[0]) if self._held else row, self._end - 1)
        self._row, self._column = row, min(self._column, LIMIT_COLUMNS - 1)

    def _go_to(self, column: int) -> None:
        """Move the cursor to the right, among the columns that are shown."""
        self._column = max(self._column, min(column, LIMIT_COLUMNS - 1))

    def _erase(self, final: str, mode: int) -> None:
        if mode > (2 if final == "K" else 0):
            return
        self._mark(self._row)
        self._line().erase(self._column, mode)
        if final == "J":
            del self._rows[self._row + 1 - self._first :]
