"""Every colour, once: of pictures, of saved cells, and, as variables of CSS, of the live panel.

A picture brings its own paper, white or dark: text on it, or on a tint, has the contrast of 4.5 that WCAG
asks for.
The theme of a page is not known to a saved cell: there, marks have the `mid` colours, whose contrast is 3 on
white and on black, and text has the page's own colour. The panel mixes them with that colour, and so does
what a program printed in colours.
"""

from dataclasses import dataclass

from tfmagic.runs.doing import Doing


@dataclass(frozen=True, slots=True)
class Tone:
    """A colour."""

    name: str
    ink: str  #: For text and lines on white paper or a tint.
    mid: str  #: For marks on a page, whatever its theme.
    tint: str  #: For a surface with text on it.
    theme: str = ""  #: The variable of JupyterLab's theme that the panel takes instead of `mid`.


GREEN = Tone("green", "#116329", "#2b9656", "#dafbe1", "--jp-success-color1")
RED = Tone("red", "#b31d28", "#d9485f", "#ffe2e0", "--jp-error-color1")
AMBER = Tone("amber", "#7d4e00", "#b57b00", "#fff3d6")
BLUE = Tone("blue", "#0550ae", "#2f81d7", "#cfe3fb")
PURPLE = Tone("purple", "#6639ba", "#9166cc", "#f3e8ff")
TEAL = Tone("teal", "#0b5e6b", "#1b8a9c", "#d5f2f5")
GREY = Tone("grey", "#57606a", "#7d8590", "#f6f8fa")
TONES = (BLUE, RED, GREEN, PURPLE, AMBER, TEAL, GREY)

INK, FAINT, PAPER, LINE = "#1f2328", GREY.ink, "#ffffff", "#d0d7de"

OF_DOING = {
    Doing.FAILED: RED, Doing.DIED: RED, Doing.DEAD: RED, Doing.ENDING: RED,
    Doing.STALLED: PURPLE, Doing.PAUSED: PURPLE,
    Doing.WAITING: AMBER, Doing.STARTING: AMBER, Doing.PLANNED: AMBER,
    Doing.RUNNING: BLUE, Doing.INPUT: TEAL,
    Doing.READY: GREEN, Doing.DONE: GREEN, Doing.IDLE: GREY, Doing.STOPPED: GREY,
}  # fmt: skip
OF_VERDICT = {
    "done": GREEN, "failed": RED, "timed out": RED, "interrupted": AMBER, "stopped": GREY, "": BLUE,
}  # fmt: skip
OF_TYPE = {"chief": BLUE, "worker": GREY, "ps": AMBER, "evaluator": PURPLE}

TERMINAL = (
    *("#6e7781", "#d9485f", "#299153", "#a47709", "#2f81d7", "#9166cc", "#1b8a9c", "#7f8791"),
    *("#777f88", "#d76072", "#36985e", "#a88117", "#4589d4", "#9b74ce", "#2a93a4", "#81878e"),
)
"""The sixteen colours of a terminal, for what the user's program prints; about as bright as `Tone.mid`."""

DARK_PAGE = ':is([data-jp-theme-light="false"], .vscode-dark)'
"""Selects what is on a dark page of JupyterLab or VS Code."""

_DARK_INK, _DARK_PAPER, _DARK_LINE = "#e6edf3", "#0d1117", "#30363d"
_MID_SHARE = 70  # percent of a text's colour; the rest is the page's own: then it has contrast
_SURFACE_ALPHA = "40"  # of the colour behind a program's text, in hexadecimal


def tone_of(word: str) -> Tone:
    """Return the tone of a `Doing`; of a word that another version wrote, grey."""
    return OF_DOING.get(word, GREY)  # type: ignore[call-overload]  # a member is its word


def dark_of() -> dict[str, str]:
    """Return the colour that each colour of a picture becomes on a dark page; `Tone.mid` stays."""
    found = {INK: _DARK_INK, PAPER: _DARK_PAPER, LINE: _DARK_LINE}
    for tone in TONES:
        found[tone.ink] = _between(tone.mid, "#ffffff", 0.45)
        found[tone.tint] = _between(tone.mid, _DARK_PAPER, 0.8)
    return found


def dark_sheet() -> str:
    """Return the style sheet of a picture, an image, that a page can make dark by its `color-scheme`."""
    rules = [
        f'[{kind}="{light}"]{{{kind}:{dark}}}'
        for light, dark in dark_of().items()
        for kind in ("fill", "stroke")
    ]
    return f"@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}"


def _between(one: str, other: str, share: float) -> str:
    """Return a colour so far on the way from one to another."""
    pairs = [(int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def mixed(colour: str, text: str) -> str:
    """Return a colour for text, in CSS, mixed with that of the other text."""
    return f"color-mix(in srgb, {colour} {_MID_SHARE}%, {text})"


def terminal_css(number: int, is_text: bool) -> str:
    """Return the style of text in a colour of a terminal, or of the surface behind it, for a saved cell.

    A sanitizer that knows no mixed colours leaves the first one.
    """
    colour = TERMINAL[number]
    if not is_text:
        return f"background-color:{colour}{_SURFACE_ALPHA};"
    return f"color:{colour};color:{mixed(colour, 'currentcolor')};"


def style_sheet() -> str:
    """Return the variables of `panel.css`, and the tone of each state and verdict."""
    variables = {"fg-own": INK, "bg-own": PAPER, "tone": f"var(--tfm-{BLUE.name})"}
    for tone in TONES:
        colour = f"var({tone.theme}, {tone.mid})" if tone.theme else tone.mid
        variables[tone.name] = mixed(colour, "var(--tfm-fg)")
    for number, colour in enumerate(TERMINAL):
        variables |= {f"a{number}": mixed(colour, "var(--tfm-fg)"), f"b{number}": f"{colour}{_SURFACE_ALPHA}"}
    found = " ".join(f"--tfm-{name}: {value};" for name, value in variables.items())
    lines = [f".tfm-root, .tfm-form {{ {found} }}"]
    tones = [(f'[data-state="{word}"]', tone) for word, tone in OF_DOING.items()]
    tones += [(f'[data-verdict="{word}"]', tone) for word, tone in OF_VERDICT.items() if word]
    lines += [f"{selector} {{ --tfm-tone: var(--tfm-{tone.name}); }}" for selector, tone in tones]
    lines += [f".tfm-form .tfm-{tone.name} {{ color: var(--tfm-{tone.name}); }}" for tone in TONES]
    return "\n".join([*lines, ""])
