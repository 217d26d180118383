"""One row of a `Screen` as cells, which can be overwritten, erased and cut."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby

from wcwidth import wcwidth

from tfmagic.runs.terminal.styles import Row, plain_text

LIMIT_COLUMNS = 200_000  # characters further right are only counted
_MARKS = 64  # combining marks on one character; further ones get columns of their own
_RUNS = 32  # a row with more changes of style is kept as cells
_SHOWS_ON_BLANKS = re.compile("[gurs]")  # background, underline, reversed, strike


class Line:
    """A row as cells. An empty cell follows a wide character; combining marks share their letter's cell."""

    __slots__ = ("chars", "edited", "hidden", "styles")

    def __init__(self) -> None:
        self.chars: list[str] = []
        self.styles: list[str] = []
        self.hidden = 0  # characters after the last column; each counts as one column
        self.edited = False  # overwritten or erased: then trailing blanks are not shown

    @classmethod
    def of(cls, row: Row) -> Line:
        """Return the cells of a row that was written from left to right."""
        line, column = cls(), 0
        for style, text in [("", row)] if isinstance(row, str) else row:
            column = line.write(column, text, style)
        return line

    def row(self) -> Row:
        """Return the row that is shown."""
        chars, styles, size = self.chars, self.styles, len(self.chars)
        if self.edited:
            while size and chars[size - 1] == " " and not _SHOWS_ON_BLANKS.search(styles[size - 1]):
                size -= 1
        runs: list[tuple[str, str]] = []
        start = 0
        for style, group in groupby(styles[:size]):
            end = start + len(list(group))
            runs.append((style, "".join(chars[start:end])))
            start = end
        if self.hidden:
            runs.append(("d", f" … (+{self.hidden} characters)"))
        if not runs:
            return ""
        return runs[0][1] if len(runs) == 1 and not runs[0][0] else runs

    def write(self, column: int, text: str, style: str) -> int:
        """Write from `column` on; return the column after the text."""
        if column < LIMIT_COLUMNS:
            missing = column - len(self.chars)
            if missing > 0:
                self.chars += " " * missing
                self.styles += [""] * missing
            self.edited = self.edited or missing < 0
            if text.isascii() or all(column_count(char) == 1 for char in set(text)):
                self._place(column, text[: LIMIT_COLUMNS - column], style)
                column += len(text)
            else:
                column = self._write_wide(column, text, style)
        else:
            column += len(text)
        self.hidden = max(self.hidden, column - LIMIT_COLUMNS)
        return column

    def erase(self, column: int, mode: int) -> None:
        """Erase as CSI K does: to the right, to the left, or all."""
        self.edited = True
        if mode == 1:
            self._place(0, " " * min(column + 1, len(self.chars)), "")
            return
        start = 0 if mode == 2 else column
        if start < len(self.chars) and self.chars[start] == "":
            self.chars[start - 1] = " "
        del self.chars[start:], self.styles[start:]
        self.hidden = min(self.hidden, max(start - LIMIT_COLUMNS, 0))

    def _write_wide(self, column: int, text: str, style: str) -> int:
        chars = self.chars
        for place, char in enumerate(text):
            width = column_count(char)
            if width == 0 and 0 < column < LIMIT_COLUMNS:
                letter = column - 1 if chars[column - 1] else column - 2
                if len(chars[letter]) <= _MARKS:
                    chars[letter] += char
                    continue
            if column + (width or 1) > LIMIT_COLUMNS:
                return max(column, LIMIT_COLUMNS) + len(text) - place
            self._place(column, [char, ""] if width == 2 else [char], style)
            column += width or 1
        return column

    def _place(self, column: int, cells: str | list[str], style: str) -> None:
        """Overwrite cells; a wide character that loses one half becomes a blank."""
        chars, end = self.chars, column + len(cells)
        if column < len(chars) and chars[column] == "":
            chars[column - 1] = " "
        if end < len(chars) and chars[end] == "":
            chars[end] = " "
        chars[column:end] = cells
        self.styles[column:end] = [style] * len(cells)


def joined(row: Row, style: str, text: str) -> Row | None:
    """Return a row with text appended; None where that needs cells."""
    size = len(text) + (len(row) if isinstance(row, str) else sum(len(run) for _, run in row))
    if size > LIMIT_COLUMNS // 2 and (size > LIMIT_COLUMNS or not (text + plain_text(row)).isascii()):
        return None
    if not row:
        return [(style, text)] if style else text
    if isinstance(row, str):
        if not style:
            return row + text
        row = [("", row)]
    last, before = row[-1]
    if last == style:
        return [*row[:-1], (style, before + text)]
    if len(row) >= _RUNS or column_count(text[0]) == 0:  # a combining mark has the style of its letter
        return None
    return [*row, (style, text)]


def cut(row: Row, columns: int) -> tuple[Row, int]:
    """Return as much of a row as fits into so many columns, and the number of columns it takes."""
    runs: list[tuple[str, str]] = []
    taken = 0
    for style, text in [("", row)] if isinstance(row, str) else row:
        kept = 0
        for char in text:
            width = column_count(char)
            if taken + width > columns:
                return [*runs, (style, text[:kept])], taken
            taken, kept = taken + width, kept + 1
        runs.append((style, text))
    return row, taken


@lru_cache(maxsize=4096)
def column_count(char: str) -> int:
    """Return the columns of a character: 0, 1 or 2."""
    width = wcwidth(char)
    return width if width >= 0 else 1
