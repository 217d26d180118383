"""Styles of text on a terminal: converts SGR codes to short tokens, and back.

A style is space separated tokens in this order: e written to the error stream, b bold, d dim, i italic,
u underline, s strike, r reversed, fN and gN foreground and background of the 16 ANSI colours, or f#rrggbb and
g#rrggbb. "" is no style.
"""

from functools import lru_cache

Row = str | list[tuple[str, str]]  # plain, or runs of (style, text)

_ATTRIBUTES = {1: "b", 2: "d", 3: "i", 4: "u", 7: "r", 9: "s", 21: "u"}
_ENDS = {22: "bd", 23: "i", 24: "u", 27: "r", 29: "s", 39: "f", 49: "g"}
_ORDER = "ebdiusrfg"


def plain_text(row: Row) -> str:
    """Return a row without its styles."""
    return row if isinstance(row, str) else "".join(text for _, text in row)


def ansi_text(row: Row) -> str:
    """Return a row with its styles as SGR codes; each run ends with a reset."""
    if isinstance(row, str):
        return row
    return "".join(f"\x1b[{_codes(style)}m{text}\x1b[0m" if style else text for style, text in row)


def with_error(style: str, is_error: bool) -> str:
    """Return the style as that of the error stream, or not of it."""
    rest = style.removeprefix("e").lstrip()
    return f"e {rest}".rstrip() if is_error else rest


@lru_cache(maxsize=1024)
def restyle(style: str, params: str) -> str:
    """Return the style after ``CSI params m``."""
    now = {token[0]: token for token in style.split()}
    # 38:2::r:g:b has an empty place for the colour space, and 4:3 is one kind of underline
    parts = [[int(n or "0") for n in part.split(":")] for part in params.replace("::", ":").split(";")]
    while parts:
        code, *detail = parts.pop(0)
        if code in (38, 48, 58):
            colour = _colour(detail if detail else _details(parts))
            if colour and code != 58:
                now["f" if code == 38 else "g"] = ("f" if code == 38 else "g") + colour
        elif code == 0:
            now = {key: token for key, token in now.items() if key == "e"}
        elif code == 4 and detail[:1] == [0]:
            now.pop("u", None)
        elif code in _ATTRIBUTES:
            now[_ATTRIBUTES[code]] = _ATTRIBUTES[code]
        elif code in _ENDS:
            for key in _ENDS[code]:
                now.pop(key, None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            now["f"] = f"f{code - 30 if code < 90 else code - 82}"
        elif 40 <= code <= 47 or 100 <= code <= 107:
            now["g"] = f"g{code - 40 if code < 100 else code - 92}"
    return " ".join(now[key] for key in _ORDER if key in now)


def _details(parts: list[list[int]]) -> list[int]:
    """Remove from `parts` the numbers that belong to a 38, 48 or 58 before them, and return them."""
    count = {5: 2, 2: 4}.get(parts[0][0], 1) if parts else 0
    taken = [part[0] for part in parts[:count]]
    del parts[:count]
    return taken


def _colour(numbers: list[int]) -> str:
    """Return ``N`` or ``#rrggbb`` for the numbers after 38 or 48; "" if they are not a colour."""
    if max(numbers, default=256) > 255:
        return ""
    match numbers:
        case [5, n] if n < 16:
            return str(n)
        case [5, n] if n < 232:
            steps = ((n - 16) // 36, (n - 16) // 6 % 6, (n - 16) % 6)
            return "#" + "".join(f"{step * 40 + 55 if step else 0:02x}" for step in steps)
        case [5, n]:
            return "#" + f"{n * 10 - 2312:02x}" * 3
        case [2, r, g, b]:
            return f"#{r:02x}{g:02x}{b:02x}"
    return ""


@lru_cache(maxsize=1024)
def _codes(style: str) -> str:
    """Return the SGR parameters of a style."""
    attributes = {token: code for code, token in reversed(_ATTRIBUTES.items())}
    codes = []
    for token in style.split():
        base = 30 if token[0] == "f" else 40
        if token == "e":
            continue
        if token in attributes:
            codes.append(str(attributes[token]))
        elif token[1] == "#":
            red, green, blue = bytes.fromhex(token[2:])
            codes.append(f"{base + 8};2;{red};{green};{blue}")
        else:
            number = int(token[1:])
            codes.append(str(base + number if number < 8 else base + 52 + number))
    return ";".join(codes)
